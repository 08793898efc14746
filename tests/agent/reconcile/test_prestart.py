"""A new container is written until the runtime's process is in its cgroup, and never once its command runs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from agent.clock import Clock
from agent.errors import Gone
from agent.interfaces import Cgroups, NewContainer, StartState
from agent.reconcile.prestart import PreStartPinner
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.observed import Owner

ALL, OWN = CPUSet.parse("0-3"), CPUSet.parse("1")
NEW = NewContainer("one", Owner("uid", "main"), "/kubepods/pod1/one")
NOBODY, HELD, RUNNING = (
    StartState(None, has_begun=False),
    StartState(0.02, has_begun=False),
    StartState(0.03, has_begun=True),
)


@dataclass
class Cgroup:
    """One cgroup that goes from one stage of life to the next at every look."""

    stages: list[StartState]
    cpus: CPUSet = ALL
    overwrites: int = 0  # of our writes, by a runtime that fills what it found empty
    writes: list[CPUSet] = field(default_factory=list)

    def start_state(self, _: str) -> StartState:
        """Return the next stage."""
        if not self.stages:
            raise Gone("one")
        return self.stages.pop(0) if len(self.stages) > 1 else self.stages[0]

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
        pinner = PreStartPinner(cgroups, Clock(), lambda _: cpus, note)
        pinner.pin(NEW)
        pinner.pin(NEW)
        assert pinner.is_pinning("one")
        while pinner.is_pinning("one"):
            await asyncio.sleep(0.001)
        return pinner

    return asyncio.run(run()), touched


def test_right_before_the_command_runs() -> None:
    """Written once while nobody is in it, and seen right with the runtime's process in it: there was no window."""
    cgroup = Cgroup([NOBODY, NOBODY, NOBODY, HELD])
    pinner, touched = pinned(cgroup)
    assert cgroup.writes == [OWN]
    assert pinner.window("one", OWN) == 0.0
    assert pinner.window("one", OWN) is None
    assert touched == [(NEW, True)] * 2


def test_overwritten_set_is_written_again() -> None:
    """A runtime that fills the cpuset between is followed until its process is there."""
    cgroup = Cgroup([NOBODY] * 6 + [HELD], overwrites=2)
    pinner, touched = pinned(cgroup)
    assert cgroup.writes == [OWN] * 3
    assert touched == [(NEW, False)] * 2 + [(NEW, True)] * 2
    assert pinner.window("one", OWN) == 0.0


def test_command_that_runs_already_is_left_to_a_pass() -> None:
    """What runs on other CPUs is not written here, and nothing is claimed of it."""
    cgroup = Cgroup([RUNNING])
    pinner, touched = pinned(cgroup)
    assert cgroup.writes == []
    assert pinner.window("one", OWN) is None
    assert touched == [(NEW, False)]


def test_command_that_ran_before_the_look_has_a_window() -> None:
    """Whether it was right at its first instruction is not known, so the age of its process is told."""
    cgroup = Cgroup([NOBODY, RUNNING])
    pinner, touched = pinned(cgroup)
    assert pinner.window("one", OWN) == 0.03
    assert touched[-1] == (NEW, False)


def test_window_is_of_one_set() -> None:
    """A container that shall run elsewhere by now was not seen there."""
    pinner, _ = pinned(Cgroup([HELD]))
    assert pinner.window("one", ALL) is None


def test_gone_and_untouchable_containers_are_left() -> None:
    """A cgroup that went away, and a container that nobody may touch, end the care."""
    assert pinned(Cgroup([]))[1] == [(NEW, False)]
    untouched = Cgroup([NOBODY], cpus=EMPTY)
    pinned(untouched, cpus=None)
    assert untouched.writes == []
