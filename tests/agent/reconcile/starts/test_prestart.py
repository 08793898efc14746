"""A new container is written until the runtime's process is in its cgroup, and never once its command runs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent.absent import NoOwners
from agent.clock import Clock
from agent.errors import Gone, Refused, Unavailable
from agent.interfaces import Cgroups, NewContainer, StartState
from agent.reconcile.prestart import PreStartPinner
from agent.reconcile.start_cpus import StartCPUs
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.observed import Owner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ALL, OWN = CPUSet.parse("0-3"), CPUSet.parse("1")
NEW_OWNER = Owner("uid", "main")
NEW = NewContainer("one", NEW_OWNER, "/kubepods/pod1/one")
NOBODY, HELD, RUNNING = (
    StartState(None, has_begun=False),
    StartState(0.02, has_begun=False),
    StartState(0.03, has_begun=True),
)


@dataclass
class Cgroup:
    """One cgroup that goes from one stage of life to the next at every look."""

    stages: Sequence[StartState | Exception]
    cpus: CPUSet = ALL
    overwrites: int = 0  # of our writes, by a runtime that fills what it found empty
    writes: list[CPUSet] = field(default_factory=list)

    def start_state(self, _: str) -> StartState:
        """Return the next stage."""
        if not self.stages:
            raise Gone("one")
        stage, self.stages = self.stages[0], self.stages[1:] or self.stages
        if isinstance(stage, Exception):
            raise stage
        return stage

    def read(self, _: str) -> CPUSet:
        """Return the CPUs."""
        return self.cpus

    def write(self, _: str, cpus: CPUSet) -> None:
        """Take them over, unless the runtime comes in between."""
        self.writes.append(cpus)
        self.overwrites -= 1
        if self.overwrites < 0:
            self.cpus = cpus


def pinned(
    cgroup: Cgroup, cpus: CPUSet | None = OWN
) -> tuple[PreStartPinner, list[tuple[NewContainer, bool]]]:
    """Let a container be made; return its pinner, and what that said of each write: whether the container is right."""
    touched: list[tuple[NewContainer, bool]] = []

    def note(container: NewContainer, is_right: bool) -> None:
        touched.append((container, is_right))

    async def run() -> PreStartPinner:
        cgroups = Cgroups(cgroup, cgroup, cgroup, cgroup, cgroup)  # type: ignore[arg-type]
        target = None if cpus is None else StartCPUs(cpus)
        pinner = PreStartPinner(cgroups, NoOwners(), Clock(), lambda _: target, note)
        pinner.pin(NEW)
        pinner.pin(NEW)
        assert pinner.is_pinning("one")
        while pinner.is_pinning("one"):
            await asyncio.sleep(0.001)
        return pinner

    return asyncio.run(run()), touched


def seconds(pinner: PreStartPinner, cpus: CPUSet) -> float | None:
    """Return how long the container may have run before it had its CPUs."""
    right = pinner.taken("one", cpus)
    assert right is not None
    return right.seconds


def test_right_before_the_command_runs() -> None:
    """Written once while nobody is in it, and seen right with the runtime's process in it: there was no window."""
    cgroup = Cgroup([NOBODY, NOBODY, NOBODY, HELD])
    pinner, touched = pinned(cgroup)
    assert cgroup.writes == [OWN]
    assert seconds(pinner, OWN) == 0.0
    assert pinner.taken("one", OWN) is None
    assert touched == [(NEW, True)] * 2


def test_overwritten_set_is_written_again() -> None:
    """A runtime that fills the cpuset between is followed until its process is there."""
    cgroup = Cgroup([NOBODY] * 6 + [HELD], overwrites=2)
    pinner, touched = pinned(cgroup)
    assert cgroup.writes == [OWN] * 3
    assert touched == [(NEW, False)] * 2 + [(NEW, True)] * 2
    assert seconds(pinner, OWN) == 0.0


def test_command_that_runs_already_is_left_to_a_pass() -> None:
    """What runs on other CPUs is not written here, and nothing is claimed of it."""
    cgroup = Cgroup([RUNNING])
    pinner, touched = pinned(cgroup)
    assert cgroup.writes == []
    assert pinner.taken("one", OWN) is None
    assert touched == [(NEW, False)]


def test_command_that_ran_before_the_look_has_a_window() -> None:
    """Whether it was right at its first instruction is not known, so the age of its process is told."""
    cgroup = Cgroup([NOBODY, RUNNING])
    pinner, touched = pinned(cgroup)
    assert seconds(pinner, OWN) == 0.03
    assert touched[-1] == (NEW, False)


def test_window_is_of_one_set() -> None:
    """A container that shall run elsewhere by now was not seen there."""
    pinner, _ = pinned(Cgroup([HELD]))
    assert pinner.taken("one", ALL) is None


