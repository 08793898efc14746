"""`corepin doctor --noise` on a real kernel: it names each stranger on exclusive CPUs, and none elsewhere.

An agent moves a process that enters a container by exec.
"""

from __future__ import annotations

from typing import Any

import pytest

from pinning.machine.cpuset import CPUSet
from tests.environments.guest.guest import Report

OTHERS = "0-1,4-5"  # the four CPUs that are not the pod's
STRANGERS = {  # the subject, and what message and remedy say
    "interrupt": (
        "interrupts",
        "interrupt {interrupt} (",
        "echo {others} > /proc/irq/{interrupt}/smp_affinity_list",
    ),
    "unbound workqueue": (
        "kernel threads",
        "of unbound workqueues ran",
        "CPUs {others} with the mask /sys/devices/virtual/workqueue/cpumask",
    ),
    "kernel thread": ("kernel threads", "kcompactd0 ran", "taskset -pc {others} $(pgrep -x kcompactd0)"),
    "service": (
        "strangers",
        "1 thread (noisy-service) of noisy.service in /system.slice/",
        "set-property system.slice AllowedCPUs={others}",
    ),
    "session": (
        "strangers",
        "1 thread (noisy-session) of session-3.scope in /user.slice/",
        "set-property user.slice AllowedCPUs={others}",
    ),
    "container of Docker": (
        "strangers",
        "1 thread (noisy-machine) of docker-0123456789ab.scope in /machine.slice/",
        "set-property machine.slice AllowedCPUs={others}",
    ),
    "monitor of CRI-O": (
        "strangers",
        "1 thread (noisy-conmon) of conmon, CRI-O's monitor",
        'infra_ctr_cpuset = "{others}"',
    ),
    "pod": (
        "strangers",
        "1 thread (noisy-pod) of pod 0a1b2c3d-0000-4000-8000-000000000001 ran",
        "corepin map",
    ),
    "root cgroup": ("strangers", "1 thread (noisy-root) of the root cgroup", "taskset -apc {others} PID"),
    "real-time thread": (
        "strangers",
        "1 thread (noisy-realtime) of realtime.service",
        "set-property system.slice AllowedCPUs={others}",
    ),
    "exec": ("exec", "sh (1) ran in default/hot/app, started from outside", "httpGet"),
}


def checks(quiet: Report, step: str) -> list[dict[str, Any]]:
    """Return the checks of noise of one step."""
    (found,) = (it for it in quiet.all("doctor") if it["step"] == step)
    noise = {subject for subject, _, _ in STRANGERS.values()} | {"not movable"}
    return [it for it in found["checks"] if it["subject"] in noise]


def findings(quiet: Report, step: str) -> list[dict[str, Any]]:
    """Return the checks with a finding."""
    return [it for it in checks(quiet, step) if it["verdict"] != "ok"]


def test_nothing_is_found_on_cpus_that_all_keep_off(quiet: Report) -> None:
    """Interrupts, workers, threads and daemons on other CPUs are no findings."""
    assert findings(quiet, "none") == []


@pytest.mark.parametrize("stranger", STRANGERS)
def test_stranger_is_found(quiet: Report, stranger: str) -> None:
    """Each foreign thread has one finding with its name and the remedy."""
    subject, message, remedy = STRANGERS[stranger]
    facts = {"interrupt": quiet.one("planted")["interrupt"], "others": OTHERS}
    found = [
        it
        for it in findings(quiet, "all")
        if it["subject"] == subject and message.format(**facts) in it["told"]
    ]

    assert [remedy.format(**facts) in it["remedy"] for it in found] == [True]


def test_no_other_is_found(quiet: Report) -> None:
    """There is a finding for each foreign thread and no other finding."""
    assert len(findings(quiet, "all")) == len(STRANGERS), findings(quiet, "all")


def test_what_serves_the_cpus_is_named_as_not_movable(quiet: Report) -> None:
    """Bound workers, softirqs and timer ticks of the CPUs are listed as not movable, and are no findings."""
    said = [it["told"] for it in checks(quiet, "all") if it["subject"] == "not movable"]

    assert [it.partition(": ")[0] for it in said] == [
        "interrupts of the kernel",
        "softirqs",
        "threads of the kernel that serve one CPU",
    ]
    assert "LOC " in said[0]
    assert "kworker/" in said[2]


def test_an_agent_in_a_pod_moves_execs(quiet: Report) -> None:
    """An agent in its own cgroup namespace finds execs although it sees paths without the pods' root."""
    seen = quiet.one("exec")
    cpus, (mine, its) = CPUSet.parse(seen["cpus"]), seen["namespaces"]
    last = CPUSet([max(cpus)])

    assert mine != its
    assert len(cpus) > 1
    assert CPUSet.parse(seen["allowed"]) == last
    assert {name: seen["shown"][name] for name in ("count", "placed", "cpus")} == {
        "count": 1,
        "placed": 1,
        "cpus": str(last),
    }
