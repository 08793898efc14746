"""Pinning by affinity alone, while a container starts processes faster than they are moved."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from agent.errors import Unsettled
from agent.local.affinity import MARK, AffinityCgroups
from pinning.machine.cpuset import CPUSet

CGROUP = f"/corepin-test-affinity-{os.getpid()}/p/app"
ALL = CPUSet(os.sched_getaffinity(0))
LAST = CPUSet([max(ALL)])


class Outrunning(AffinityCgroups):
    """A cgroup in which each listing starts another process."""

    def __init__(self, stack: ExitStack) -> None:
        super().__init__(CGROUP.rpartition("/p/")[0])
        self._stack = stack
        self.starts = True

    def tasks(self, cgroup: str) -> list[int]:
        """Start another process and return all tasks."""
        if self.starts:
            started = subprocess.Popen(["sleep", "1000"], env={**os.environ, MARK: CGROUP})
            self._stack.callback(started.wait)
            self._stack.callback(started.kill)
        return super().tasks(cgroup)


@pytest.fixture
def outrunning() -> Iterator[Outrunning]:
    """Return such a cgroup; its processes are killed afterwards."""
    with ExitStack() as stack:
        made = Outrunning(stack)
        made.make(CGROUP)
        yield made
        made.starts = False


@pytest.mark.skipif(len(ALL) == 1, reason="one CPU is all there is")
def test_incomplete_move_of_a_cgroup_raises(outrunning: Outrunning) -> None:
    """The old CPUs are still reported, so that others wait, until a retry moves all processes."""
    with pytest.raises(Unsettled, match="start threads faster than these are moved"):
        outrunning.write(CGROUP, LAST)
    assert outrunning.read(CGROUP) == ALL

    outrunning.starts = False
    outrunning.write(CGROUP, LAST)
    assert outrunning.read(CGROUP) == LAST
    assert {tuple(os.sched_getaffinity(pid)) for pid in outrunning.pids(CGROUP)} == {tuple(LAST)}
