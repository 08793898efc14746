"""Interfaces of quiet CPUs: a node's interrupts, and the other parts (unbound workqueues, idle states)."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agent.node_state import QuietPart
    from pinning.machine.cpuset import CPUSet
    from pinning.machine.interrupts import Quiet

MOST_NAMES: Final = 16  # interrupts, masks or CPUs that a report names


class RecordFile(StrEnum):
    """Names of the parts' records in the state directory.

    They are in this module so that an agent without the component `quiet` can find records of an earlier agent without
    loading the parts.
    """

    INTERRUPTS = "interrupts.json"
    BANNED_CPUS = "irqbalance.json"
    BANNED_INTERRUPTS = "irqbalance-interrupts.json"
    WORKQUEUES = "workqueues.json"
    IDLE_STATES = "idle-states.json"


class Interrupts(Protocol):
    """The interrupts of devices, by their numbers as texts; called from a thread.

    DEFAULT stands for the default affinity of interrupts that drivers request later. Raises Gone for a freed
    interrupt.
    """

    def numbers(self) -> list[str]:
        """Return all numbers; raise Unavailable if the kernel's files cannot be used."""
        ...

    def identities(self) -> dict[str, int]:
        """Return a value for each interrupt, by number, that changes when the number is reused; absent: unknown."""
        ...

    def online(self) -> CPUSet:
        """Return the CPUs that are online now; raise Unavailable if that cannot be read."""
        ...

    def affinity(self, number: str) -> CPUSet:
        """Return the CPUs on which an interrupt may fire; raise Refused for a text that is not a list of CPUs."""
        ...

    def name(self, number: str) -> str:
        """Return the names of an interrupt's actions; empty: no driver uses it."""
        ...

    def of_device(self, address: str) -> tuple[str, ...]:
        """Return the interrupt numbers of a PCI device; empty if it has no MSI interrupts."""
        ...

    def near(self, number: str) -> CPUSet:
        """Return the CPUs of the NUMA node of an interrupt's device; empty: it has none."""
        ...

    def is_managed(self, number: str) -> bool:
        """Return whether the kernel alone chooses an interrupt's CPUs, as far as its file's mode shows."""
        ...

    def has_place(self, number: str) -> bool:
        """Return whether the kernel shows the CPU on which an interrupt fires; True if it does not show that at all.

        Otherwise each CPU has the interrupt for itself, or it comes by another interrupt, as those of GPIO pins do.
        """
        ...

    def move(self, number: str, cpus: CPUSet, identity: int | None = None) -> None:
        """Set an interrupt's affinity; raise Managed if the kernel alone chooses it, Refused for another reason.

        Raise Gone if the number now has another identity than `identity`; None: it is not known.
        """
        ...


class Part(Protocol):
    """Kernel values that the agent changes while CPUs are quiet; called from one thread at a time."""

    @property
    def has_taken(self) -> bool:
        """Return whether a value has to be restored."""
        ...

    def round(self, quiet: Quiet) -> QuietPart | None:
        """Change values for quiet CPUs and restore others; return None if the part is off and has nothing to restore.

        Raise Unavailable or Refused if nothing can be done.
        """
        ...

    def restore(self) -> bool:
        """Restore every original value; return whether nothing is left to restore."""
        ...


def few(texts: Iterable[str], shown: Callable[[str], str] = str) -> tuple[str, ...]:
    """Return at most `MOST_NAMES` texts, formatted by `shown`, and a last text with the number of the others."""
    found = list(dict.fromkeys(texts))
    more = len(found) - MOST_NAMES
    return (*map(shown, found[:MOST_NAMES]), *([f"and {more} more"] if more > 0 else []))
