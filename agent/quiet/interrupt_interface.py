"""What the keeper of quiet CPUs needs of a node's interrupts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pinning.machine.cpuset import CPUSet


class Interrupts(Protocol):
    """The interrupts of devices, by their numbers as texts; called from a thread.

    DEFAULT stands for the affinity of those that drivers request later. Errors: Gone for a freed one.
    """

    def numbers(self) -> list[str]:
        """Return all numbers; raise Unavailable if the kernel's files cannot be used."""
        ...

    def identities(self) -> dict[str, int]:
        """Return a value by number that changes when it is freed and requested again; absent: not known."""
        ...

    def online(self) -> CPUSet:
        """Return the CPUs that are online now; raise Unavailable if that cannot be read."""
        ...

    def affinity(self, number: str) -> CPUSet:
        """Return the CPUs on which it may fire; raise Refused for a text that is no list of CPUs."""
        ...

    def name(self, number: str) -> str:
        """Return the names of its actions; empty: no driver uses it."""
        ...

    def near(self, number: str) -> CPUSet:
        """Return the CPUs of its device's NUMA node; empty: it has none."""
        ...

    def is_managed(self, number: str) -> bool:
        """Return whether the kernel alone chooses its CPUs, as far as the mode of its file says."""
        ...

    def move(self, number: str, cpus: CPUSet) -> None:
        """Set its affinity; raise Managed if the kernel alone chooses it, Refused for another reason."""
        ...
