"""The checks of the doctor and their verdicts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.doctor.check import Check, Verdict
from agent.doctor.checks import Facts, ForeignThreads, examine
from agent.doctor.groups import GroupFacts, group_checks
from agent.kernel.sysfs import read_topology
from pinning.contract import KubeletPolicy
from pinning.machine.cpuset import EMPTY, CPUSet
from tests.agent.doctor.nodes import AGENT, BARE, FINE
from tests.machines import materialise
from tests.tables import table

LOCAL = replace(AGENT, runtime="local processes in cgroups v1")
PROC = Path("/proc")


def of(facts: Facts, verdict: Verdict) -> list[Check]:
    """Return the checks with one verdict."""
    return [check for check in examine(facts) if check.verdict is verdict]


def test_fine_node_has_no_findings() -> None:
    """Every check passes, without findings or unknowns."""
    checks = examine(FINE)

    assert {check.verdict for check in checks} == {Verdict.OK}
    assert [check.subject for check in checks] == [
        "cgroups",
        "pods' cgroup",
        "runtime",
        "NRI",
        "required CPUs",
        "kubelet",
        "kubelet's CPUs",
        "reserved CPUs",
        "other writers",
        "agent",
        "strangers",
        "kernel",
        "L2 cache",
    ]


@table(
    "facts, subject, message, remedy",
    {
        "cgroups": ({"cgroup_version": None}, "cgroups", "no cpuset controller", "cpuset controller"),
        "read-only": ({"cgroup_writable": False}, "cgroups", "version 2, but", "root"),
        "kubelet's cgroup root": (
            {"pod_root": None},
            "pods' cgroup",
            "neither /kubepods.slice nor /kubepods",
            "--kubelet-cgroup-root",
        ),
        "checkpoint of a later version": (
            {"agent": None, "unknown_needs": frozenset({"pools", "devices"})},
            "agent",
            "it moves nothing: the checkpoint needs devices, pools",
            "or a later one",
        ),
        "runtime away": (
            {"runtime": None, "missing": {"runtime": "/x.sock does not exist"}},
            "runtime",
            "/x.sock does not exist",
            "start it",
        ),
        "static": ({"kubelet": KubeletPolicy.STATIC}, "kubelet", "only observes", "cpuManagerPolicy: none"),
        "static, as the agent knows from the kubelet": (
            {
                "kubelet": KubeletPolicy.UNKNOWN,
                "agent": replace(AGENT, kubelet=KubeletPolicy.STATIC, observes=True),
            },
            "kubelet",
            "only observes",
            "cpuManagerPolicy: none",
        ),
        "no pods": (
            {"agent": replace(AGENT, pods_complete=False)},
            "pods",
            "no container loses its CPUs",
            "log",
        ),
        "no containers": (
            {"agent": replace(AGENT, containers_complete=False)},
            "containers",
            "does not list",
            "log",
        ),
        "list too large": (
            {
                "agent": replace(
                    AGENT, containers_complete=False, runtime_reason="exceeds 16 MiB: delete pods"
                )
            },
            "containers",
            "does not list them for the agent (exceeds 16 MiB: delete pods)",
            "log",
        ),
        "OOM kill": (
            {"agent": replace(AGENT, memory_kills=("corepin-agent-x/agent: 2026-11-23T10:00:00Z",))},
            "memory",
            "memory limit: corepin-agent-x/agent: 2026-11-23T10:00:00Z",
            "raise resources.limits.memory",
        ),
        "kubelet's CPUs": (
            {"kubelet_millicores": 4000},
            "kubelet's CPUs",
            "4000m",
            'reservedSystemCPUs: "0"',
        ),
        "writer": ({"writers": ("tuned (pid 812)",)}, "other writers", "tuned (pid 812)", "stop it"),
        "another plugin": (
            {"agent": replace(AGENT, other_plugins=("10-balloons",))},
            "other writers",
            "another NRI plugin (10-balloons) sets CPUs too",
            "stop it",
        ),
        "conflict": (
            {"agent": replace(AGENT, conflicts=("a/b/c",))},
            "conflicts",
            "a/b/c",
            "the program that writes",
        ),
        "failure": ({"agent": replace(AGENT, failures=("a/b/c",))}, "failures", "a/b/c", "log"),
        "refusal": ({"agent": replace(AGENT, refusals=("a/b/c: no",))}, "refusals", "a/b/c: no", "again"),
        "stranger": (
            {"foreign_threads": ForeignThreads({"/system.slice": Counter(b=1, a=1, d=1, c=2)})},
            "strangers",
            "5 threads (c, a, b, ...) of /system.slice ran on exclusive CPUs 2",
            "AllowedCPUs=",
        ),
    },
)
def test_finding_has_a_remedy(facts: dict[str, object], subject: str, message: str, remedy: str) -> None:
    """Each fault gives one finding with a remedy."""
    (finding,) = of(replace(FINE, **facts), Verdict.FINDING)  # type: ignore[arg-type]

    assert finding.subject == subject
    assert message in finding.message
    assert remedy in finding.remedy


def test_missing_parts_are_unknown_with_a_reason() -> None:
    """A missing agent, kubelet or runtime is no finding; unknown checks have a reason and a remedy."""
    unknown = {check.subject: check for check in of(BARE, Verdict.UNKNOWN)}

    assert unknown.keys() == {"runtime", "kubelet's CPUs", "agent", "strangers", "L2 cache"}
    assert "nobody listens" in unknown["agent"].message
    assert all(check.remedy for check in unknown.values())
    assert "kubelet" in {check.subject for check in of(BARE, Verdict.OK)}


def test_static_pools_leave_less_to_plain_containers() -> None:
    """The CPUs of plain containers are shown beside those that the scheduler may fill."""
    assert FINE.agent
    facts = replace(FINE, agent=replace(FINE.agent, static_shared=CPUSet.parse("0,4")))
    (check,) = (check for check in examine(facts) if check.subject == "kubelet's CPUs")
    assert check.verdict is Verdict.OK
    assert check.message.endswith(", containers without CPUs of their own share 2000m (CPUs 0,4)")


def test_strict_reserved_cpus_need_a_smaller_allocatable() -> None:
    """If all allocatable CPUs can be filled, the kubelet places one more than the agent allocates."""
    assert FINE.agent
    facts = replace(FINE, agent=replace(FINE.agent, is_strict=True))
    (check,) = (check for check in examine(facts) if check.subject == "kubelet's CPUs")
    assert check.verdict is Verdict.FINDING
    assert "because strictReserved keeps one more CPU" in check.message


@table(
    "agent, verdict, said",
    {
        "fits": ({}, Verdict.OK, "kube-system request 750m, and 2000m are reserved (0,4): systemNamespaces"),
        "strict is proposed too": (
            {},
            Verdict.OK,
            "and strictReserved: true would keep other containers off",
        ),
        "strict already": ({"is_strict": True}, Verdict.OK, "would keep them there"),
        "does not fit": ({"system_millicores": 2001}, Verdict.OK, "too few to keep them there"),
        "configured": ({"system_namespaces": ("a", "b-*")}, Verdict.OK, "of a, b-* request 750m"),
        "more than reserved": (
            {"system_namespaces": ("a",), "system_millicores": 2001},
            Verdict.FINDING,
            "2001m",
        ),
    },
)
def test_system_namespaces_are_compared_with_the_reserved_cpus(
    agent: dict[str, Any], verdict: Verdict, said: str
) -> None:
    """Fitting system namespaces are proposed, and configured ones that do not fit are a finding."""
    assert FINE.agent
    given = {"reserved": CPUSet.parse("0,4"), "system_millicores": 750, **agent}
    (check,) = (
        it
        for it in examine(replace(FINE, agent=replace(FINE.agent, **given)))
        if it.subject == "reserved CPUs"
    )
    assert (check.verdict, said in check.message) == (verdict, True)


@pytest.mark.parametrize("agent", [None, {"observes": True}])
def test_unused_reserved_cpus_are_not_checked(agent: dict[str, Any] | None) -> None:
    """An agent that does not answer, or only observes, reserves nothing."""
    assert FINE.agent
    facts = replace(FINE, agent=replace(FINE.agent, **agent) if agent else None)
    assert "reserved CPUs" not in {check.subject for check in examine(facts)}


def test_local_runtime_needs_no_kubelet_and_no_cluster() -> None:
    """With local processes no check of the kubelet is missing, even if a kubelet runs on the machine."""
    facts = replace(FINE, agent=LOCAL, pod_root=None, kubelet_millicores=None, runtime=None)
    checks = {check.subject: check for check in examine(facts)}

    assert {check.verdict for check in checks.values()} == {Verdict.OK}
    assert {"pods' cgroup", "NRI"} & checks.keys() == set()
    assert checks["runtime"].message == LOCAL.runtime
    assert (
        checks["kubelet's CPUs"].message
        == "not compared with corepin's, because no scheduler places these pods"
    )


def test_checks_that_need_root_are_unknown_to_others() -> None:
    """A user without write access to cgroups does not know whether the agent has it."""
    (check,) = of(replace(FINE, cgroup_writable=None), Verdict.UNKNOWN)

    assert (check.subject, check.remedy) == ("cgroups", "run this command as root")


def test_unknown_kubelet_policy_is_unknown() -> None:
    """With its state file elsewhere, the kubelet's check is unknown and names the flag."""
    (check,) = of(replace(FINE, kubelet=KubeletPolicy.UNKNOWN), Verdict.UNKNOWN)

    assert "--kubelet-state" in check.remedy


