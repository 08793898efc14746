"""What is examined and what comes of it, case by case; and reading the facts of this machine."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.doctor.checks import AgentFacts, Check, Facts, ForeignThreads, Verdict, examine
from agent.doctor.facts import Places, _cgroup, _foreign_threads, _threads, agent_facts, read_facts
from agent.kernel.sysfs import read_topology
from agent.kubelet.policy import KubeletPolicy
from agent.serve.state_json import to_dict
from pinning.machine.cpuset import EMPTY, CPUSet
from tests.agent.states import EXCLUSIVE, ISOLATE, MACHINE, bound, state_of
from tests.machines import materialise
from tests.pods import container

if TYPE_CHECKING:
    from tests.agent.containerd import Containerd

AGENT = AgentFacts(CPUSet([1, 2, 3]), CPUSet([0]), CPUSet([2]), "containerd 2.4.2")
LOCAL = replace(AGENT, runtime="local processes in cgroups v1")
PROC = Path("/proc")
FINE = Facts(
    kubelet=KubeletPolicy.NONE,
    kubelet_runs=True,
    topology=MACHINE,
    agent=AGENT,
    kubelet_millicores=3000,
    runtime="containerd 2.4.2",
    nri=True,
    cgroup_version=2,
    cgroup_writable=True,
    pod_roots=("/kubepods.slice", "/kubepods"),
    pod_root="/kubepods",
    foreign_threads=ForeignThreads({}, 4),
)
BARE = Facts(KubeletPolicy.UNKNOWN, kubelet_runs=False, missing={"agent": "nobody listens"})


def of(facts: Facts, verdict: Verdict) -> list[Check]:
    """Return the checks of one verdict."""
    return [check for check in examine(facts) if check.verdict is verdict]


def test_fine_node_has_no_findings() -> None:
    """Everything is looked at, nothing is to be mended, and nothing stayed unknown."""
    checks = examine(FINE)

    assert {check.verdict for check in checks} == {Verdict.OK}
    assert [check.subject for check in checks] == [
        "cgroups",
        "pods' cgroup",
        "runtime",
        "NRI",
        "kubelet",
        "kubelet's CPUs",
        "other writers",
        "agent",
        "strangers",
        "kernel",
        "L2 cache",
    ]


@pytest.mark.parametrize(
    ("facts", "subject", "told", "remedy"),
    [
        pytest.param(
            {"cgroup_version": None}, "cgroups", "no cpuset controller", "cpuset controller", id="cgroups"
        ),
        pytest.param({"cgroup_writable": False}, "cgroups", "version 2, and", "root", id="read-only"),
        pytest.param(
            {"pod_root": None},
            "pods' cgroup",
            "neither /kubepods.slice nor /kubepods",
            "--kubelet-cgroup-root",
            id="kubelet's cgroup root",
        ),
        pytest.param(
            {"runtime": None, "missing": {"runtime": "/x.sock is not there"}},
            "runtime",
            "/x.sock is not there",
            "start it",
            id="runtime away",
        ),
        pytest.param(
            {"kubelet": KubeletPolicy.STATIC},
            "kubelet",
            "only observes",
            "cpuManagerPolicy: none",
            id="static",
        ),
        pytest.param(
            {
                "kubelet": KubeletPolicy.UNKNOWN,
                "agent": replace(AGENT, kubelet=KubeletPolicy.STATIC, observes=True),
            },
            "kubelet",
            "only observes",
            "cpuManagerPolicy: none",
            id="static, as the agent knows from the kubelet",
        ),
        pytest.param(
            {"agent": replace(AGENT, pods_complete=False)}, "pods", "takes from nobody", "log", id="no pods"
        ),
        pytest.param(
            {"agent": replace(AGENT, containers_complete=False)},
            "containers",
            "does not list",
            "log",
            id="no containers",
        ),
        pytest.param(
            {"kubelet_millicores": 4000},
            "kubelet's CPUs",
            "4000m",
            'reservedSystemCPUs: "0"',
            id="kubelet's CPUs",
        ),
        pytest.param(
            {"writers": ("tuned (pid 812)",)}, "other writers", "tuned (pid 812)", "stop it", id="writer"
        ),
        pytest.param(
            {"agent": replace(AGENT, fights=("a/b/c",))}, "fights", "a/b/c", "who writes", id="fight"
        ),
        pytest.param(
            {"agent": replace(AGENT, failures=("a/b/c",))}, "failures", "a/b/c", "log", id="failure"
        ),
        pytest.param(
            {"agent": replace(AGENT, refusals=("a/b/c: no",))}, "refusals", "a/b/c: no", "again", id="refusal"
        ),
        pytest.param(
            {"foreign_threads": ForeignThreads({"/system.slice": Counter(b=1, a=1, d=1, c=2)})},
            "strangers",
            "5 threads (c, a, b, ...) of /system.slice ran on exclusive CPUs 2",
            "AllowedCPUs=",
            id="stranger",
        ),
    ],
)
def test_finding_has_its_remedy(facts: dict[str, object], subject: str, told: str, remedy: str) -> None:
    """Each thing that is wrong is one finding that says what to do."""
    (finding,) = of(replace(FINE, **facts), Verdict.FINDING)  # type: ignore[arg-type]

    assert finding.subject == subject
    assert told in finding.told
    assert remedy in finding.remedy


def test_bare_machine_says_what_is_missing() -> None:
    """Without agent, kubelet and runtime nothing is wrong by that; what could not be seen has its reason."""
    unknown = {check.subject: check for check in of(BARE, Verdict.UNKNOWN)}

    assert unknown.keys() == {"runtime", "kubelet's CPUs", "agent", "strangers", "L2 cache"}
    assert "nobody listens" in unknown["agent"].told
    assert all(check.remedy for check in unknown.values())
    assert "kubelet" in {check.subject for check in of(BARE, Verdict.OK)}


def test_local_runtime_needs_no_kubelet_and_no_cluster() -> None:
    """Beside the agent's own processes nothing of the kubelet is missing, even where one runs for others."""
    facts = replace(FINE, agent=LOCAL, pod_root=None, kubelet_millicores=None, runtime=None)
    checks = {check.subject: check for check in examine(facts)}

    assert {check.verdict for check in checks.values()} == {Verdict.OK}
    assert "pods' cgroup" not in checks
    assert checks["kubelet's CPUs"].told == "not compared with corepin's: no scheduler places these pods"


