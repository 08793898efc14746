"""Inside the guest: all scenarios of a node with SMT, one after the other."""

from __future__ import annotations

import os
import random
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from agent.kernel.sysfs import read_topology
from pinning.contract import CRANE_CPU_MANAGER
from pinning.machine.cpuset import CPUSet
from tests.environments.guest.inside import (
    OWNER,
    SYSTEM_NAMESPACE,
    WORK,
    Node,
    ask,
    overlap,
    report,
    running_node,
    switch,
)
from tests.environments.guest.polling import wait_until
from tests.environments.node import crun
from tests.environments.node.containerd import VERSIONS
from tests.smt.local_runtime import local_runtime
from tests.smt.scenario_devices import devices
from tests.smt.scenario_isolcpus import hide_isolated_cores, isolated_cores
from tests.smt.scenario_static import static_kubelet
from tests.smt.scenario_vms import vms
from tests.smt.wrappers.scenario import wrappers

if TYPE_CHECKING:
    from collections.abc import Callable

KILLS = 10
NEWEST = VERSIONS[-1]  # a runtime with NRI
EXCLUSIVE = {CRANE_CPU_MANAGER: "exclusive"}


def main() -> None:
    """Run all scenarios and report their results."""
    report("boot", kernel=os.uname().release)
    report_topology()
    with running_node(NEWEST) as node:
        report("runtime")
        local_runtime()
        node.agent.start()
        node.add("bystander", 0, {})
        isolated_cores(node)
        node.agent.kill()
        hide_isolated_cores()
        wrappers(node.agent.starter)
        node.agent.start()
        smt_policies(node)
        live_change(node)
        offline_and_back(node)
        vms(node)
        kills(node)
        births_over_nri(node)
        container_of_crun(node)
        devices(node)
        strict_reserve(node)
        static_kubelet(node)


def report_topology() -> None:
    """Report the topology of the machine by lscpu and by the agent."""
    text = subprocess.run(
        ["lscpu", "--parse=CPU,CORE,SOCKET,NODE"], check=True, capture_output=True, text=True
    ).stdout
    rows = [[int(part) for part in line.split(",")] for line in text.splitlines() if line[:1].isdigit()]
    report("topology", lscpu=rows, agent=read_topology(Path("/")).to_dict())


def smt_policies(node: Node) -> None:
    """Run an owner of each SMT policy at the same time."""
    node.add("prefer", 3, {**EXCLUSIVE, OWNER: "prefer"})
    node.add("require", 3, {OWNER: "require"})
    node.add("isolate", 2, {OWNER: "isolate"})
    node.settle()
    report("policies", **node.snapshot())
    for name in ("prefer", "require", "isolate"):
        node.remove(name)
    node.settle()
    report("removed", **node.snapshot())


def live_change(node: Node) -> None:
    """Change a running pod's policy twice."""
    node.add("moving", 2, EXCLUSIVE)
    node.settle()
    report("live", policy="exclusive", **node.snapshot())
    for policy in ("share", "none"):
        node.edit("moving", 2, {CRANE_CPU_MANAGER: policy})
        node.settle()
        report("live", policy=policy, **node.snapshot())
    node.remove("moving")
    node.settle()


def offline_and_back(node: Node) -> None:
    """Take one CPU of a whole core offline and online, while a watcher looks for CPUs of two pods."""
    node.add("whole", 2, {OWNER: "require"})
    node.settle()
    report("offline", step="before", **node.snapshot())
    gone = max(CPUSet.parse(node.cpuset("whole")))
    watcher = Watcher(lambda: _shared_cpus(node, "whole", "bystander"))
    try:
        for step, on in (("offline", False), ("back", True)):
            switch(gone, on=on)
            node.settle()
            report("offline", step=step, cpu=gone, **node.snapshot())
    finally:
        report("bystander", looks=watcher.looks, seen=watcher.stop())
    node.remove("whole")
    node.settle()


def _shared_cpus(node: Node, owner: str, bystander: str) -> str:
    """Return CPUs of the owner, before and after, on which the bystander was seen."""
    before, seen, after = node.cpuset(owner), node.cpuset(bystander), node.cpuset(owner)
    return str(overlap(before, after) & CPUSet.parse(seen))


class Watcher:
    """Calls `look` repeatedly in a thread, and keeps every result that differs from those before."""

    def __init__(self, look: Callable[[], str]) -> None:
        self.looks = 0
        self._seen: list[str] = []
        self._look = look
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            self.looks += 1
            answer = self._look()
            if answer not in self._seen:
                self._seen.append(answer)

    def stop(self) -> list[str]:
        """Stop looking and return the recorded results."""
        self._stop.set()
        self._thread.join()
        return self._seen


