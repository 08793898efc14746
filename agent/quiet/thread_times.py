"""Run-queue waits, involuntary switches and timeslices of a container's threads.

Reads /proc only. A thread that did not run since the last reading costs one read. Run-queue waits are in nanoseconds
(`schedstat`, Documentation/scheduler/sched-stats.rst).
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.kernel.procfs import STARTED, parse_stat, read_file
from pinning.machine.cpuset import CPUSet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_THREADS: Final = 256  # threads read of one container; of more threads every n-th is read
_ENDED: Final = (OSError, IndexError, ValueError)  # errors if a thread exits while it is read
_SWITCHES: Final = "\nnonvoluntary_ctxt_switches:"
_ALLOWED: Final = "\nCpus_allowed_list:"


class Times(NamedTuple):
    """Run-queue wait, timeslices and involuntary switches of one thread since it started."""

    waited_ns: int
    slices: int
    switches: int  # involuntary context switches
    started: str  # start time in ticks since boot, because thread ids are reused
    allowed: str  # CPUs on which it may run, in the kernel's list format


class Threads(NamedTuple):
    """One reading of a container's threads."""

    times: Mapping[int, Times]
    of: int  # all threads that the container had

    @property
    def is_whole(self) -> bool:
        """Return whether all of its threads were read."""
        return len(self.times) == self.of


class Lost(NamedTuple):
    """Growth of waits, switches and timeslices of a container's threads between two readings."""

    waited_ns: int
    switches: int
    slices: int | None  # None: unknown for at least one thread


NO_THREADS: Final = Threads({}, 0)


def sampled(tasks: Sequence[int]) -> Sequence[int]:
    """Return at most `MOST_THREADS` of these thread ids, evenly spaced."""
    return sorted(tasks)[:: -(-len(tasks) // MOST_THREADS) or 1]


def read_threads(proc: str, tasks: Sequence[int], before: Threads) -> Threads:
    """Read the threads of a container; `before` is the previous reading."""
    times = {}
    for task in sampled(tasks):
        with suppress(*_ENDED):
            times[task] = _times(f"{proc}/{task}", before.times.get(task))
    return Threads(times, len(tasks))


def lost(before: Threads, after: Threads, cpus: CPUSet) -> Lost | None:
    """Return the waits and switches of the threads that may run on `cpus` only; None if no such thread is known.

    For a thread that started between the two readings all its time counts. The number of timeslices is known unless a
    thread was not read, exited, or may run elsewhere too.
    """
    pairs = []
    for task, times in after.times.items():
        first = before.times.get(task)
        is_same = first is not None and first.started == times.started
        if (is_same or before.is_whole) and _allowed(times.allowed) <= cpus:
            pairs.append((first if first and is_same else _BEGINNING, times))
    if not pairs:
        return None
    stayed = all(
        task in after.times and after.times[task].started == first.started
        for task, first in before.times.items()
    )
    knows_all = stayed and before.is_whole and after.is_whole and len(pairs) == after.of
    return Lost(
        waited_ns=sum(last.waited_ns - first.waited_ns for first, last in pairs),
        switches=sum(last.switches - first.switches for first, last in pairs),
        slices=sum(last.slices - first.slices for first, last in pairs) if knows_all else None,
    )


_BEGINNING: Final = Times(0, 0, 0, "", "")


def _times(folder: str, before: Times | None) -> Times:
    """Return the times of one thread; raise OSError, IndexError or ValueError if it exited or cannot be read."""
    _, waited, slices = map(int, read_file(f"{folder}/schedstat").split())
    if before and (before.waited_ns, before.slices) == (waited, slices):
        return before
    started = parse_stat(read_file(f"{folder}/stat"))[1][STARTED]
    status = read_file(f"{folder}/status")
    return Times(waited, slices, int(_line(status, _SWITCHES)), started, _line(status, _ALLOWED))


def _line(status: str, name: str) -> str:
    return status.rpartition(name)[2].partition("\n")[0].strip()


@lru_cache(maxsize=1024)
def _allowed(text: str) -> CPUSet:
    """Parse a CPU list; cached, because hundreds of threads share one."""
    return CPUSet.parse(text)