def test_number_of_foreign_cgroups_is_limited() -> None:
    """The busiest cgroups are named, and the others are counted."""
    foreign_threads = ForeignThreads({f"/s{number}": Counter(x=number) for number in range(1, 12)})
    findings = of(replace(FINE, foreign_threads=foreign_threads), Verdict.FINDING)

    assert findings[0].message.startswith("11 threads (x) of cgroup /s11 ")
    assert findings[-1].message == "and threads of 3 more cgroups"
    assert len(findings) == 9


def test_without_exclusive_cpus_no_thread_is_foreign() -> None:
    """The check of foreign threads passes and says that no CPU is exclusive."""
    checks = of(replace(FINE, agent=replace(AGENT, exclusive=EMPTY)), Verdict.OK)

    assert "no CPU is exclusive now" in {check.message for check in checks}


def test_l2_shared_by_several_cores_is_a_finding(tmp_path: Path) -> None:
    """Efficiency cores in groups of four share their L2."""
    topology = read_topology(materialise("core-i7-12700h", tmp_path))
    (finding,) = of(replace(FINE, topology=topology), Verdict.FINDING)

    assert finding.subject == "L2 cache"
    assert "CPUs 12-15, 16-19" in finding.message


def test_observing_agent_has_no_findings() -> None:
    """An observing agent allocates nothing, so nothing is compared with the kubelet."""
    observing = replace(FINE, agent=replace(AGENT, observes=True), kubelet_millicores=4000)
    checks = {check.subject: check for check in examine(observing)}

    assert checks["NRI"].message == "not used, because corepin only observes here"
    assert {check.verdict for check in checks.values()} == {Verdict.OK}
    assert "only observes" in checks["agent"].message
    assert "allocates none" in checks["kubelet's CPUs"].message


