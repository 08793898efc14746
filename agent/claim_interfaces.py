"""The interface between the passes and the driver of ResourceClaims."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from pinning.dra.claims import SeenClaims
    from pinning.planning.ledger import Ledger
    from pinning.planning.observed import SeenPod


class DeviceClaims(Protocol):
    """The driver of Dynamic Resource Allocation: ResourceClaims with CPUs of this node."""

    def seen(self, pods: Iterable[SeenPod], live: Collection[str]) -> SeenClaims | None:
        """Return the claims of this node; None where the agent is no driver. `live` are the pods with live containers."""
        ...

    def passed(self, ledger: Ledger, waiting: Mapping[str, str], *, observes: bool) -> None:
        """Receive the saved ledger of a pass, and why claims have no CPUs, by uid."""
        ...

    async def run(self, request_pass: Callable[[], None]) -> None:
        """Serve the kubelet until cancelled; ask for a pass when claims come or go."""
        ...
