"""The interface between reconcile passes and the DRA driver of ResourceClaims."""

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
        """Return the claims of this node; None if the agent is no driver. `live` are the pods with live containers."""
        ...

    def passed(self, ledger: Ledger, waiting: Mapping[str, str], *, observes: bool) -> None:
        """Receive the ledger that a pass saved, and by claim uid the reasons for claims without CPUs."""
        ...

    async def run(self, request_pass: Callable[[], None]) -> None:
        """Serve the kubelet until cancelled; request a pass when a claim is to be prepared or unprepared."""
        ...
