"""Waiting times of pods with ResourceClaims on a real kubelet: `python -m bench.claims.kubelet` (as root).

API server, scheduler, kubelet and containerd are real, and so are the machine's CPUs, one of which is for
claims. Times are wall times, so they include the load of the machine, which is printed with the agent's CPU
time.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pinning.contract import DRA_CAPACITY, DRA_DRIVER
from tests.environments.node.node import CRANE, EXCLUSIVE, pod
from tests.environments.server.catalog import KUBE_SCHEDULER, KUBELET
from tests.environments.waiting import until, until_equal
from tests.node.conftest import _program, _start
from tests.node.restarting import restart_kubelet
from tests.node.starts.claims import (
    claim,
    claiming_pod,
    claims_served,
    clear_claims,
    delete_claim,
    delete_now,
    held,
    prepare_failed,
    slices,
    uid_of_claim,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.environments.node.node import Node
    from tests.environments.server.daemon import Daemon

WAIT: Final = 300.0
AWAY_SECONDS: Final = 10.0
# The measured intervals, with goals in seconds.
FORCED: Final = "pod deleted by force to next pod running", 5.0
ROOM: Final = "CPUs free after a failed Prepare to pod running", 2.0
AWAY: Final = "agent back after 10 s to pod running", 3.0
BACK: Final = "agent back to its slices published again", 2.0
CHANGED: Final = "change of a classic pod to its slice written", 1.5
DEVICE: Final = "cpudevnuma000"


class Bench:
    """A node, the measured seconds, and the Prepares of each claim."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.found: dict[tuple[str, float], list[float]] = {}
        self.cpu = 0.0  # CPU seconds of killed agents
        self.logs: list[Path] = []
        self._names = iter(range(10**6))

    @property
    def daemon(self) -> Daemon:
        """The process of the agent."""
        if daemon := self.node.agent.daemon:
            return daemon
        raise RuntimeError("the agent was never started")

    def name(self) -> str:
        """Return an unused name."""
        return f"p{next(self._names)}"

    def measure(self, what: tuple[str, float], began: float) -> None:
        """Record the seconds since `began`, and print them in case the run is interrupted."""
        seconds = time.monotonic() - began
        self.found.setdefault(what, []).append(seconds)
        print(f"{what[0]}: {seconds:.2f} s, load {os.getloadavg()[0]:.0f}", flush=True)

    def running(self, name: str) -> None:
        """Wait until the container of a pod runs."""
        until(f"pod {name} runs", lambda: self.node.container(name), WAIT)

    def clear(self) -> None:
        """Delete all pods and claims."""
        clear_claims(self.node)

    def start_agent(self) -> None:
        """Start the agent, and record the path of its log."""
        self.node.agent.start()
        self.logs.append(self.daemon.log_file)

    def kill_agent(self) -> None:
        """Kill the agent, and add its CPU time."""
        self.cpu += self.agent_cpu()
        self.node.agent.kill()

    def agent_cpu(self) -> float:
        """Return the CPU seconds of the running agent."""
        fields = Path(f"/proc/{self.daemon.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def forced(self) -> None:
        """Force the deletion of the only pod with CPUs, while another pod waits for them."""
        node, old, new = self.node, self.name(), self.name()
        node.apply(claim(old), claim(new), claiming_pod(old, old))
        self.running(old)
        node.apply(claiming_pod(new, new))
        began = time.monotonic()
        self.delete(old)
        self.patch(old, {"reservedFor": None, "allocation": None})  # as the controller of claims does
        self.running(new)
        self.measure(FORCED, began)

    def room(self) -> None:
        """Let Prepare fail because a pod with an annotation has the CPUs; measure the start after that pod's end."""
        node, name = self.node, self.name()
        [classic] = node.run(pod("holder", EXCLUSIVE, cpu=str(node.cores)))
        until_equal("it owns the cores", lambda: len(classic.cpus), node.cores)
        self.bind(name)
        until("a failed Prepare", lambda: prepare_failed(node, name), WAIT)
        self.delete("holder")
        until("it has ended", lambda: classic.is_gone, WAIT)
        began = time.monotonic()
        self.running(name)
        self.measure(ROOM, began)

    def bind(self, name: str) -> None:
        """Create a pod with an allocated claim, as a scheduler with stale slices does."""
        node, user = self.node, claiming_pod(name, name)
        user["spec"]["schedulingGates"] = [{"name": "bench/wait"}]
        node.apply(claim(name), user)
        result = {
            "request": "cpu",
            "driver": DRA_DRIVER,
            "pool": node.name,
            "device": DEVICE,
            "shareID": uid_of_claim(node, name),
            "consumedCapacity": {DRA_CAPACITY: "1"},
        }
        reserved = [{"resource": "pods", "name": name, "uid": node.pod(name)["metadata"]["uid"]}]
        self.patch(name, {"allocation": {"devices": {"results": [result]}}, "reservedFor": reserved})
        gates = json.dumps([{"op": "remove", "path": "/spec/schedulingGates"}])
        node.kubectl("patch", f"pod/{name}", "--type=json", "-p", gates)

    def delete(self, pod_name: str) -> None:
        """Force-delete a pod by the API, which is faster than kubectl."""
        with self.node.plane.server.client() as client:
            path = f"/api/v1/namespaces/default/pods/{pod_name}"
            client.delete(path, params={"gracePeriodSeconds": "0"}).raise_for_status()

    def patch(self, claim_name: str, status: dict[str, Any]) -> None:
        """Change the status of a claim."""
        path = f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{claim_name}/status"
        kind = {"Content-Type": "application/merge-patch+json"}
        with self.node.plane.server.client() as client:
            client.patch(path, json={"status": status}, headers=kind).raise_for_status()

    def away(self) -> None:
        """Create a pod while no agent runs; measure its start after the agent's."""
        node, name = self.node, self.name()
        self.kill_agent()
        killed = time.monotonic()
        node.apply(claim(name), claiming_pod(name, name))
        until("the kubelet finds no driver", lambda: prepare_failed(node, name), WAIT)
        time.sleep(max(0.0, AWAY_SECONDS - (time.monotonic() - killed)))
        self.start_agent()
        began = time.monotonic()
        self.running(name)
        self.measure(AWAY, began)

    def back(self) -> None:
        """Delete the slices, as a restarted kubelet does, and measure their publication by a new agent."""
        self.kill_agent()
        with self.node.plane.server.client() as client:
            client.delete("/apis/resource.k8s.io/v1/resourceslices").raise_for_status()
        self.start_agent()
        began = time.monotonic()
        until("the slices are there", lambda: slices(self.node), WAIT)
        self.measure(BACK, began)

    def changes(self, times: int) -> None:
        """Let a pod with an annotation take and free the only core for claims; measure the slice's update."""
        node = self.node
        node.run(pod("classic", cpu=str(node.cores)))
        for number in range(times):
            policy, wanted = ("none", {DEVICE: "1"}) if number % 2 else ("exclusive", {})
            began = time.monotonic()
            self.annotate("classic", policy)
            until_equal("the slice", self.values, wanted)
            self.measure(CHANGED, began)
        self.clear()

    def annotate(self, pod_name: str, policy: str) -> None:
        """Change the policy of a pod by the API, which is faster than kubectl."""
        path = f"/api/v1/namespaces/default/pods/{pod_name}"
        change = {"metadata": {"annotations": {CRANE: policy}}}
        kind = {"Content-Type": "application/merge-patch+json"}
        self.node.plane.admin.patch(path, json=change, headers=kind).raise_for_status()

    def values(self) -> dict[str, str]:
        """Return the published CPUs of each device."""
        found = self.node.plane.read("/apis/resource.k8s.io/v1/resourceslices")["items"]
        devices = [device for it in found for device in it["spec"].get("devices") or ()]
        return {device["name"]: device["capacity"][DRA_CAPACITY]["value"] for device in devices}

    def restarts(self, kubelets: int, kills: int) -> None:
        """Restart the kubelet and kill the agent while pods with claims come and go."""
        churn = self.churn()
        for number in range(max(kubelets, kills)):
            next(churn)
            if number < kills:
                self.kill_agent()
                self.start_agent()
            if number < kubelets:
                restart_kubelet(self.node)

    def churn(self) -> Iterator[None]:
        """Create a pod with a claim, and replace it at each step; each pod must run."""
        while True:
            name = self.name()
            self.node.apply(claim(name), claiming_pod(name, name))
            yield
            self.running(name)
            if [it["name"] for it in held(self.node)] != [name]:
                raise RuntimeError(f"the ledger has {held(self.node)}, and only {name} runs")
            delete_now(self.node, name)
            delete_claim(self.node, name)

    def prepares(self) -> Counter[str]:
        """Return the number of Prepares of each claim, from the logs of all agents."""
        found: Counter[str] = Counter()
        for log in self.logs:
            for line in log.read_text().splitlines():
                if "claim prepared" in line:
                    found[json.loads(line)["claim"]] += 1
        return found


def lines(bench: Bench) -> Iterator[str]:
    """Yield each figure with its goal."""
    for (what, goal), seconds in bench.found.items():
        ordered = sorted(seconds)
        missed = "" if ordered[-1] < goal else ": MISSED"
        middle, most = ordered[len(ordered) // 2], ordered[-1]
        yield f"{what:<50}{len(ordered):>3} times, p50 {middle:>6.2f} s, most {most:>6.2f} s, goal {goal:g}{missed}"
    counts = bench.prepares()
    yield f"claims prepared {len(counts)}, of them more than once {sum(count > 1 for count in counts.values())}"
    yield f"CPU time of the agents {bench.cpu + bench.agent_cpu():.1f} s"


def repeated(bench: Bench, step: Callable[[], Any], times: int) -> None:
    """Repeat a step, each time on a node without pods."""
    for _ in range(times):
        step()
        bench.clear()


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.claims.kubelet", description=__doc__)
    parser.add_argument("--forced", type=int, default=20, help="deletes by force; default: 20")
    parser.add_argument("--room", type=int, default=3, help="failed Prepares, a minute each; default: 3")
    parser.add_argument("--away", type=int, default=3, help="pods that come without an agent; default: 3")
    parser.add_argument("--kubelets", type=int, default=20, help="restarts of the kubelet; default: 20")
    parser.add_argument("--kills", type=int, default=50, help="of the agent; default: 50")
    parser.add_argument("--changes", type=int, default=50, help="of a classic pod; default: 50")
    parser.add_argument("--back", type=int, default=3, help="slices that are published again; default: 3")
    args = parser.parse_args()
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="b-") as name, ExitStack() as stack:
        (Path(name) / "n").mkdir()
        node = _start(stack, _program(KUBELET), _program(KUBE_SCHEDULER), Path(name) / "n")
        stack.enter_context(claims_served(node))
        bench = Bench(node)
        bench.logs.append(bench.daemon.log_file)
        repeated(bench, bench.forced, args.forced)
        repeated(bench, bench.away, args.away)
        repeated(bench, bench.room, args.room)
        repeated(bench, bench.back, args.back)
        bench.changes(args.changes)
        bench.restarts(args.kubelets, args.kills)
        for line in lines(bench):
            print(line, flush=True)
        bench.clear()
    print(f"load of the machine {before:.1f} before, {os.getloadavg()[0]:.1f} after, {os.cpu_count()} CPUs")


if __name__ == "__main__":
    main()
