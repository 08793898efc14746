"""Tasks of a container with exclusive and shared CPUs, on a model of the kernel, before 6.2 and since."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.errors import Gone, Refused, TooMany, Unsettled
from agent.kernel.affinity import Affinities
from agent.kernel.split import BOUND, KernelSplit
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.task_parts import NO_PARTS, Parts, Tally, parts_of
from tests.strategies import cpu_sets

CGROUP = "/pod/one"
EVERY = CPUSet(range(8))


class Kernel:
    """One cgroup with its tasks; `asked` has their requested affinities, empty for none.

    It also has the methods of the cpusets interface that the split uses.
    """

    version = 2

    def __init__(self, cpus: CPUSet, *, forgets: bool = False) -> None:
        self.cpus = cpus
        self.forgets = forgets
        self.asked: dict[int, CPUSet] = {}
        self.history: list[dict[int, CPUSet]] = []  # effective affinities after each change
        self.bound: set[int] = set()
        self.forks: list[int] = []  # tasks that start another one at a listing
        self.split = self.split_of(self.tasks)

    def split_of(self, tasks: Callable[[str], list[int]]) -> KernelSplit:
        """Return a split that lists the tasks by a function."""
        affinities = Affinities(self.mask, self.put, lambda _: True)
        return KernelSplit(tasks, self, affinities, forgets_pins=self.forgets)

    def start(self, *masks: str) -> None:
        """Start a task for each affinity; "" requests none."""
        for mask in masks:
            self.asked[len(self.asked) + 1] = CPUSet.parse(mask)

    def mask(self, task: int) -> CPUSet:
        """Return the effective affinity of a task."""
        if task not in self.asked:
            return EMPTY
        return (self.asked[task] & self.cpus) or self.cpus

    def masks(self) -> list[str]:
        """Return the effective affinities of all tasks, as text."""
        return [str(self.mask(task)) for task in sorted(self.asked)]

    def put(self, task: int, cpus: CPUSet) -> CPUSet:
        """Set an affinity, as sched_setaffinity(2) does."""
        if task not in self.bound and cpus & self.cpus:
            self.asked[task] = cpus
            self._changed()
        return self.mask(task)

    def tasks(self, cgroup: str) -> list[int]:
        """List the tasks; one of them may start another afterwards."""
        listed = sorted(self.asked)
        if self.forks:
            parent = self.forks.pop()
            self.asked[max(listed) + 1] = self.asked[parent]
        return listed

    def read(self, cgroup: str) -> CPUSet:
        """Return the cpuset."""
        return self.cpus

    def write(self, cgroup: str, cpus: CPUSet, before: CPUSet = EMPTY) -> None:
        """Write the cpuset; old kernels drop every affinity."""
        assert cpus
        self.cpus = cpus
        if self.forgets:
            self.asked = dict.fromkeys(self.asked, EMPTY)
        self._changed()

    def move(self, before: Parts | str, after: str) -> None:
        """Move the container, its parts written as "home/others"."""
        self.split.move(CGROUP, before if isinstance(before, Parts) else parts(before), parts(after))

    def _changed(self) -> None:
        self.history.append({task: self.mask(task) for task in self.asked})

    # Not used by the split.
    writable = True

    def mems(self, cgroup: str) -> CPUSet:
        """Return no memory nodes."""
        return EMPTY


def parts(text: str) -> Parts:
    """Return the parts written as "home/others"."""
    home, _, others = text.partition("/")
    return Parts(CPUSet.parse(home), CPUSet.parse(others))


@pytest.fixture(params=[False, True], ids=["keeps masks", "forgets masks"])
def kernel(request: pytest.FixtureRequest) -> Kernel:
    """Return a container on its own CPUs 2-3, on both kinds of kernel."""
    return Kernel(CPUSet.parse("2-3"), forgets=bool(request.param))


def test_tasks_stay_home_when_a_container_is_widened(kernel: Kernel) -> None:
    """Tasks without a choice stay on the exclusive CPUs, and a choice among them is kept."""
    kernel.start("", "3")
    kernel.move(NO_PARTS, "2-3/0-1,6")

    assert kernel.cpus == CPUSet.parse("0-3,6")
    assert kernel.masks() == ["2-3", "3"]


def test_tasks_that_start_during_a_move_are_found(kernel: Kernel) -> None:
    """During a move the tasks are listed again until no new task appears."""
    kernel.start("")
    kernel.forks = [1, 2, 1]
    kernel.move(NO_PARTS, "2-3/0-1,6")

    assert kernel.masks() == ["2-3"] * 4


def test_task_with_the_right_affinity_is_read_once() -> None:
    """New tasks cause more listings, but a task with the right affinity is read once."""
    kernel = Kernel(EVERY)
    kernel.start(*["1,5"] * 50, "")
    looks: list[int] = []

    def look(task: int) -> CPUSet:
        looks.append(task)
        return kernel.mask(task)

    split = KernelSplit(kernel.tasks, kernel, Affinities(look, kernel.put, lambda _: True))
    kernel.forks = [51] * 20
    split.pin(CGROUP, NO_PARTS, parts_of(EVERY, CPUSet([1, 5])))
    assert looks.count(1) == 1


def test_helpers_follow_the_shared_part(kernel: Kernel) -> None:
    """A helper on all shared CPUs gets all new ones, and one that loses its CPU gets the rest."""
    kernel.start("")
    kernel.move(NO_PARTS, "2-3/0-1,6-7")
    kernel.start("0-1,6-7", "6")
    kernel.move("2-3/0-1,6-7", "2-3/0-1")
    assert kernel.masks() == ["2-3", "0-1", "0-1"]
    kernel.move("2-3/0-1", "2-3/0-1,7")

    assert kernel.masks() == ["2-3", "0-1,7", "0-1,7"]


def test_tasks_move_with_the_exclusive_cpus(kernel: Kernel) -> None:
    """During the move tasks run only on the old or new exclusive CPUs."""
    kernel.start("")
    kernel.move(NO_PARTS, "2-3/0-1")
    kernel.start("0")
    kernel.history.clear()
    kernel.move("2-3/0-1", "6-7/0-1")

    assert kernel.masks() == ["6-7", "0"]
    if not kernel.forgets:
        assert all(at[2] == CPUSet([0]) for at in kernel.history)
        assert all(at[1].isdisjoint(CPUSet.parse("0-1")) for at in kernel.history)


def test_split_that_ends_leaves_no_affinities(kernel: Kernel) -> None:
    """A container that loses the shared set has tasks without affinities, which follow its cpuset."""
    kernel.start("")
    kernel.move(NO_PARTS, "2-3/0-1")
    kernel.start("0")
    kernel.move("2-3/0-1", "/2-3")
    kernel.write(CGROUP, CPUSet.parse("2-5"))

    assert kernel.masks() == ["2-5", "2-5"]


def test_task_that_cannot_be_moved_does_not_block_others(kernel: Kernel) -> None:
    """A task that cannot be moved is tried once in each step, and other tasks are moved."""
    kernel.start("", "")
    kernel.bound.add(1)
    kernel.move(NO_PARTS, "2-3/0-1")

    assert kernel.masks() == ["0-3", "2-3"]
    assert kernel.split.look(CGROUP, parts("2-3/0-1")) == Tally(home=1, others=0, both=1)


def test_affinity_of_all_cpus_is_kept_after_the_split() -> None:
    """After the split a task's own affinity is not changed, even if it covers all CPUs."""
    kernel = Kernel(CPUSet.parse("2-3"))
    kernel.start("")
    kernel.move(NO_PARTS, "2-3/0-1")
    kernel.asked[1] = CPUSet.parse("0-3")
    kernel.split.pin(CGROUP, parts("2-3/0-1"), parts("2-3/0-1"))

    assert kernel.masks() == ["0-3"]


