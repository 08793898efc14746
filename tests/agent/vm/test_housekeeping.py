"""KubeVirt's housekeeping cgroup, on both cgroup versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.vm.housekeeping import Housekeeping, read_housekeeping
from pinning.machine.cpuset import CPUSet
from tests.agent.vm.fake_host import FakeHost

COMPUTE = "/kubepods/pod1/compute"


@pytest.mark.parametrize("version", [1, 2])
def test_housekeeping_has_cpus_and_tasks(tmp_path: Path, version: int) -> None:
    """`read_housekeeping` returns the emulator's CPUs and tasks, and None for a VM without an isolated emulator."""
    host = FakeHost(tmp_path / "host", version)
    assert host.roots.hierarchy
    host.cgroup(COMPUTE, [304], [308, 309])
    assert read_housekeeping(host.roots.hierarchy, COMPUTE) is None

    host.cgroup(f"{COMPUTE}/housekeeping", tasks=[304, 306], cpus="4")

    assert read_housekeeping(host.roots.hierarchy, COMPUTE) == Housekeeping(
        CPUSet([4]), frozenset({304, 306})
    )
