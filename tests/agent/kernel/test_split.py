"""Tasks of a container that runs on more than it owns, on a small model of the kernel: new ones, and those before 6.2."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.errors import Unsettled
from agent.kernel.affinity import Affinities
from agent.kernel.split import BOUND, KernelSplit
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.task_parts import NO_PARTS, Parts, Tally, parts_of
from tests.strategies import cpu_sets

CGROUP = "/pod/one"
EVERY = CPUSet(range(8))


class Kernel:
    """One cgroup with its tasks; `asked` is what each task asked for last, empty when it asked for nothing.

    Its cpusets' interface has what the split uses.
    """

    version = 2

    def __init__(self, cpus: CPUSet, *, forgets: bool = False) -> None:
        self.cpus = cpus
        self.forgets = forgets
        self.asked: dict[int, CPUSet] = {}
        self.history: list[dict[int, CPUSet]] = []  # where tasks could run after each change
        self.bound: set[int] = set()
        self.forks: list[int] = []  # tasks of which one is started by each look from now on
        self.split = KernelSplit(
            self.tasks, self, Affinities(self.mask, self.put, lambda _: True), forgets_pins=forgets
        )

    def start(self, *masks: str) -> None:
        """Start a task for each mask; "" asks for nothing."""
        for mask in masks:
            self.asked[len(self.asked) + 1] = CPUSet.parse(mask)

    def mask(self, task: int) -> CPUSet:
        """Return where a task may run."""
        if task not in self.asked:
            return EMPTY
        return (self.asked[task] & self.cpus) or self.cpus

    def masks(self) -> list[str]:
        """Return where every task may run, as text."""
        return [str(self.mask(task)) for task in sorted(self.asked)]

    def put(self, task: int, cpus: CPUSet) -> CPUSet:
        """Set a mask, as sched_setaffinity(2) does."""
        if task not in self.bound and cpus & self.cpus:
            self.asked[task] = cpus
            self._changed()
        return self.mask(task)

    def tasks(self, cgroup: str) -> list[int]:
        """List the tasks; one of them may start another one right afterwards."""
        listed = sorted(self.asked)
        if self.forks:
            parent = self.forks.pop()
            self.asked[max(listed) + 1] = self.asked[parent]
        return listed

    def read(self, cgroup: str) -> CPUSet:
        """Return the cpuset."""
        return self.cpus

    def write(self, cgroup: str, cpus: CPUSet) -> None:
        """Write the cpuset, which old kernels answer by dropping every mask."""
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
        """Return nothing."""
        return EMPTY


def parts(text: str) -> Parts:
    """Return parts written as "home/others"."""
    home, _, others = text.partition("/")
    return Parts(CPUSet.parse(home), CPUSet.parse(others))


@pytest.fixture(params=[False, True], ids=["keeps masks", "forgets masks"])
def kernel(request: pytest.FixtureRequest) -> Kernel:
    """Return a container on its own CPUs 2-3, on kernels of both kinds."""
    return Kernel(CPUSet.parse("2-3"), forgets=bool(request.param))


def test_tasks_stay_home_when_a_container_is_widened(kernel: Kernel) -> None:
    """Who chose nothing stays on the container's own CPUs, and a choice among them is kept."""
    kernel.start("", "3")
    kernel.move(NO_PARTS, "2-3/0-1,6")

    assert kernel.cpus == CPUSet.parse("0-3,6")
    assert kernel.masks() == ["2-3", "3"]


def test_tasks_that_come_meanwhile_are_found(kernel: Kernel) -> None:
    """A task that starts after a look is looked at again, until there is none."""
    kernel.start("")
    kernel.forks = [1, 2, 1]
    kernel.move(NO_PARTS, "2-3/0-1,6")

    assert kernel.masks() == ["2-3"] * 4


def test_who_is_right_is_looked_at_once() -> None:
    """However many tasks come meanwhile, those that are where they shall be cost nothing more."""
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
    """A helper that has all of the shared part has all of the next one; one whose CPU goes gets the rest of it."""
    kernel.start("")
    kernel.move(NO_PARTS, "2-3/0-1,6-7")
    kernel.start("0-1,6-7", "6")
    kernel.move("2-3/0-1,6-7", "2-3/0-1")
    assert kernel.masks() == ["2-3", "0-1", "0-1"]
    kernel.move("2-3/0-1", "2-3/0-1,7")

    assert kernel.masks() == ["2-3", "0-1,7", "0-1,7"]


