"""A part of what keeps CPUs quiet beside interrupts: unbound workqueues, idle states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from agent.node_state import QuietPart
    from pinning.machine.interrupts import Quiet


class Part(Protocol):
    """Kernel values that change while CPUs are quiet; called from one thread at a time."""

    @property
    def has_taken(self) -> bool:
        """Return whether a value has to be restored."""
        ...

    def round(self, quiet: Quiet) -> QuietPart | None:
        """Change and restore what quiet CPUs need; None: the operator has not asked for it, and nothing is left.

        Raise Unavailable or Refused if nothing can be done.
        """
        ...

    def restore(self) -> bool:
        """Give every value its original; return whether nothing is left to restore."""
        ...
