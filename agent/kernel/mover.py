"""Set the affinity of every thread of a process, cgroup or VM, and list again until no thread has to be moved.

A thread inherits the mask of the one that starts it. So once a whole listing has no thread left to move, later threads
cannot have other CPUs, unless a thread changes its own mask. Threads that start each other may do so faster than the
mover lists them. So the rounds and their CPU time are bounded, and a move that reaches a bound is not settled.

The kernel sets affinity by thread id alone. Right before each call the mover checks that the id still belongs to a
thread to move; it trusts the mask that it reads back only if the id belongs to that thread afterwards too. The
race that remains is the few microseconds between check and call: the thread would have to exit, and the kernel to
assign every other id, within them.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from agent.errors import Gone
from agent.kernel.affinity import KERNEL, Affinities
from agent.kernel.procfs import STARTED, parse_stat

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from pinning.machine.cpuset import CPUSet

# an id in a listing younger than this still belongs to the thread, because the kernel does not reuse ids that soon
FRESH_SECONDS: Final = 0.002
_LISTINGS: Final = 4  # attempts to list all threads: a thread that exits during a listing truncates it
_LINKS: Final = 2  # link count of an empty folder: the kernel adds one for each thread
_STAT_BYTES: Final = 4096


class Bound(NamedTuple):
    """Limits of one move."""

    rounds: int  # number of listings
    listed: int  # number of thread ids in all listings together
    seconds: float = 0.05  # CPU time after the first round, which always covers all threads


class Listing(NamedTuple):
    """Thread ids read in one listing."""

    tasks: Collection[int]
    is_whole: bool = True  # False: the kernel truncated the listing


class Moved(NamedTuple):
    """Result of a move."""

    masks: Mapping[int, CPUSet]  # affinities read back from the threads that were set and have not exited
    is_settled: bool  # False: a bound was reached, so some thread may be on other CPUs
    reason: str = ""  # the bound that was reached; empty if threads were created faster than moved


class Threads(Protocol):
    """The threads to move."""

    def list(self) -> Listing:
        """Return the current thread ids; raise Gone if the process or cgroup no longer exists."""
        ...

    def has(self, task: int) -> bool:
        """Return whether an id still belongs to one of these threads."""
        ...


BOUND: Final = Bound(rounds=64, listed=16_384)


def move_threads(
    threads: Threads,
    target: Callable[[int, CPUSet], CPUSet | None],
    affinities: Affinities = KERNEL,
    bound: Bound = BOUND,
    cpu_seconds: Callable[[], float] = time.thread_time,
) -> Moved:
    """Set each thread to `target(task, mask)` unless that is None.

    Raise Gone if the process or cgroup no longer exists.

    Each thread is set once: if the kernel refuses, or the thread changes its mask again, retrying does not help. The
    limit is in CPU time, because wall time would abort moves that merely wait for a CPU.
    """
    move = _Move(threads, target, affinities)
    listed, until = 0, inf
    for _ in range(bound.rounds):
        listing = threads.list()
        listed += len(listing.tasks)
        if move.round(listing.tasks) and listing.is_whole:
            return Moved(move.masks, is_settled=True)
        now = cpu_seconds()
        until = min(until, now + bound.seconds)
        if listed >= bound.listed or now >= until:
            break
    return Moved(move.masks, is_settled=False)


class _Move:
    """A move in progress: the ids of the threads seen so far, and their affinities read back."""

    def __init__(
        self, threads: Threads, target: Callable[[int, CPUSet], CPUSet | None], affinities: Affinities
    ) -> None:
        self.masks: dict[int, CPUSet] = {}
        self._threads = threads
        self._target = target
        self._affinities = affinities
        self._known: set[int] = set()

    def round(self, tasks: Collection[int]) -> bool:
        """Move the threads not seen before; return whether all were on their CPUs, so that those they start are too."""
        wrong = [task for task in tasks if task not in self._known and not self._is_right(task)]
        return not wrong

    def _is_right(self, task: int) -> bool:
        """Set one thread's affinity; return False if it had other CPUs, or exited and may have started a thread."""
        mask = self._affinities.read(task)
        if not mask:
            return False
        cpus = self._target(task, mask)
        if cpus is not None and not self._threads.has(task):
            return False
        self._known.add(task)
        if cpus is None:
            return True
        found = self._affinities.set(task, cpus)
        if found and self._threads.has(task):
            self.masks[task] = found
        return False