def test_affinities_dropped_by_a_foreign_write_are_restored() -> None:
    """On old kernels helpers return to the shared CPUs and other tasks to the exclusive ones."""
    kernel = Kernel(CPUSet.parse("2-3"), forgets=True)
    kernel.start("")
    kernel.move(NO_PARTS, "2-3/0-1")
    kernel.start("0-1")
    kernel.split.look(CGROUP, parts("2-3/0-1"))
    kernel.write(CGROUP, EVERY)
    kernel.move("2-3/0-1", "2-3/0-1")

    assert kernel.masks() == ["2-3", "0-1"]


RESERVED = CPUSet([0])  # always shared
STEPS = st.lists(
    st.tuples(
        cpu_sets(EVERY - RESERVED).filter(lambda cpus: bool(cpus) and len(cpus) < 7),
        cpu_sets(EVERY - RESERVED),
    ).map(lambda drawn: Parts(drawn[0], (drawn[1] - drawn[0]) | RESERVED)),
    min_size=2,
    max_size=6,
)


@given(steps=STEPS, choices=st.lists(cpu_sets(EVERY).filter(bool), max_size=4))
@settings(max_examples=300, deadline=None)
def test_helpers_never_run_on_the_exclusive_cpus(steps: list[Parts], choices: list[CPUSet]) -> None:
    """During any moves no helper runs on exclusive CPUs and no other task on shared ones."""
    first, *others = steps
    kernel = Kernel(first.home)
    kernel.start("")
    kernel.split.move(CGROUP, NO_PARTS, first)
    kernel.start(*(str(choice & first.others or first.others) for choice in choices))
    before = first
    for after in others:
        kernel.history.clear()
        kernel.split.move(CGROUP, before, after)
        for at in kernel.history:
            assert at[1] <= before.home | after.home
            for helper in range(2, len(kernel.asked) + 1):
                assert at[helper] <= before.others | after.others
        assert kernel.mask(1) == after.home
        assert all(kernel.mask(helper) <= after.others for helper in range(2, len(kernel.asked) + 1))
        before = after


