"""Moving every thread of a process or cgroup: with threads that start each other, exit, or hand on their id."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from agent.errors import Gone
from agent.kernel.affinity import Affinities
from agent.kernel.mover import (
    BOUND,
    FRESH_SECONDS,
    Bound,
    ListedThreads,
    Listing,
    Moved,
    move_threads,
    process_threads,
    put_process,
)
from agent.kernel.procfs import started
from pinning.machine.cpuset import EMPTY, CPUSet
from tests import thread_chains

HERE = frozenset(os.sched_getaffinity(0))
OLD, NEW = CPUSet([0]), CPUSet([1])
TRIES = 20  # of a move that is not settled: a machine under load may starve the mover


class Group:
    """Threads in memory: `masks` has those that run, `listings` are changes right after a listing."""

    def __init__(self, *tasks: int) -> None:
        self.masks = dict.fromkeys(tasks, OLD)
        self.strangers: dict[int, CPUSet] = {}
        self.after_listing: Callable[[], object] = lambda: None
        self.is_whole = True

    def list(self) -> Listing:
        """Return the ids."""
        tasks, is_whole = tuple(self.masks), self.is_whole
        self.after_listing()
        return Listing(tasks, is_whole)

    def has(self, task: int) -> bool:
        """Say whether one runs."""
        return task in self.masks

    def move(self, bound: Bound = BOUND, cpu_seconds: Callable[[], float] = lambda: 0.0) -> Moved:
        """Move them to the new CPUs."""

        def target(_: int, mask: CPUSet) -> CPUSet | None:
            return NEW if mask != NEW else None

        return move_threads(self, target, self.affinities, bound, cpu_seconds)

    @property
    def affinities(self) -> Affinities:
        """What the kernel would do."""
        return Affinities(self._read, self._set, lambda _: True)

    def _read(self, task: int) -> CPUSet:
        return self.masks.get(task, self.strangers.get(task, EMPTY))

    def _set(self, task: int, cpus: CPUSet) -> CPUSet:
        (self.strangers if task in self.strangers else self.masks)[task] = cpus
        return cpus


def test_every_thread_is_moved_and_read_back() -> None:
    """One that is right already is not set."""
    group = Group(1, 2)
    group.masks[3] = NEW

    assert group.move() == Moved({1: NEW, 2: NEW}, is_settled=True)
    assert set(group.masks.values()) == {NEW}


def test_threads_without_end_are_not_settled() -> None:
    """A new thread on the old CPUs with each listing: the rounds end, and the result does not say done."""
    group = Group(1)
    group.after_listing = lambda: group.masks.update({max(group.masks) + 1: OLD})

    assert not group.move().is_settled
    assert len(group.masks) == BOUND.rounds + 1


def test_listed_ids_are_bounded() -> None:
    """A round over many thousand threads costs as much as many rounds over a few; the next move goes on from there."""
    group = Group(*range(1, 101))

    assert not group.move(Bound(rounds=9, listed=100)).is_settled
    assert set(group.masks.values()) == {NEW}
    assert group.move(Bound(rounds=9, listed=100)).is_settled


def test_cpu_time_after_the_first_round_is_bounded() -> None:
    """A thread bomb holds the event loop no longer, where a listing takes long: here the limit is five rounds."""
    group, rounds = Group(1), count()
    group.after_listing = lambda: group.masks.update({max(group.masks) + 1: OLD})
    bound = Bound(rounds=64, listed=16_384, seconds=5.0)

    assert not group.move(bound, lambda: float(next(rounds))).is_settled
    assert len(group.masks) == 1 + 6


def test_first_round_goes_through_all_threads() -> None:
    """Thousands of threads that take longer than the limit are set all the same, and a second round settles them."""
    group, seconds = Group(*range(1, 1_001)), count(step=100)

    assert group.move(BOUND, lambda: float(next(seconds))).is_settled
    assert set(group.masks.values()) == {NEW}


def test_id_of_a_stranger_is_not_set() -> None:
    """A thread exits after the listing and another process gets its id: only the kernel's list of threads says whose it is."""
    group = Group(1, 2)

    def hand_on() -> None:
        if group.masks.pop(2, None):
            group.strangers[2] = OLD

    group.after_listing = hand_on

    assert group.move() == Moved({1: NEW}, is_settled=True)
    assert group.strangers == {2: OLD}


