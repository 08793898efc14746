"""Names and remedies of cgroups whose threads ran on exclusive CPUs."""

from __future__ import annotations

from collections import Counter

from agent.doctor.check import Verdict
from agent.doctor.strangers import stranger, stranger_checks
from pinning.machine.cpuset import EMPTY, CPUSet
from tests.tables import table

UID = "0a1b2c3d-0000-4000-8000-000000000001"
OTHERS = CPUSet([0, 1])
SLICE = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice"


@table(
    "cgroup, name, remedy",
    {
        "a service": (
            "/system.slice/chrony.service",
            "chrony.service in /system.slice/",
            "systemctl set-property system.slice AllowedCPUs=0-1",
        ),
        "a service in a slice of its own": (
            "/system.slice/system-getty.slice/getty@tty1.service",
            "getty@tty1.service in /system.slice/system-getty.slice/",
            "set-property system.slice ",
        ),
        "a session": (
            "/user.slice/user-0.slice/session-3.scope",
            "session-3.scope in /user.slice/user-0.slice/",
            "set-property user.slice ",
        ),
        "systemd itself": ("/init.scope", "init.scope in /", "set-property init.scope "),
        "a slice": ("/user.slice", "/user.slice", "set-property user.slice "),
        "without systemd": ("/", "the root cgroup", "taskset -apc 0-1 PID"),
        "made by hand": ("/batch", "cgroup /batch", "echo 0-1 > /sys/fs/cgroup/batch/cpuset.cpus"),
        "named by a user": (
            "/lxc/1000/a;reboot;$(id)",
            "cgroup /lxc/1000/a;reboot;$(id)",
            "echo 0-1 > '/sys/fs/cgroup/lxc/1000/a;reboot;$(id)/cpuset.cpus'",
        ),
        "a slice named by a user": (
            "/a;reboot;.slice/x.service",
            "x.service in /a;reboot;.slice/",
            "systemctl set-property 'a;reboot;.slice' ",
        ),
        "a pod": (f"{SLICE}/cri-containerd-ab.scope", "pod team/web", "corepin map"),
        "a pod with cgroupfs": (f"/kubepods/pod{UID}/ab", "pod team/web", "corepin map"),
        "a pod that the agent does not know": (
            "/kubepods/pod0a1b2c3d-0000-4000-8000-00000000ffff/ab",
            "pod 0a1b2c3d-0000-4000-8000-00000000ffff",
            "corepin map",
        ),
        "CRI-O's monitor": (
            f"{SLICE}/crio-conmon-ab.scope",
            "conmon, CRI-O's monitor of a container in pod team/web",
            'infra_ctr_cpuset = "0-1"',
        ),
        "CRI-O's monitor outside of pods": (
            "/system.slice/crio-conmon-ab.scope",
            "conmon, CRI-O's monitor of a container",
            'conmon_cgroup = "pod"',
        ),
        "no uid": ("/kubepods/besteffort", "a pod (/kubepods/besteffort)", "corepin map"),
    },
)
def test_cgroup_has_a_name_and_a_remedy(cgroup: str, name: str, remedy: str) -> None:
    """The message names a unit with its slice, because the remedy confines the slice."""
    found = stranger(cgroup, OTHERS, {UID: "team/web"})
    assert found.name == name
    assert remedy in found.remedy


def test_without_exclusive_cpus_the_check_passes() -> None:
    """The check says that no CPU is exclusive."""
    (check,) = stranger_checks({"/system.slice": Counter(x=1)}, EMPTY, OTHERS, {})
    assert (check.verdict, check.message) == (Verdict.OK, "no CPU is exclusive now")