def test_gone_and_untouchable_containers_are_left() -> None:
    """A cgroup that went away, and a container that nobody may touch, end the care."""
    assert pinned(Cgroup([]))[1] == [(NEW, False)]
    untouched = Cgroup([NOBODY], cpus=EMPTY)
    pinned(untouched, cpus=None)
    assert untouched.writes == []


def test_age_that_cannot_be_read_after_the_write_stays_unknown() -> None:
    """The container may have run elsewhere before, so it is not said to have started right."""
    pinner, touched = pinned(Cgroup([NOBODY, Refused("threaded")]))
    assert seconds(pinner, OWN) is None
    assert touched == [(NEW, False)]


# Containers that the runtime does not list yet.


@dataclass
class Listing:
    """A runtime that lists a container, or a sandbox, after some questions."""

    questions: int
    owner_then: Owner | None = NEW_OWNER
    asked: int = 0

    def known(self, _: str) -> Owner | None:
        """Say that it is a sandbox, once that is listed."""
        self.questions -= 1
        if self.owner_then is None and self.questions < 0:
            raise Gone("a sandbox")
        return None

    async def owner(self, _: str) -> Owner:
        """Return the owner, once it is listed."""
        self.asked += 1
        if self.questions >= 0 or self.owner_then is None:
            raise (Unavailable if self.questions % 2 else Gone)("not listed yet")
        return self.owner_then


def pinned_by_pod(
    cgroup: Cgroup, listing: Listing, targets: Mapping[Any, StartCPUs | None]
) -> tuple[PreStartPinner, list[NewContainer]]:
    """Let CRI-O make a container of the pod `uid`; return its pinner, and of which containers that reported writes."""
    touched: list[NewContainer] = []

    async def run() -> PreStartPinner:
        cgroups = Cgroups(cgroup, cgroup, cgroup, cgroup, cgroup)  # type: ignore[arg-type]
        pinner = PreStartPinner(
            cgroups, listing, Clock(), targets.__getitem__, lambda container, _: touched.append(container)
        )
        pinner.pin(NEW._replace(owner="uid"))
        while pinner.is_pinning("one"):
            await asyncio.sleep(0.001)
        return pinner

    return asyncio.run(run()), touched


def test_pod_of_one_set_needs_no_name() -> None:
    """The container is pinned at once, and the runtime is not asked."""
    cgroup, listing = Cgroup([NOBODY, NOBODY, NOBODY, HELD]), Listing(1000)
    pinner, _ = pinned_by_pod(cgroup, listing, {"uid": StartCPUs(OWN)})
    assert (cgroup.writes, listing.asked) == ([OWN], 0)
    assert pinner.is_right("one", OWN)


def test_pod_of_several_sets_is_confined_until_the_name_is_known() -> None:
    """It is kept on the pod's sets together, then on its own, before it runs; only that is a proof."""
    both = StartCPUs(CPUSet.parse("1-2"), is_planned=False)
    cgroup, listing = Cgroup([HELD]), Listing(3)
    pinner, touched = pinned_by_pod(cgroup, listing, {"uid": both, NEW_OWNER: StartCPUs(OWN)})
    assert cgroup.writes == [both.cpus, OWN]
    assert set(touched) == {NEW}
    assert seconds(pinner, OWN) == 0.0


def test_container_that_runs_before_its_name_is_known_is_left_to_a_pass() -> None:
    """What it is to get is not known, so nothing is claimed of it."""
    both = StartCPUs(CPUSet.parse("1-2"), is_planned=False)
    pinner, _ = pinned_by_pod(Cgroup([HELD, HELD, RUNNING]), Listing(1000), {"uid": both})
    assert pinner.taken("one", both.cpus) is None


def test_pod_without_a_plan_is_asked_for_by_name() -> None:
    """Until a plan knows the pod nothing is written, unless the runtime names the container."""
    cgroup = Cgroup([HELD])
    pinned_by_pod(cgroup, Listing(2), {"uid": None, NEW_OWNER: StartCPUs(OWN)})
    assert cgroup.writes == [OWN]


def test_sandbox_is_no_container() -> None:
    """CRI-O makes a cgroup for it too, mostly without a process; once it is listed it is looked at no more."""
    pinner, _ = pinned_by_pod(Cgroup([NOBODY]), Listing(2, None), {"uid": StartCPUs(OWN)})
    assert not pinner.is_right("one", OWN)


def test_container_of_another_set_than_its_pod_is_pinned_again() -> None:
    """An ephemeral container starts on its pod's CPUs, and is moved when it is named."""
    cgroup = Cgroup([HELD])
    targets = {"uid": StartCPUs(OWN), NEW_OWNER: StartCPUs(ALL)}
    pinner, _ = pinned_by_pod(cgroup, Listing(1000), targets)

    async def name() -> None:
        pinner.pin(NEW._replace(owner="uid"))
        assert not pinner.is_pinning("one")
        pinner.pin(NEW)
        while pinner.is_pinning("one"):
            await asyncio.sleep(0.001)

    asyncio.run(name())
    assert cgroup.writes == [OWN, ALL]
