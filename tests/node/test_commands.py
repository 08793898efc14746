"""Operators' commands on a real node: corepin map, plan and doctor, with the data that its agent published."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from agent.doctor.facts import Places, read_facts
from agent.local.cgroups import KernelContainerCgroups
from published.agent_state import AgentState
from published.codec import decode
from tests.environments.node.node import EXCLUSIVE, pod
from tests.environments.waiting import until, until_equal
from tests.node.examined import corepin, examined

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.doctor.checks import ForeignThreads
    from pinning.machine.cpuset import CPUSet
    from tests.environments.node.node import Node


def shown(node: Node, *arguments: str) -> str:
    """Return the output of a successful command."""
    done = corepin(node, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@contextmanager
def busy(node: Node, cpus: CPUSet) -> Iterator[str]:
    """Keep a thread that belongs to no pod running on some CPUs; yield its cgroup."""
    root = f"{node.containerd.cgroup}/stranger"
    cgroup, homes = f"{root}/pod/main", KernelContainerCgroups(node.hierarchy, root)
    homes.make(cgroup)
    with subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"]) as process:
        try:
            homes.enter(cgroup, process.pid)
            os.sched_setaffinity(process.pid, cpus)
            yield cgroup
        finally:
            process.kill()
    homes.remove(cgroup)


def test_map_shows_the_owners_of_a_nodes_cpus(node: Node) -> None:
    """From annotations and from the socket the map shows a CPU's owner, and none once the policy is removed."""
    [pinned] = node.run(pod("pinned", EXCLUSIVE, cpu="1"))
    until("moved and read back", lambda: (node.status("pinned") or {}).get("pinned"))
    until("told", lambda: "pinned" in pools(node))
    assert f"default/pinned/main: exclusive, CPUs {pinned.cpus}" in shown(node, "map", "--node", node.name)
    local = shown(node, "map", "--socket", str(node.agent.socket))
    assert f"default/pinned/main: exclusive on CPUs {pinned.cpus}, as the kernel says" in local
    drawn = json.loads(shown(node, "map", "--node", node.name, "-o", "json"))
    assert drawn["pools"]["owners"]["default/pinned/main"]["cpus"] == str(pinned.cpus)
    assert drawn["topology"]["online"] == str(node.all)

    node.annotate("pinned", "none")
    until("told", lambda: "pinned" not in pools(node))
    assert "pinned" not in shown(node, "map", "--node", node.name)


def pools(node: Node) -> str:
    """Return the pools that the agent has published for the node."""
    return str(node.document()["metadata"]["annotations"]["status.corepin.io/pools"])


def test_plan_uses_the_machine_that_the_agent_published(node: Node) -> None:
    """`plan --node` fits a claim of all allocatable CPUs and refuses one CPU more; an unknown node is an error."""

    def planned(cpus: int) -> Any:
        document = json.dumps(pod("new", EXCLUSIVE, cpu=str(cpus)))
        done = corepin(node, "plan", "-f", "-", "--node", node.name, "-o", "json", manifest=document)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    state = node.agent.state()["sets"]
    assert planned(node.cores)["assignments"]["default/new/main"]["cpus"] == state["allocatable"]
    assert planned(node.cores + 1)["refused"][0]["reason"] == "NotEnoughCPUs"
    missing = corepin(node, "map", "--node", "nowhere")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "node nowhere: the API server answered 404" in missing.stderr


def test_doctor_knows_every_part(node: Node) -> None:
    """Doctor's checks of runtime, cgroups and kubelet pass; its one finding is the scheduler's count of CPUs."""
    until_equal("pods of an earlier test", lambda: node.agent.state()["pods"], [])
    found = examined(node)
    fine = {name: check["told"] for name, check in found.items() if check["verdict"] == "ok"}
    assert fine["pods' cgroup"] == f"{node.containerd.cgroup}/kubepods"
    assert fine["cgroups"] == f"version {node.hierarchy.version}, writable"
    assert fine["runtime"].startswith("containerd 2.4")
    assert fine["kubelet"].startswith("policy none")
    assert fine["strangers"] == "no CPU is exclusive now"
    sets = node.agent.state()["sets"]
    assert fine["agent"] == f"allocates CPUs {sets['allocatable']}, keeps {sets['reserved']} reserved"
    amount = found["kubelet's CPUs"]
    assert (
        f"the scheduler may place {len(node.all)}000m, corepin can allocate {node.cores}000m"
        in amount["told"]
    )
    assert (amount["verdict"], sets["reserved"] in amount["remedy"]) == ("finding", True)
    assert {check["verdict"] for check in found.values()} == {"ok", "finding"}


def test_doctor_sees_who_runs_on_exclusive_cpus(node: Node) -> None:
    """Doctor finds a foreign busy thread on a pod's CPU, and does not report the pod's own."""
    spinning = pod("pinned", EXCLUSIVE, cpu="1")
    spinning["spec"]["containers"][0]["command"] = ["/bin/sh", "-c", "while :; do :; done"]
    [pinned] = node.run(spinning)
    until_equal("own CPU", lambda: len(pinned.cpus), 1)
    with busy(node, pinned.cpus) as cgroup:
        known = until("known", lambda: owning(node))

        def foreign() -> ForeignThreads | None:  # a thread may get no CPU within the second
            found = read_facts(Places(), known, seconds=1).foreign_threads
            return found if found and cgroup in found.by_cgroup else None

        seen = until("the thread", foreign)
    assert seen.by_cgroup[cgroup] == {"sh": 1}
    assert not [path for path in seen.by_cgroup if path.startswith(f"{node.containerd.cgroup}/kubepods")]


def owning(node: Node) -> AgentState | None:
    """Return the agent's state once a container owns CPUs."""
    state = decode(AgentState, json.dumps(node.agent.state()))
    return state if state.ledger["assignments"] else None


def test_doctor_says_what_it_cannot_see(node: Node) -> None:
    """Without the agent, or for an unknown node, doctor reports why a check is unknown and runs the others."""
    found = examined(node, "--socket", "/nonexistent", "--node", "nowhere")
    assert "No such file" in found["agent"]["told"]
    assert found["runtime"]["verdict"] == "ok"
    amount = examined(node, "--node", "nowhere")["kubelet's CPUs"]
    assert (amount["verdict"], "answered 404" in amount["told"]) == ("unknown", True)
