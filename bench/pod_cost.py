"""`python -m bench.pod_cost` (as root): cost of one pod for the agent on a real containerd with NRI.

Counts of passes, runtime calls and machine reads do not depend on the load of the machine, and CPU time hardly
does. Pods are created over CRI, with manifests in a folder, so the cost of the API server's watch is not
included.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.environments.node.containerd import start_containerd
from tests.environments.node.containerd_node import ISOLATE, ContainerdNode, start_node
from tests.environments.node.node import AgentProcess
from tests.environments.waiting import until, until_equal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BYSTANDERS: Final = 5
REST_SECONDS: Final = 0.3  # between two changes, so that each is handled before the next
IDLE_SECONDS: Final = 65.0  # two sweeps
APART_SECONDS: Final = 12.0  # until CPUs that came back are in the runtime's records too
NANOSECONDS: Final = 1e9


class CountedAgent(AgentProcess):
    """The agent's process, which reports its counters."""

    @property
    def command(self) -> list[str]:
        """Its command line."""
        flags = super().command
        return [
            sys.executable,
            "-m",
            "bench.counted_agent",
            str(self.file),
            *flags[flags.index("agent") + 1 :],
        ]

    @property
    def file(self) -> Path:
        """The file of its counters."""
        return self.directory / "counts.json"

    @property
    def pid(self) -> int:
        """Its process."""
        if self.daemon is None:
            raise RuntimeError("the agent was not started")
        return self.daemon.process.pid

    def counts(self) -> Counter[str]:
        """Return its counters since the start."""
        self.file.unlink(missing_ok=True)
        os.kill(self.pid, signal.SIGUSR1)
        until("counts", self.file.exists)
        return Counter(json.loads(self.file.read_text()))

    def cpu_seconds(self) -> float:
        """Return the CPU time of all its threads."""
        tasks = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(file.read_text().split()[0]) for file in tasks) / NANOSECONDS


class Cost:
    """Cost of a number of pods."""

    def __init__(self, name: str, pods: int, counts: Counter[str], cpu: float, shims: float) -> None:
        self.name = name
        self.pods = pods
        self.counts = counts
        self.cpu = cpu
        self.shims = shims  # CPU time of the shims of the other containers

    def lines(self) -> Iterator[str]:
        """Yield the lines of the table."""
        calls = sum(number for what, number in self.counts.items() if what.startswith("call "))
        yield f"{self.name}: {self.cpu / self.pods * 1e3:.1f} ms of CPU time, {calls / self.pods:.2f} calls of the runtime"
        yield f"    CPU time of the others' shims and runc {self.shims / self.pods * 1e3:.1f} ms"
        for what, number in sorted(self.counts.items()):
            yield f"    {what:34}{number / self.pods:8.2f}"


def plain(node: ContainerdNode, name: str) -> None:
    """Start and end a pod without claims."""
    node.add(name)
    time.sleep(REST_SECONDS)
    remove(node, name)
    time.sleep(REST_SECONDS)


def owner(node: ContainerdNode, name: str) -> None:
    """Start and end an owner: all other containers leave its CPU and get it back."""
    node.add(name, annotations=ISOLATE)
    bystander = node.containers["bystander-0"]
    until("all others left", lambda: bystander.cpus == node.all - node.containers[name].cpus)
    time.sleep(REST_SECONDS)
    remove(node, name)
    until_equal("all others are back", lambda: bystander.cpus, node.all)
    time.sleep(REST_SECONDS)


def remove(node: ContainerdNode, name: str) -> None:
    """Delete a pod and, as the kubelet does, its cgroup, which the agent would read in every pass."""
    node.remove(name)
    node.containerd.remove_pod_cgroup(f"uid-{name}")


def measure(
    node: ContainerdNode,
    agent: CountedAgent,
    pods: int,
    live: Callable[[ContainerdNode, str], None],
    pause: float = 0.0,
) -> Cost:
    """Start and end this many pods, one after the other, each followed by a pause in seconds."""
    live(node, "first")
    time.sleep(pause)
    counts, cpu, before = agent.counts(), agent.cpu_seconds(), shim_seconds()
    for number in range(pods):
        live(node, f"pod-{number}")
        time.sleep(pause)
    shims = sum(after - before[pid] for pid, after in shim_seconds().items() if pid in before)
    name = f"{live.__name__} pod" + (f", {pause:.0f} s apart" if pause else "")
    return Cost(name, pods, agent.counts() - counts, agent.cpu_seconds() - cpu, shims)


def shim_seconds() -> dict[int, float]:
    """Return the CPU time of each shim of containerd by pid, with that of the programs that it executed (`runc update`)."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process exits
            name, _, rest = (process / "stat").read_text().rpartition(")")
            if name.endswith("(containerd-shim"):  # the kernel keeps 15 characters
                found[int(process.name)] = sum(map(int, rest.split()[11:15])) / os.sysconf("SC_CLK_TCK")
    return found


def idle(node: ContainerdNode, agent: CountedAgent, seconds: float) -> str:
    """Return the idle cost of the agent."""
    time.sleep(5)
    used, began = agent.cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    share = (agent.cpu_seconds() - used) / (time.monotonic() - began)
    return f"idle with {len(node.containers)} pods: {share:.3%} of a CPU"


@contextmanager
def counted_node(folder: Path) -> Iterator[tuple[ContainerdNode, CountedAgent]]:
    """Run a containerd with NRI and an agent that counts until the block ends."""
    (folder / "containerd").mkdir()
    with (
        start_containerd("2.4", folder / "containerd") as containerd,
        start_node(containerd, folder, nri=str(containerd.nri_socket), process=CountedAgent) as node,
    ):
        until_equal("path of starts", lambda: node.agent.state()["startPath"], "nri")
        if isinstance(node.agent, CountedAgent):
            yield node, node.agent


def main() -> None:
    """Print the cost of pods."""
    parser = argparse.ArgumentParser(prog="python -m bench.pod_cost", description=__doc__)
    parser.add_argument("--pods", type=int, default=20, help="of each kind; default: 20")
    parser.add_argument("--apart", type=int, default=2, help="owners with a long pause between; default: 2")
    parser.add_argument("--idle-pods", type=int, nargs="*", default=[6, 110])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, counted_node(Path(name)) as (node, agent):
        for number in range(BYSTANDERS):
            node.add(f"bystander-{number}")
        time.sleep(1)
        for live in (plain, owner):
            for line in measure(node, agent, args.pods, live).lines():
                print(line, flush=True)
        for line in measure(node, agent, args.apart, owner, APART_SECONDS).lines():
            print(line, flush=True)
        for count in args.idle_pods:
            while len(node.containers) < count:
                node.add(f"bystander-{len(node.containers)}")
            print(idle(node, agent, IDLE_SECONDS), flush=True)
        print(f"load of the machine {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs")


if __name__ == "__main__":
    main()