def test_home_moves_with_its_tasks(kernel: Kernel) -> None:
    """While old and new CPUs are both the container's, nobody has to run anywhere else."""
    kernel.start("")
    kernel.move(NO_PARTS, "2-3/0-1")
    kernel.start("0")
    kernel.history.clear()
    kernel.move("2-3/0-1", "6-7/0-1")

    assert kernel.masks() == ["6-7", "0"]
    if not kernel.forgets:
        assert all(at[2] == CPUSet([0]) for at in kernel.history)
        assert all(at[1].isdisjoint(CPUSet.parse("0-1")) for at in kernel.history)


def test_parts_that_end_leave_no_masks(kernel: Kernel) -> None:
    """A container that runs on what it owns again grows as if its tasks had never been put anywhere."""
    kernel.start("")
    kernel.move(NO_PARTS, "2-3/0-1")
    kernel.start("0")
    kernel.move("2-3/0-1", "/2-3")
    kernel.write(CGROUP, CPUSet.parse("2-5"))

    assert kernel.masks() == ["2-5", "2-5"]


def test_task_that_cannot_be_moved_holds_nobody_up(kernel: Kernel) -> None:
    """It is tried once in each step, and the others are where they shall be."""
    kernel.start("", "")
    kernel.bound.add(1)
    kernel.move(NO_PARTS, "2-3/0-1")

    assert kernel.masks() == ["0-3", "2-3"]
    assert kernel.split.look(CGROUP, parts("2-3/0-1")) == Tally(home=1, others=0, both=1)


def test_choice_of_everything_stays_one() -> None:
    """Once its tasks are kept apart, what one of them asks for is its own business."""
    kernel = Kernel(CPUSet.parse("2-3"))
    kernel.start("")
    kernel.move(NO_PARTS, "2-3/0-1")
    kernel.asked[1] = CPUSet.parse("0-3")
    kernel.split.pin(CGROUP, parts("2-3/0-1"), parts("2-3/0-1"))

    assert kernel.masks() == ["0-3"]


def test_masks_that_a_foreign_write_dropped_are_made_again() -> None:
    """Old kernels forget them: who was away is put there again, and everyone else home."""
    kernel = Kernel(CPUSet.parse("2-3"), forgets=True)
    kernel.start("")
    kernel.move(NO_PARTS, "2-3/0-1")
    kernel.start("0-1")
    kernel.split.look(CGROUP, parts("2-3/0-1"))
    kernel.write(CGROUP, EVERY)
    kernel.move("2-3/0-1", "2-3/0-1")

    assert kernel.masks() == ["2-3", "0-1"]


RESERVED = CPUSet([0])  # shared, whoever owns what
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
def test_helpers_never_come_home(steps: list[Parts], choices: list[CPUSet]) -> None:
    """Wherever a container moves, at no instant is a helper on its own CPUs, nor another task on shared ones."""
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
def test_parts_make_up_the_whole(cpus: CPUSet, home: CPUSet) -> None:
    """A cpuset and its home tell the other part."""
    made = parts_of(cpus, home & cpus)

    assert made.cpus == cpus
    assert made.home.isdisjoint(made.others)


@pytest.mark.parametrize("forgets", [False, True])
def test_tasks_that_outrun_the_move_are_reported_and_keep_no_cpus(forgets: bool) -> None:
    """The cpuset is written all the same, so that they leave the CPUs of others; the next pass goes on."""
    kernel = Kernel(EVERY, forgets=forgets)
    kernel.start("", "")
    starting = kernel.tasks

    def start_another(cgroup: str) -> list[int]:
        listed = starting(cgroup)
        kernel.asked[max(listed) + 1] = EMPTY  # which may run on all that the container has
        return listed

    kernel.split = KernelSplit(
        start_another, kernel, Affinities(kernel.mask, kernel.put, lambda _: True), forgets_pins=forgets
    )
    after = parts("2-3/0-1")
    with pytest.raises(Unsettled, match="faster than they are moved"):
        kernel.split.move(CGROUP, NO_PARTS, after)
    assert kernel.cpus == after.cpus
    assert len(kernel.asked) <= 4 * BOUND.rounds

    kernel.split = KernelSplit(
        starting, kernel, Affinities(kernel.mask, kernel.put, lambda _: True), forgets_pins=forgets
    )
    kernel.split.move(CGROUP, NO_PARTS, after)
    assert set(kernel.masks()) == {"2-3"}
