"""A fake host in plain folders, and its virtual machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.kernel.affinity import Affinities
from agent.vm.machines import KernelVirtualMachines
from tests.agent.vm.fake_host import FakeHost
from tests.agent.vm.launched import Masks


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    """Return a host with cgroup v2 and no processes."""
    return FakeHost(tmp_path / "host")


@pytest.fixture
def masks() -> Masks:
    """Return affinities of threads that may run on every CPU."""
    return Masks()


@pytest.fixture
def now() -> list[float]:
    """Return a clock that the test sets."""
    return [100.0]


@pytest.fixture
def machines(host: FakeHost, masks: Masks, now: list[float]) -> KernelVirtualMachines:
    """Return the machines of a host."""
    affinities = Affinities(masks.read, masks.set, masks.is_movable)
    return KernelVirtualMachines(host.roots, affinities, lambda: now[0])
