"""`python -m bench.devices` (as root): starts of containers with devices on a real kubelet, with NRI.

A device plugin of the tests offers devices on two NUMA nodes, which the agent sees as this machine's cores.
Pods are started one at a time, in turns with `device-policy` none and require, and then many at once. It
prints whether the first instruction of each container ran beside its device, the time from the request that
creates the pod to that instruction, the number of further attempts, and the number of calls of the kubelet's
socket. Other load on the machine is not kept off, and is printed.

Claims hold disjoint CPUs, also those of `share`, so of many pods at once as many have a claim as there are NUMA
nodes with devices.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agent.kernel.sysfs import read_topology
from bench.devices.births import Births, compared, moment
from pinning.machine.cpuset import CPUSet
from tests.environments.node.node import CRANE, EXCLUSIVE, pod
from tests.environments.server.catalog import KUBE_SCHEDULER, KUBELET
from tests.environments.waiting import until, until_equal
from tests.node.conftest import _program, _start
from tests.node.device_plugin import device_plugin, resource_on
from tests.node.starts.numa_nodes import DEVICES, agent_of_nodes, allocatable, plugins_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.environments.node.node import Node

SPARE: Final = 200  # devices of each NUMA node, so many that freed ones are not reused at once
WORDS: Final = ("none", "require")
# pause after a deletion, so that remaining work of kubelet, runtime and agent does not delay the next start
REST_SECONDS: Final = 0.5
CLAIMS: Final = (
    "exclusive",
    "share",
)  # one policy for each NUMA node
PODS: Final = "/api/v1/namespaces/default/pods"
_numbers = count(1)


class Created(NamedTuple):
    """A pod, and the time at which its creation was requested."""

    name: str
    uid: str
    at: float


class Bench:
    """A node with two NUMA nodes and devices on both."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.cores = read_topology(Path("/")).cores
        self.api = node.plane.server.client()

    def create(self, name: str, policies: Mapping[str, str], number: int) -> Created:
        """Create a pod with a device of a NUMA node, and with one CPU if there are policies."""
        document = pod(name, policies, cpu="1" if policies else None)
        resources = document["spec"]["containers"][0]["resources"]
        resources["limits"] = resources["requests"] = {**resources["limits"], resource_on(number): "1"}
        at = time.time()
        made: dict[str, Any] = self.api.post(PODS, json=document).raise_for_status().json()
        return Created(name, str(made["metadata"]["uid"]), at)

    def first(self, created: Created, births: Births, number: int | None) -> None:
        """Wait for the first log line of a pod, and record it; without `number` any CPU is right.

        The duration uses the line's timestamp of the runtime, which does not depend on the polls.
        """
        name, uid, at = created
        lines = until(f"{name} starts", lambda: self.node.log_lines(name, uid), 300)
        births.seconds.append(moment(lines[0][0]) - at)
        births.right += number is None or CPUSet.parse(lines[0][1]) <= self.cores[number].cpus
        births.again += self.was_refused(uid)

    def was_refused(self, uid: str) -> bool:
        """Return whether the kubelet logged that the runtime refused a container of a pod."""
        log = self.node.kubelet.daemon
        text = log.log_file.read_text() if log else ""
        return any(uid in line and "CreateContainerError" in line for line in text.splitlines())

    def remove(self, *names: str) -> None:
        """Delete pods, and wait until they are deleted."""
        for name in names:
            self.api.delete(f"{PODS}/{name}", params={"gracePeriodSeconds": "0"})
        until_equal("pods are gone", self.node.pods, [], 300)
        until("containers are gone", lambda: not self.node.containerd.running(), 300)
        until_equal("no CPUs are held", self.held, [], 300)

    def held(self) -> list[Any]:
        """Return the content of the agent's ledger."""
        found: list[Any] = self.node.agent.state()["ledger"]["assignments"]
        return found

    def singles(self, number: int, until_moment: float) -> dict[str, Births]:
        """Start pods one at a time, under each policy in turns."""
        found = {word: Births() for word in WORDS}
        for birth in range(number):
            for word in WORDS if birth % 2 == 0 else WORDS[::-1]:
                if time.monotonic() > until_moment:
                    return found
                place = birth % 2
                created = self.create(f"single-{next(_numbers)}", {**EXCLUSIVE, DEVICES: word}, place)
                self.first(created, found[word], None if word == "none" else place)
                self.remove(created.name)
                time.sleep(REST_SECONDS)
        return found

    def crowd(self, size: int) -> Births:
        """Start many pods with devices at once; those with a CPU count."""
        births = Births()
        others = [f"crowd-{next(_numbers)}" for _ in range(size - len(CLAIMS))]
        for at, name in enumerate(others):
            self.create(name, {}, at % 2)
        claiming = [
            self.create(f"claiming-{next(_numbers)}", {CRANE: policy, DEVICES: "require"}, place)
            for place, policy in enumerate(CLAIMS)
        ]
        for place, created in enumerate(claiming):
            self.first(created, births, place)
        for name in others:
            until(f"{name} runs", lambda name=name: self.node.container(name), 600)  # type: ignore[misc]
        self.remove(*others, *(created.name for created in claiming))
        return births


def start(stack: ExitStack, folder: Path) -> Node:
    """Start everything: API server, scheduler, kubelet, runtime, device plugin, and the agent with NRI."""
    node = _start(stack, _program(KUBELET), _program(KUBE_SCHEDULER), folder / "n")
    for number in (0, 1):
        stack.enter_context(device_plugin(plugins_folder(node), resource_on(number), *[number] * SPARE))
    stack.enter_context(agent_of_nodes(node, folder / "m"))
    for number in (0, 1):
        until_equal(
            "devices",
            lambda number=number: allocatable(node, resource_on(number)),  # type: ignore[misc]
            str(SPARE),
        )
    return node


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.devices", description=__doc__)
    parser.add_argument(
        "--births", type=int, default=300, help="one at a time, under each policy; default: 300"
    )
    parser.add_argument("--crowds", type=int, default=3, help="times that many are born at once; default: 3")
    parser.add_argument("--size", type=int, default=109, help="of a crowd; default: 109")
    parser.add_argument("--minutes", type=float, default=60, help="for births one at a time; default: 60")
    args = parser.parse_args()
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="b-") as name, ExitStack() as stack:
        folder = Path(name)
        for part in ("n", "m"):
            (folder / part).mkdir()
        bench = Bench(start(stack, folder))
        began = time.monotonic()
        singles = bench.singles(args.births, began + args.minutes * 60)
        for word, births in singles.items():
            print(births.line(f"one at a time, device-policy {word}"), flush=True)
        print(compared(*singles.values()), flush=True)
        calls(bench, time.monotonic() - began)
        for _ in range(args.crowds):
            print(bench.crowd(args.size).line(f"{args.size} at once"), flush=True)
        calls(bench, time.monotonic() - began)
    print(f"load of the machine {before:.1f} before, {os.getloadavg()[0]:.1f} after, {os.cpu_count()} CPUs")


def calls(bench: Bench, seconds: float) -> None:
    """Print the number of calls of the kubelet's socket."""
    made = {
        result: int(bench.node.agent.metric("corepin_agent_podresources_calls_total", result=result))
        for result in ("ok", "later", "refused", "too_large")
    }
    print(
        f"calls to the socket in {seconds:.0f} s: {made}, {sum(made.values()) / seconds:.2f} a second",
        flush=True,
    )


if __name__ == "__main__":
    main()