def test_thread_that_exits_unseen_may_have_started_another() -> None:
    """It is no thread that is right: the listing that misses it misses the thread that it started too."""
    group = Group(2)
    group.masks[1] = NEW

    def hand_on() -> None:
        if group.masks.pop(2, None):
            group.masks[3] = OLD

    group.after_listing = hand_on

    assert group.move().is_settled
    assert group.masks == {1: NEW, 3: NEW}


def test_listing_that_is_not_whole_settles_nothing() -> None:
    """The kernel ends a listing at a thread that exits in that moment."""
    group = Group(1)
    group.masks[1] = NEW
    group.is_whole = False

    assert not group.move().is_settled


def test_thread_that_the_kernel_refuses_to_move_is_set_once() -> None:
    """What the kernel made of it is reported, and the move ends."""
    group = Group(1)
    affinities = Affinities(lambda _: OLD, lambda *_: OLD, lambda _: False)

    assert move_threads(group, lambda *_: NEW, affinities) == Moved({1: OLD}, is_settled=True)


def test_listed_ids_count_while_they_are_fresh() -> None:
    """A cgroup is listed again before a thread of it is set some milliseconds after the listing."""
    now, tasks = [100.0], [[1, 2], [1], []]
    threads = ListedThreads(lambda: tasks.pop(0), lambda: now[0])

    assert threads.list().tasks == [1, 2]
    assert threads.has(2)
    now[0] += FRESH_SECONDS
    assert [threads.has(1), threads.has(2)] == [True, False]
    now[0] += FRESH_SECONDS
    assert not threads.has(1)


def test_cgroup_that_is_gone_has_no_threads() -> None:
    """Its ids may be those of any process."""

    def gone() -> list[int]:
        raise Gone("removed")

    assert not ListedThreads(gone).has(1)


def test_process_of_another_start_is_not_the_one() -> None:
    """A pid is one process only together with the time at which it started."""
    with process_threads(os.getpid(), started(os.getpid())) as threads:
        assert threads.has(os.getpid())
        assert os.getpid() in threads.list().tasks
    with pytest.raises(Gone), process_threads(os.getpid(), started(os.getpid()) + 1):
        pass
    with pytest.raises(Gone), process_threads(2**22 + 1):
        pass
    assert put_process(2**22 + 1, NEW)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the program whose threads start each other."""
    return thread_chains.build(tmp_path_factory.mktemp("chain"))


needs_two = pytest.mark.skipif(len(HERE) < 2, reason="one CPU is none to be moved to")


@needs_two
@pytest.mark.parametrize("microseconds", [200, 0])
def test_real_threads_that_start_each_other_are_all_moved(program: Path, microseconds: int) -> None:
    """None of hundreds is left on the old CPUs, however fast they come."""
    cpus = CPUSet([max(HERE)])
    with thread_chains.running(program, microseconds=microseconds, threads=800) as pid:
        tries = 1
        while not put_process(pid, cpus):
            tries += 1
        thread_chains.wait_for_threads(pid, 800)

        assert thread_chains.masks(pid) == {frozenset(cpus)}
        assert tries <= TRIES


@needs_two
def test_real_threads_that_start_the_next_one_and_exit_are_moved(program: Path) -> None:
    """There is one of them at a time, and it is another one with each look."""
    cpus = CPUSet([max(HERE)])
    with thread_chains.running(program, microseconds=50, threads=10**9, stay=False) as pid:
        assert any(put_process(pid, cpus) for _ in range(TRIES))
        for _ in range(20):
            assert thread_chains.masks(pid) == {frozenset(cpus)}