class ProcessThreads:
    """The threads of one process, pinned by its open /proc folder against reuse of the pid."""

    def __init__(self, folder: int, pid: int) -> None:
        self._folder = folder
        self._pid = pid

    def list(self) -> Listing:
        """Return the ids of the process's threads; raise Gone.

        The kernel truncates a listing at a thread that exits during it, so a listing with fewer ids than the process
        has threads is not whole.
        """
        try:
            for _ in range(_LISTINGS):
                count = os.stat("task", dir_fd=self._folder).st_nlink - _LINKS
                tasks = self._tasks()
                if len(tasks) >= count:
                    return Listing(tasks)
        except OSError as error:
            raise Gone(f"process {self._pid} exited") from error
        return Listing(tasks, is_whole=False)

    def _tasks(self) -> tuple[int, ...]:
        folder = os.open("task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._folder)
        try:
            return tuple(int(name) for name in os.listdir(folder))  # noqa: PTH208 names alone
        finally:
            os.close(folder)

    def count(self) -> int:
        """Return how many threads the process has; raise Gone."""
        try:
            return os.stat("task", dir_fd=self._folder).st_nlink - _LINKS
        except OSError as error:
            raise Gone(f"process {self._pid} exited") from error

    def has(self, task: int) -> bool:
        """Return whether the process has this thread."""
        return os.access(f"task/{task}", os.F_OK, dir_fd=self._folder)

    def started(self) -> int:
        """Return the start time of the process, in ticks since boot; raise Gone."""
        try:
            file = os.open("stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._folder)
            try:
                text = os.read(file, _STAT_BYTES).decode("utf-8", "replace")
            finally:
                os.close(file)
        except OSError as error:
            raise Gone(f"process {self._pid} exited") from error
        return int(parse_stat(text)[1][STARTED])


@contextmanager
def process_threads(pid: int, started: int | None = None) -> Iterator[ProcessThreads]:
    """Open the threads of a process; raise Gone if it exited or the pid now has another start time."""
    try:
        folder = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise Gone(f"process {pid} exited") from error
    try:
        threads = ProcessThreads(folder, pid)
        if started is not None and threads.started() != started:
            raise Gone(f"process {pid} has exited, and its pid is reused")
        yield threads
    finally:
        os.close(folder)


class ListedThreads:
    """Threads known only from a listing, such as a cgroup's tasks: an id is trusted for a moment after the listing."""

    def __init__(
        self, tasks: Callable[[], Collection[int]], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._tasks = tasks
        self._monotonic = monotonic
        self._known: frozenset[int] = frozenset()
        self._fresh_until = 0.0

    def list(self) -> Listing:
        """Return the current ids; raise Gone."""
        return Listing(self._listed())

    def _listed(self) -> Collection[int]:
        tasks = self._tasks()
        self._known, self._fresh_until = frozenset(tasks), self._monotonic() + FRESH_SECONDS
        return tasks

    def has(self, task: int) -> bool:
        """Return whether an id is in a fresh listing."""
        if self._monotonic() >= self._fresh_until:
            try:
                self._listed()
            except Gone:
                return False
        return task in self._known


def put_process(pid: int, cpus: CPUSet) -> bool:
    """Set the affinity of every thread of a process; return False if threads start faster than they are moved.

    Returns True for a process that has exited.
    """
    try:
        with process_threads(pid) as threads:
            return move_threads(threads, lambda _, mask: cpus if mask != cpus else None).is_settled
    except Gone:
        return True