def test_who_is_not_root_is_told_what_only_root_can_see() -> None:
    """That he may not write cgroups says nothing of the agent."""
    (check,) = of(replace(FINE, cgroup_writable=None), Verdict.UNKNOWN)

    assert (check.subject, check.remedy) == ("cgroups", "ask as root")


def test_kubelet_with_unknown_policy_is_said() -> None:
    """A kubelet whose state file is elsewhere is no finding, and not fine either."""
    (check,) = of(replace(FINE, kubelet=KubeletPolicy.UNKNOWN), Verdict.UNKNOWN)

    assert "--kubelet-state" in check.remedy


def test_many_strangers_stay_readable() -> None:
    """The busiest cgroups are named, the rest is counted."""
    foreign_threads = ForeignThreads({f"/s{number}": Counter(x=number) for number in range(1, 12)})
    told = [check.told for check in of(replace(FINE, foreign_threads=foreign_threads), Verdict.FINDING)]

    assert told[0].startswith("11 threads (x) of /s11 ")
    assert told[-1] == "and threads of 3 more cgroups"
    assert len(told) == 9


def test_no_exclusive_cpu_has_no_strangers() -> None:
    """Where nothing is exclusive nobody is in the wrong place."""
    checks = of(replace(FINE, agent=replace(AGENT, exclusive=EMPTY)), Verdict.OK)

    assert "no CPU is exclusive now" in {check.told for check in checks}


def test_l2_shared_by_several_cores_is_told(tmp_path: Path) -> None:
    """Efficiency cores in groups of four share their L2."""
    topology = read_topology(materialise("core-i7-12700h", tmp_path))
    (finding,) = of(replace(FINE, topology=topology), Verdict.FINDING)

    assert finding.subject == "L2 cache"
    assert "CPUs 12-15, 16-19" in finding.told


def test_local_runtime_has_no_nri() -> None:
    """Processes that the agent starts itself need no plugin."""
    checks = {check.subject: check.told for check in examine(replace(FINE, agent=LOCAL, nri=False))}

    assert "NRI" not in checks
    assert checks["runtime"] == LOCAL.runtime


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        pytest.param({}, "its socket is there;", id="on"),
        pytest.param({"nri": False}, "its socket is not to be seen;", id="off"),
        pytest.param({"nri": False, "runtime": "containerd 1.6.20"}, "it came with 1.7;", id="too old"),
        pytest.param({"nri": False, "runtime": "cri-o 1.30.1"}, "not to be seen;", id="CRI-O"),
    ],
)
def test_nri_is_told(facts: dict[str, object], told: str) -> None:
    """Whether the runtime has it is told; nothing is to be mended, for this agent does not use it."""
    (check,) = (one for one in examine(replace(FINE, **facts)) if one.subject == "NRI")  # type: ignore[arg-type]

    assert (check.verdict, check.remedy) == (Verdict.OK, "")
    assert told in check.told