@given(cpus=cpu_sets(EVERY).filter(bool), home=cpu_sets(EVERY))
def test_other_part_is_the_cpuset_without_exclusive_cpus(cpus: CPUSet, home: CPUSet) -> None:
    """The other part is the cpuset without the exclusive CPUs."""
    made = parts_of(cpus, home & cpus)

    assert made.cpus == cpus
    assert made.home.isdisjoint(made.others)


@pytest.mark.parametrize("forgets", [False, True])
def test_incomplete_move_is_reported_and_the_cpuset_written(forgets: bool) -> None:
    """If a move is incomplete, the cpuset is still written, so that no task stays on CPUs of other containers."""
    kernel = Kernel(EVERY, forgets=forgets)
    kernel.start("", "")
    starting = kernel.tasks

    def start_another(cgroup: str) -> list[int]:
        listed = starting(cgroup)
        kernel.asked[max(listed) + 1] = EMPTY  # without an affinity of its own
        return listed

    kernel.split = kernel.split_of(start_another)
    after = parts("2-3/0-1")
    with pytest.raises(Unsettled, match="faster than the agent moves them"):
        kernel.split.move(CGROUP, NO_PARTS, after)
    assert kernel.cpus == after.cpus
    assert len(kernel.asked) <= 4 * BOUND.rounds

    kernel.split = kernel.split_of(starting)
    kernel.split.move(CGROUP, NO_PARTS, after)
    assert set(kernel.masks()) == {"2-3"}


@pytest.mark.parametrize("forgets", [False, True])
def test_container_of_many_cgroups_leaves_its_cpus(*, forgets: bool) -> None:
    """A container with too many cgroups gets its cpuset and a reason, and its tasks are not moved one by one."""
    kernel = Kernel(EVERY, forgets=forgets)
    kernel.start("", "0-1")

    def crowded(cgroup: str) -> list[int]:
        raise TooMany("1024 cgroups or more")

    kernel.split = kernel.split_of(crowded)
    with pytest.raises(Unsettled, match="1024 cgroups or more"):
        kernel.split.move(CGROUP, NO_PARTS, parts_of(CPUSet.parse("2-4"), CPUSet.parse("2-3")))
    assert str(kernel.cpus) == "2-4"


def test_tasks_of_removed_cgroups_are_forgotten() -> None:
    """Tasks of removed cgroups are dropped from memory."""
    kernel, removed = Kernel(EVERY), set[str]()
    kernel.start("4", "")

    def read(cgroup: str) -> CPUSet:
        if cgroup == "/refused":
            raise Refused("EIO")
        if cgroup in removed:
            raise Gone(cgroup)
        return EVERY

    kernel.read = read  # type: ignore[method-assign]
    parts = parts_of(EVERY, CPUSet([1, 5]))
    kernel.split.look("/refused", parts)
    for number in range(20):
        kernel.split.look(f"/pod/{number}", parts)
        removed.add(f"/pod/{number}")
    assert [*vars(kernel.split)["_away"]] == ["/refused", "/pod/19"]
