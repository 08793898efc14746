"""A part of what keeps CPUs quiet beside interrupts (unbound workqueues, idle states), and how much of it is reported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agent.node_state import QuietPart
    from pinning.machine.interrupts import Quiet

MOST_NAMES: Final = 16  # of interrupts, masks or CPUs in a report


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


def few(texts: Iterable[str], shown: Callable[[str], str] = str) -> tuple[str, ...]:
    """Return the first texts as they are shown, and how many there are beside them."""
    found = list(dict.fromkeys(texts))
    more = len(found) - MOST_NAMES
    return (*map(shown, found[:MOST_NAMES]), *([f"and {more} more"] if more > 0 else []))