def kills(node: Node) -> None:
    """Kill the agent at random moments while pods are created, edited and deleted; start it again each time."""
    seed = int(os.environ["SEED"])
    report("seed", seed=seed)
    chance = random.Random(seed)  # noqa: S311 no secret
    node.add("keeper-whole", 3, {OWNER: "require"})
    node.add("keeper-three", 3, EXCLUSIVE)
    node.settle()
    keepers = ("keeper-whole", "keeper-three")
    report("keepers", **node.snapshot())
    watchers = {name: Watcher(lambda name=name: node.cpuset(name)) for name in keepers}  # type: ignore[misc]
    try:
        for number in range(KILLS):
            _kill_once(node, chance, number)
    finally:
        report("kept", **{name: watcher.stop() for name, watcher in watchers.items()})


def _kill_once(node: Node, chance: random.Random, number: int) -> None:
    moment = chance.uniform(0, 3)
    killer = threading.Timer(moment, node.agent.kill)
    killer.start()
    done = [_churn(node, chance, f"churn-{number}-{step}") for step in range(2)]
    killer.join()
    node.agent.start()
    node.settle()
    report("kill", number=number, after_seconds=moment, churn=done, **node.snapshot())


def _churn(node: Node, chance: random.Random, name: str) -> str:
    """Create, edit or delete a pod. At most three exist, each on at most one core, so that all of them fit."""
    pods = sorted(pod for pod in node.wanted if pod.startswith("churn-"))
    if len(pods) < 2 or (len(pods) == 2 and chance.random() < 0.5):
        cpus, words = chance.choice((1, 2)), chance.choice((EXCLUSIVE, {OWNER: "require"}))
        node.add(name, cpus, words)
        return f"add {name} {cpus} {words}"
    pod = chance.choice(pods)
    if chance.random() < 0.5:
        policy = chance.choice(("exclusive", "share", "none"))
        node.edit(pod, 1, {CRANE_CPU_MANAGER: policy})
        return f"edit {pod} {policy}"
    node.remove(pod)
    return f"remove {pod}"


def births_over_nri(node: Node) -> None:
    """Start containers over NRI: two on their CPUs, and one that waits until enough cores are free."""
    for name in sorted(node.wanted.keys() - {"bystander"}):
        node.remove(name)
    node.agent.kill()
    node.agent.arguments += ["--nri", str(node.containerd.nri_socket)]
    _start_over_nri(node)
    node.add("require", 3, {OWNER: "require"})
    node.add("isolate", 2, {OWNER: "isolate"})
    node.add("plain", 0, {})
    node.settle()
    report(
        "births",
        first={name: node.first(name) for name in ("require", "isolate", "plain")},
        **node.snapshot(),
    )
    refused = node.refused("late", 4, {OWNER: "isolate"})
    report("refused", error=refused, refusals=(ask() or {}).get("refusals"))
    node.remove("isolate")
    node.start("late")
    node.settle()
    report("late", first=node.first("late"), **node.snapshot())


def _start_over_nri(node: Node) -> None:
    node.agent.start()
    wait_until(lambda: (ask() or {}).get("startPath") == "nri")


def container_of_crun(node: Node) -> None:
    """Start a container of crun over NRI, and change its policy while it runs."""
    node.add("crun", 2, {OWNER: "require"}, handler=crun.HANDLER)
    node.settle()
    state = Path("/run/containerd/runc/k8s.io", node.cgroup("crun").name)  # runc's would be state.json
    files = sorted(path.name for path in state.iterdir())
    report("crun", step="born", files=files, first=node.first("crun"), **node.snapshot())
    node.edit("crun", 2, {CRANE_CPU_MANAGER: "none"})
    node.settle()
    report("crun", step="shared", **node.snapshot())
    node.remove("crun")


def strict_reserve(node: Node) -> None:
    """Start an owner, a plain container and one of a system namespace over NRI, under a strict reserve."""
    for name in sorted(node.wanted.keys() - {"bystander"}):
        node.remove(name)
    node.agent.kill()
    file, before = WORK / "strict.yaml", node.agent.arguments
    file.write_text(f"strictReserved: true\nsystemNamespaces: [{SYSTEM_NAMESPACE}]\n")
    node.agent.arguments = [*before, "--config", str(file)]
    _start_over_nri(node)
    node.add("require", 3, {OWNER: "require"})
    node.add("plain", 0, {})
    node.add("system", 0, {}, namespace=SYSTEM_NAMESPACE)
    node.settle()
    first = {name: node.first(name) for name in ("require", "plain", "system")}
    report("reserved", first=first, **node.snapshot())
    node.agent.arguments = before


if __name__ == "__main__":
    main()