def test_agent_that_observes_is_told() -> None:
    """What it gives out is nothing, so that there is nothing to compare with the kubelet."""
    observing = replace(FINE, agent=replace(AGENT, observes=True), kubelet_millicores=4000)
    checks = {check.subject: check for check in examine(observing)}

    assert {check.verdict for check in checks.values()} == {Verdict.OK}
    assert "only observes" in checks["agent"].told
    assert "gives none out" in checks["kubelet's CPUs"].told


def test_cluster_out_of_reach_is_said() -> None:
    """Without the node's amounts they are not compared; how to reach it is told."""
    facts = replace(FINE, kubelet_millicores=None, missing={"kubelet_millicores": "no cluster"})
    (check,) = of(facts, Verdict.UNKNOWN)

    assert "no cluster" in check.told
    assert "KUBECONFIG" in check.remedy


def test_facts_of_the_agents_state() -> None:
    """Exclusive CPUs are those of exclusive containers with their idle siblings; refusals come with their names."""
    share = {"cpu-manager.corepin.io/pod": "share"}
    isolated = bound("a", container("main", 1), annotations=ISOLATE)
    shared = bound("b", container("main", 1), annotations=share)
    facts = agent_facts(
        to_dict(state_of(isolated, shared, bound("c", container("main", 99), annotations=EXCLUSIVE)))
    )

    assert len(facts.exclusive) == 2
    assert [told.partition(":")[0] for told in facts.refusals] == ["default/c/main"]


def test_facts_of_this_machine(tmp_path: Path) -> None:
    """Reading survives a machine on which nothing of Kubernetes is there, and says why it does not know."""
    places = Places(
        tmp_path, tmp_path, kubelet_state=tmp_path / "none", runtime=tmp_path / "no.sock", nri=tmp_path
    )
    facts = read_facts(places, None, 0)

    assert (facts.agent, facts.topology, facts.runtime, facts.cgroup_version) == (None, None, None, None)
    assert facts.kubelet is KubeletPolicy.UNKNOWN
    assert (facts.pod_root, facts.nri) == (None, True)
    assert facts.missing
    assert facts.missing.keys() == {"topology", "runtime", "cgroup_version"}


@pytest.mark.parametrize(
    ("text", "cgroup"),
    [
        pytest.param("0::/system.slice/ssh.service\n", "/system.slice/ssh.service", id="v2"),
        pytest.param("0::/../../../system.slice/ssh.service\n", "/system.slice/ssh.service", id="from a pod"),
        pytest.param("0::/../..\n", "/", id="the root, from a pod"),
        pytest.param("5:cpuset,cpu:/a:b\n2:memory:/m\n0::/u\n", "/a:b", id="v1"),
        pytest.param("2:memory:/m\n", "/", id="v1 without cpuset"),
    ],
)
def test_cgroup_of_a_thread_is_read(tmp_path: Path, text: str, cgroup: str) -> None:
    """By its path below the root, as far as the reader may know it."""
    (tmp_path / "cgroup").write_text(text)
    assert _cgroup(tmp_path) == cgroup


def test_thread_that_runs_is_seen() -> None:
    """A busy process of nobody's is found on the CPUs it runs on; the pods that own CPUs are not."""
    state = to_dict(state_of(bound("a", annotations=EXCLUSIVE)))
    with subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"]) as process:
        try:
            seen = _foreign_threads(PROC, state, CPUSet(range(1024)), 0.2)
            threads = {one.id: one for one in _threads(PROC, CPUSet(range(1024)))}
        finally:
            process.kill()

    assert any("sh" in names for names in seen.by_cgroup.values())
    assert threads[process.pid].name == "sh"
    assert os.getpid() not in threads
    assert _foreign_threads(PROC, state, EMPTY, 10) == ForeignThreads({})


def test_real_runtimes_are_named(containerd: Containerd, tmp_path: Path) -> None:
    """Debian's containerd and the newest one tell their names; the old one has no NRI, the other may have."""
    places = Places(runtime=containerd.socket, nri=tmp_path / "no.sock")
    told = {check.subject: check.told for check in examine(read_facts(places, None, 0))}
    is_old = containerd.programs.version == "1.6"

    assert told["runtime"].startswith(f"containerd {containerd.programs.version}")
    assert ("it came with 1.7" in told["NRI"]) is is_old
    assert ("not to be seen" in told["NRI"]) is not is_old
