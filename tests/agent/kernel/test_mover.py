"""Moving every thread of a process or cgroup, and processes that entered a container with their descendants."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from agent.errors import Gone
from agent.kernel import execs as module
from agent.kernel.affinity import Affinities, is_movable, read_affinity, set_affinity
from agent.kernel.execs import place_exec
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
from agent.kernel.procfs import cgroup_of, started
from pinning.machine.cpuset import EMPTY, CPUSet
from tests import thread_chains
from tests.environments.waiting import until

HERE = frozenset(os.sched_getaffinity(0))
OLD, NEW = CPUSet([0]), CPUSet([1])
TRIES = 20  # repetitions of an incomplete move, because a loaded machine may starve the mover


class Group:
    """Threads in memory: `masks` has running ones, `after_listing` runs after each listing."""

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
        """Return whether a thread runs."""
        return task in self.masks

    def move(self, bound: Bound = BOUND, cpu_seconds: Callable[[], float] = lambda: 0.0) -> Moved:
        """Move the threads to the new CPUs."""

        def target(_: int, mask: CPUSet) -> CPUSet | None:
            return NEW if mask != NEW else None

        return move_threads(self, target, self.affinities, bound, cpu_seconds)

    @property
    def affinities(self) -> Affinities:
        """The kernel's side of affinities."""
        return Affinities(self._read, self._set, lambda _: True)

    def _read(self, task: int) -> CPUSet:
        return self.masks.get(task, self.strangers.get(task, EMPTY))

    def _set(self, task: int, cpus: CPUSet) -> CPUSet:
        (self.strangers if task in self.strangers else self.masks)[task] = cpus
        return cpus


def test_every_thread_is_moved_and_read_back() -> None:
    """A thread that is already on the new CPUs is not set again."""
    group = Group(1, 2)
    group.masks[3] = NEW

    assert group.move() == Moved({1: NEW, 2: NEW}, is_settled=True)
    assert set(group.masks.values()) == {NEW}


def test_threads_without_end_are_not_settled() -> None:
    """If each listing has a new thread on the old CPUs, the rounds end and the move is incomplete."""
    group = Group(1)
    group.after_listing = lambda: group.masks.update({max(group.masks) + 1: OLD})

    assert not group.move().is_settled
    assert len(group.masks) == BOUND.rounds + 1


def test_number_of_listed_ids_is_limited() -> None:
    """A round over many threads uses up the limit of listed ids, and the next move continues."""
    group = Group(*range(1, 101))

    assert not group.move(Bound(rounds=9, listed=100)).is_settled
    assert set(group.masks.values()) == {NEW}
    assert group.move(Bound(rounds=9, listed=100)).is_settled


def test_cpu_time_after_the_first_round_is_limited() -> None:
    """A thread list that keeps growing ends the move at the time limit, so that the event loop is not blocked."""
    group, rounds = Group(1), count()
    group.after_listing = lambda: group.masks.update({max(group.masks) + 1: OLD})
    bound = Bound(rounds=64, listed=16_384, seconds=5.0)

    assert not group.move(bound, lambda: float(next(rounds))).is_settled
    assert len(group.masks) == 1 + 6


def test_first_round_has_no_time_limit() -> None:
    """All threads are set in the first round even above the limit, and a second round confirms them."""
    group, seconds = Group(*range(1, 1_001)), count(step=100)

    assert group.move(BOUND, lambda: float(next(seconds))).is_settled
    assert set(group.masks.values()) == {NEW}


def test_id_of_a_stranger_is_not_set() -> None:
    """The id of an exited thread that another process reuses is not set."""
    group = Group(1, 2)

    def hand_on() -> None:
        if group.masks.pop(2, None):
            group.strangers[2] = OLD

    group.after_listing = hand_on

    assert group.move() == Moved({1: NEW}, is_settled=True)
    assert group.strangers == {2: OLD}


def test_exited_thread_causes_another_listing() -> None:
    """A thread that exits before it is set may have started another one, which the next listing finds."""
    group = Group(2)
    group.masks[1] = NEW

    def hand_on() -> None:
        if group.masks.pop(2, None):
            group.masks[3] = OLD

    group.after_listing = hand_on

    assert group.move().is_settled
    assert group.masks == {1: NEW, 3: NEW}


def test_incomplete_listing_is_not_settled() -> None:
    """The kernel ends a listing early if a thread exits in the meantime."""
    group = Group(1)
    group.masks[1] = NEW
    group.is_whole = False

    assert not group.move().is_settled


def test_refused_thread_is_set_once() -> None:
    """The effective affinity is reported, and the move ends."""
    group = Group(1)
    affinities = Affinities(lambda _: OLD, lambda *_: OLD, lambda _: False)

    assert move_threads(group, lambda *_: NEW, affinities) == Moved({1: OLD}, is_settled=True)


def test_stale_listing_is_repeated_before_a_thread_is_set() -> None:
    """A cgroup is listed again if the last listing is older than some milliseconds."""
    now, tasks = [100.0], [[1, 2], [1], []]
    threads = ListedThreads(lambda: tasks.pop(0), lambda: now[0])

    assert threads.list().tasks == [1, 2]
    assert threads.has(2)
    now[0] += FRESH_SECONDS
    assert [threads.has(1), threads.has(2)] == [True, False]
    now[0] += FRESH_SECONDS
    assert not threads.has(1)


def test_removed_cgroup_has_no_threads() -> None:
    """A removed cgroup has no threads to move, because their ids may be reused."""

    def gone() -> list[int]:
        raise Gone("removed")

    assert not ListedThreads(gone).has(1)


