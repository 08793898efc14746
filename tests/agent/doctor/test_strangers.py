"""Names and remedies of cgroups whose threads ran on exclusive CPUs."""

from __future__ import annotations

from collections import Counter

import pytest

from agent.doctor.check import Verdict
from agent.doctor.strangers import stranger, stranger_checks
from pinning.machine.cpuset import EMPTY, CPUSet

UID = "0a1b2c3d-0000-4000-8000-000000000001"
OTHERS = CPUSet([0, 1])
SLICE = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice"


@pytest.mark.parametrize(
    ("cgroup", "name", "remedy"),
    [
        pytest.param(
            "/system.slice/chrony.service",
            "chrony.service in /system.slice/",
            "systemctl set-property system.slice AllowedCPUs=0-1",
            id="a service",
        ),
        pytest.param(
            "/system.slice/system-getty.slice/getty@tty1.service",
            "getty@tty1.service in /system.slice/system-getty.slice/",
            "set-property system.slice ",
            id="a service in a slice of its own",
        ),
        pytest.param(
            "/user.slice/user-0.slice/session-3.scope",
            "session-3.scope in /user.slice/user-0.slice/",
            "set-property user.slice ",
            id="a session",
        ),
        pytest.param("/init.scope", "init.scope in /", "set-property init.scope ", id="systemd itself"),
        pytest.param("/user.slice", "/user.slice", "set-property user.slice ", id="a slice"),
        pytest.param("/", "the root cgroup", "taskset -apc 0-1 PID", id="without systemd"),
        pytest.param(
            "/batch", "cgroup /batch", "echo 0-1 > /sys/fs/cgroup/batch/cpuset.cpus", id="made by hand"
        ),
        pytest.param(f"{SLICE}/cri-containerd-ab.scope", "pod team/web", "corepin map", id="a pod"),
        pytest.param(f"/kubepods/pod{UID}/ab", "pod team/web", "corepin map", id="a pod with cgroupfs"),
        pytest.param(
            "/kubepods/pod0a1b2c3d-0000-4000-8000-00000000ffff/ab",
            "pod 0a1b2c3d-0000-4000-8000-00000000ffff",
            "corepin map",
            id="a pod that the agent does not know",
        ),
        pytest.param(
            f"{SLICE}/crio-conmon-ab.scope",
            "conmon, CRI-O's monitor of a container in pod team/web",
            'infra_ctr_cpuset = "0-1"',
            id="CRI-O's monitor",
        ),
        pytest.param(
            "/system.slice/crio-conmon-ab.scope",
            "conmon, CRI-O's monitor of a container",
            'conmon_cgroup = "pod"',
            id="CRI-O's monitor outside of pods",
        ),
        pytest.param("/kubepods/besteffort", "a pod (/kubepods/besteffort)", "corepin map", id="no uid"),
    ],
)
def test_cgroup_has_a_name_and_a_remedy(cgroup: str, name: str, remedy: str) -> None:
    """A unit is named with its slice, because the remedy confines the slice."""
    found = stranger(cgroup, OTHERS, {UID: "team/web"})
    assert found.name == name
    assert remedy in found.remedy


def test_without_exclusive_cpus_the_check_passes() -> None:
    """The check says that no CPU is exclusive."""
    (check,) = stranger_checks({"/system.slice": Counter(x=1)}, EMPTY, OTHERS, {})
    assert (check.verdict, check.message) == (Verdict.OK, "no CPU is exclusive now")
