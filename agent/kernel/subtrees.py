"""Write the CPUs of a cgroup and of all cgroups below it, a bounded number in one call.

On cgroup v1 a parent cannot give up CPUs that a child has, and a container that may write its cgroup can create
any number of children. The kernel compares each write with all siblings, so that one write among 10,000 siblings
takes 4 ms. A call that reaches the bound raises Unfinished, and the next call continues.
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from time import thread_time
from typing import TYPE_CHECKING, Final

from agent.errors import Gone, Refused, Unfinished
from agent.kernel.cgroupfs import CPUS, MOST_CGROUPS, child_names, read_cpus, write_text
from pinning.machine.cpuset import EMPTY

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from pinning.machine.cpuset import CPUSet

TURN_SECONDS: Final = 0.05  # CPU time of one call, without the first cgroup that it writes


class _Paused(Exception):
    """The bound is reached; `names` is the path, below the cgroup of the call, to the cgroup to continue with."""

    def __init__(self, names: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.names = names


@dataclass(slots=True)
class _Begun:
    """A move that may take several calls."""

    cpus: CPUSet = EMPTY
    whole: set[CPUSet] = field(default_factory=set)  # earlier sets of the cgroup itself
    next: tuple[str, ...] = ()  # the cgroup to continue with; empty: from the first

    def toward(self, cpus: CPUSet, old: CPUSet) -> None:
        """Continue a move to the same CPUs; start over if `cpus` are others."""
        if cpus != self.cpus:
            self.whole.add(self.cpus)
            self.cpus, self.next = cpus, ()
        self.whole.update((old, old | cpus))


class Subtrees:
    """Writes the cpusets of cgroups and of all their descendants."""

    def __init__(self, cpu_time: Callable[[], float] = thread_time) -> None:
        self._begun: dict[Path, _Begun] = {}
        self._cpu_time = cpu_time

    def move(self, folder: Path, cpus: CPUSet, before: CPUSet = EMPTY) -> None:
        """Write `cpus` to a cgroup and to those below it, also to children that still have the earlier CPUs `before`.

        Raise Gone, Refused, and Unfinished after MOST_CGROUPS or TURN_SECONDS. Until a later call ends the move, the
        cgroup has its old CPUs and the new ones.
        """
        begun = self._begun.pop(folder, None) or _Begun()
        begun.toward(cpus, read_cpus(f"{folder}/{CPUS}"))
        begun.whole.add(before)
        try:
            _Turn(begun.whole, self._cpu_time).move(
                folder, cpus, begun.next, is_late=before not in (EMPTY, cpus)
            )
        except _Paused as pause:
            begun.next = pause.names
            self._begun[folder] = begun
            message = (
                f"{folder} has more cgroups below it than are moved at once: the next pass continues; let the container"
                " remove those that it does not use"
            )
            raise Unfinished(message) from None
        except RecursionError as error:
            message = f"{folder}: its cgroups are nested too deeply to be moved one by one"
            raise Refused(message) from error

    def keep(self, folders: Collection[Path]) -> None:
        """Forget the moves of all other cgroups."""
        for folder in self._begun.keys() - folders:
            del self._begun[folder]


class _Turn:
    """One call of `move`: the cgroups it may still change, and the sets that mean "all CPUs of the container"."""

    def __init__(self, whole: set[CPUSet], cpu_time: Callable[[], float]) -> None:
        self._whole = whole
        self._left = MOST_CGROUPS
        self._cpu_time = cpu_time
        self._end = cpu_time() + TURN_SECONDS
        self._has_moved = False

    def move(self, folder: Path, cpus: CPUSet, names: tuple[str, ...], *, is_late: bool = False) -> None:
        """Write the CPUs of a cgroup and its children, starting at the path `names`.

        With `is_late` children are written even if the cgroup has the new CPUs already. On v1 a parent must always have
        all CPUs of its children, so it gets the old and new CPUs first, and only the new ones last.
        """
        children = child_names(folder)
        old = read_cpus(f"{folder}/{CPUS}") if children else EMPTY
        if children and (old != cpus or names or is_late):
            put(folder, old | cpus)
            for name in children[bisect_left(children, names[0]) if names else 0 :]:
                self._move_child(folder / name, cpus, names[1:] if names and name == names[0] else ())
        put(folder, cpus)
        self._has_moved = True

    def _move_child(self, child: Path, new: CPUSet, names: tuple[str, ...]) -> None:
        """Give all new CPUs to a child that had all CPUs of the container.

        Another child keeps its CPUs that are in the new set, or gets all new CPUs if none of its CPUs is.
        """
        if not self._left or (self._has_moved and self._cpu_time() > self._end):
            raise _Paused((child.name,))
        self._left -= 1
        # Refused: a v2 child without the controller, which uses its parent's CPUs
        with suppress(Gone, Refused):
            had = read_cpus(f"{child}/{CPUS}")
            if not had:
                return
            try:
                self.move(child, new if had in self._whole else had & new or new, names)
            except _Paused as pause:
                raise _Paused((child.name, *pause.names)) from None


def put(folder: Path, cpus: CPUSet) -> None:
    """Write `cpuset.cpus`; raise Gone, Refused."""
    write_text(f"{folder}/{CPUS}", cpuset_text(cpus))


@lru_cache(maxsize=1024)
def cpuset_text(cpus: CPUSet) -> str:
    """Format a CPU list; cached, because hundreds of containers share a few lists."""
    return str(cpus)