def test_process_is_identified_by_its_start_time() -> None:
    """A pid with another start time raises Gone."""
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
def test_real_threads_that_start_others_are_all_moved(program: Path, microseconds: int) -> None:
    """None of hundreds of threads is left on the old CPUs, however fast they start."""
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
    """Threads of which each starts the next one and exits are moved, though no two listings show the same one."""
    cpus = CPUSet([max(HERE)])
    with thread_chains.running(program, microseconds=50, threads=10**9, stay=False) as pid:
        assert any(put_process(pid, cpus) for _ in range(TRIES))
        for _ in range(20):
            assert thread_chains.masks(pid) == {frozenset(cpus)}


USABLE = CPUSet(os.sched_getaffinity(0))
NOWHERE = CPUSet([8191])  # a CPU that no machine has


@pytest.fixture
def task() -> Iterator[int]:
    """Return a thread that lives as long as the test."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    assert thread.native_id
    yield thread.native_id
    end.set()
    thread.join()


def test_affinity_is_set_and_read_back(task: int) -> None:
    """The affinity that was set is read back."""
    cpu = CPUSet([USABLE.lowest()])

    assert read_affinity(task) == USABLE
    assert set_affinity(task, cpu) == read_affinity(task) == cpu
    assert is_movable(task)


def test_nonexistent_cpus_are_cut_off(task: int) -> None:
    """The usable part of an affinity is set; one without usable CPUs changes nothing."""
    assert set_affinity(task, USABLE | NOWHERE) == USABLE
    assert set_affinity(task, NOWHERE) == USABLE


def test_ended_thread_has_an_empty_affinity(task: int) -> None:
    """An ended thread is no error."""
    gone = 2**22 + 1  # above the kernel's largest thread id

    assert set_affinity(gone, USABLE) == read_affinity(gone) == EMPTY
    assert is_movable(gone)


def test_bound_kernel_thread_is_not_movable() -> None:
    """Threads of ksoftirqd, if visible, are bound to their CPUs."""
    bound = [
        path.parent.name for path in Path("/proc").glob("[0-9]*/comm") if _name(path).startswith("ksoftirqd/")
    ]

    assert not any(is_movable(int(task)) for task in bound)


def _name(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


CGROUP = cgroup_of(Path("/proc/self"))
HAS_CHILDREN = Path(f"/proc/self/task/{os.getpid()}/children").exists()


@pytest.fixture
def entered() -> Iterator[subprocess.Popen[bytes]]:
    """Return a shell with a child."""
    with subprocess.Popen(["/bin/sh", "-c", "sleep 1000 & wait"], start_new_session=True) as process:
        yield process
        os.killpg(process.pid, 9)


@pytest.fixture
def last() -> CPUSet:
    """Return the highest CPU that this process may use."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("a process that is put aside takes two CPUs")
    return CPUSet([cpus[-1]])


def child_of(process: subprocess.Popen[bytes]) -> int:
    """Return the shell's child once it runs."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return int(until("child", children.read_text).split()[0])


@pytest.mark.skipif(not HAS_CHILDREN, reason="this kernel lists no children (CONFIG_PROC_CHILDREN)")
def test_process_is_moved_with_its_children(entered: subprocess.Popen[bytes], last: CPUSet) -> None:
    """A process that entered a container is moved with the child that it has started."""
    child = child_of(entered)
    placed = place_exec(entered.pid, CGROUP, last)
    assert placed
    assert [os.sched_getaffinity(pid) for pid in (entered.pid, child)] == [set(last), set(last)]
    assert placed.started == started(entered.pid)
    assert 0.0 <= placed.seconds <= time.clock_gettime(time.CLOCK_BOOTTIME)


@pytest.mark.skipif(not HAS_CHILDREN, reason="this kernel lists no children (CONFIG_PROC_CHILDREN)")
@pytest.mark.parametrize("most", [0, 1])
def test_processes_with_too_many_threads_are_not_moved(
    entered: subprocess.Popen[bytes], last: CPUSet, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Threads of an exec and its children beyond a limit are not moved, so that they cannot delay the agent."""
    child, before = child_of(entered), os.sched_getaffinity(0)
    monkeypatch.setattr(module, "MOST_THREADS", most)
    assert place_exec(entered.pid, CGROUP, last) is None
    assert os.sched_getaffinity(child) == before
    assert os.sched_getaffinity(entered.pid) == (set(last) if most else before)


def test_process_of_another_cgroup_is_not_moved(entered: subprocess.Popen[bytes], last: CPUSet) -> None:
    """A process that is in another cgroup by now is not moved, because its pid may be reused."""
    before = os.sched_getaffinity(entered.pid)
    assert place_exec(entered.pid, f"{CGROUP.rstrip('/')}/other", last) is None
    assert os.sched_getaffinity(entered.pid) == before


def test_process_of_another_start_time_is_not_moved(entered: subprocess.Popen[bytes], last: CPUSet) -> None:
    """A process with another start time is not moved, because its pid was reused."""
    assert place_exec(entered.pid, CGROUP, last, started(entered.pid) - 1) is None
    assert place_exec(entered.pid, CGROUP, last, started(entered.pid))


def test_exited_process_is_not_moved(last: CPUSet) -> None:
    """A process that has exited is not moved and is no error."""
    with subprocess.Popen(["/bin/true"]) as process:
        process.wait()
    assert place_exec(process.pid, CGROUP, last) is None