def test_unreachable_cluster_is_unknown() -> None:
    """The node's amounts are not compared, and the remedy says how to reach the cluster."""
    facts = replace(FINE, kubelet_millicores=None, missing={"kubelet_millicores": "no cluster"})
    (check,) = of(facts, Verdict.UNKNOWN)

    assert "no cluster" in check.message
    assert "KUBECONFIG" in check.remedy


THERE = frozenset({"big", "small"})


@pytest.mark.parametrize(
    ("facts", "verdict", "words"),
    [
        pytest.param(
            GroupFacts("big", "big", THERE), "ok", "config.big.yaml, as the label", id="as labelled"
        ),
        pytest.param(
            *(GroupFacts("bgi", None, THERE), "finding"),
            "label corepin.io/cpu-group=bgi, but the agents' ConfigMap lacks the key config.bgi.yaml: an agent that",
            id="no key",
        ),
        pytest.param(
            *(GroupFacts("small", "big", THERE), "finding"),
            "label corepin.io/cpu-group is small, but the agent runs with config.big.yaml",
            id="changed",
        ),
        pytest.param(
            GroupFacts("", "big"),
            "finding",
            "label corepin.io/cpu-group was removed",
            id="removed, nothing mounted",
        ),
        pytest.param(
            GroupFacts("small", ""), "finding", "but the agent runs with config.yaml", id="labelled since"
        ),
        pytest.param(GroupFacts(None, "big", THERE), "unknown", "is not known", id="no cluster"),
    ],
)
def test_group_and_label_are_compared(facts: GroupFacts, verdict: str, words: str) -> None:
    """The check names the label and the keys, and has a remedy."""
    (check,) = group_checks(facts)
    assert check.verdict == verdict
    assert words in check.message
    assert bool(check.remedy) is (verdict != "ok")


@pytest.mark.parametrize(
    "facts",
    [
        GroupFacts(),
        GroupFacts("", ""),
        GroupFacts("", None, THERE),
        GroupFacts(None, ""),
        GroupFacts(None, None),
    ],
)
def test_without_groups_there_is_no_check(facts: GroupFacts) -> None:
    """There is no check for a node in no group, or without any known facts."""
    assert list(group_checks(facts)) == []
