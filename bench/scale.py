"""`python -m bench.scale`: cost of hundreds of agents for one API server, and its growth with their number.

A real kube-apiserver and etcd with `manifests/base` applied; on each node the real agent with all of its
reports, the rights of the manifests and a token of its own node. Runtime, cgroups and CPUs of the nodes, the
kubelet and the scheduler are simulated. Half of the pods are pinned. Each node gets its next pod when the
last one was reported, so that no reports are coalesced; pods in a burst cost less.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from tests.scale.cluster import Cluster, installed_server
from tests.scale.fleet import Cost, cpu_without_agents, fleet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

GROWTH: Final = 1.05  # largest ratio of the cost per node or pod between the largest and the smallest cluster
KINDS: Final = ("PATCH pods", "POST events", "PATCH nodes/status", "PATCH configmaps")


@dataclass(frozen=True, slots=True)
class Measured:
    """Cost of one cluster."""

    nodes: int
    pods: int
    starting: Cost
    filling: Cost
    idling: Cost
    idle_seconds: float
    bare_cpu_seconds: float  # CPU seconds of the API server for the same pods without agents
    resident_mb: float

    @property
    def pinned(self) -> int:
        """The number of pinned pods."""
        return self.pods // 2

    @property
    def requests_per_pod(self) -> float:
        """Requests per pod, without watches."""
        return self.filling.asked / self.pods

    @property
    def watched_per_node(self) -> float:
        """Bytes of a node's watches since its start."""
        return (self.starting.watched_bytes() + self.filling.watched_bytes()) / self.nodes


Row = tuple[str, str, "Callable[[Measured], float]"]
ROWS: Final[tuple[Row, ...]] = (
    ("pods", "{:.0f}", lambda run: run.pods),
    ("requests to start an agent", "{:.2f}", lambda run: run.starting.asked / run.nodes),
    ("requests per pod", "{:.3f}", lambda run: run.requests_per_pod),
    *(
        (f"  {kind} per pinned pod", "{:.3f}", lambda run, kind=kind: run.filling.requests[kind] / run.pinned)
        for kind in KINDS
    ),
    ("requests that failed", "{:.0f}", lambda run: run.filling.failed.total() + run.idling.failed.total()),
    ("kB watched per node", "{:.1f}", lambda run: run.watched_per_node / 1e3),
    ("  of pods", "{:.1f}", lambda run: run.filling.received["watch pods"] / run.nodes / 1e3),
    ("  of its node", "{:.1f}", lambda run: run.filling.received["watch nodes"] / run.nodes / 1e3),
    (
        "kB of other answers per node",
        "{:.1f}",
        lambda run: (run.filling.received_bytes() - run.filling.watched_bytes()) / run.nodes / 1e3,
    ),
    ("API server, CPU ms per pod", "{:.2f}", lambda run: run.filling.cpu_seconds / run.pods * 1e3),
    ("  the same without agents", "{:.2f}", lambda run: run.bare_cpu_seconds / run.pods * 1e3),
    (
        "API server, CPU ms per agent's start",
        "{:.1f}",
        lambda run: run.starting.cpu_seconds / run.nodes * 1e3,
    ),
    ("API server idle, % of a CPU", "{:.1f}", lambda run: run.idling.cpu_seconds / run.idle_seconds * 100),
    ("requests per node and idle hour", "{:.1f}", lambda run: idle_hour(run, run.idling.requests.total())),
    ("kB per node and idle hour", "{:.1f}", lambda run: idle_hour(run, run.idling.received_bytes()) / 1e3),
    ("API server, resident MB", "{:.0f}", lambda run: run.resident_mb),
)


def idle_hour(run: Measured, number: int) -> float:
    """Return a number per idle node and hour."""
    return number / run.nodes / run.idle_seconds * 3600


async def measure(cluster: Cluster, nodes: int, pods: int, idle_seconds: float) -> Measured:
    """Return the cost of a cluster with this many nodes, and this many pods on each."""
    bare = await cpu_without_agents(cluster, nodes, pods)
    async with fleet(cluster, nodes) as agents:
        starting = await agents.cost(agents.start())
        filling = await agents.cost(agents.fill(pods))
        idling = await agents.cost(asyncio.sleep(idle_seconds))
    return Measured(
        nodes=nodes,
        pods=nodes * pods,
        starting=starting,
        filling=filling,
        idling=idling,
        idle_seconds=idle_seconds,
        bare_cpu_seconds=bare,
        resident_mb=await cluster.resident_mb(),
    )


def measure_alone(nodes: int, pods: int, idle_seconds: float) -> Measured:
    """Measure on a fresh API server."""

    async def main() -> Measured:
        cluster = Cluster(server)
        try:
            return await measure(cluster, nodes, pods, idle_seconds)
        finally:
            await cluster.close()

    with installed_server() as server:
        return asyncio.run(main())


def table(measured: Sequence[Measured]) -> Iterator[str]:
    """Yield the lines of the table."""
    yield _line("nodes", [str(run.nodes) for run in measured])
    for name, form, read in ROWS:
        yield _line(name, [form.format(read(run)) for run in measured])


def verdicts(measured: Sequence[Measured]) -> Iterator[tuple[bool, str]]:
    """Yield whether each figure's growth is within the limit, with a sentence."""
    small, large = measured[0], measured[-1]
    for name, read in (
        ("requests per pod", attrgetter("requests_per_pod")),
        ("bytes watched per node", attrgetter("watched_per_node")),
    ):
        ratio = read(large) / read(small)
        sentence = f"{name}: {ratio:.3f} x with {large.nodes / small.nodes:.0f} x the nodes, limit {GROWTH} x"
        yield ratio <= GROWTH, f"{'holds ' if ratio <= GROWTH else 'MISSED'}  {sentence}"


def _line(name: str, cells: Sequence[str]) -> str:
    return f"{name:<40}" + "".join(f"{cell:>12}" for cell in cells)


def read_flags() -> argparse.Namespace:
    """Return the flags, checked."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.scale", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=500, help="of the largest cluster; default: 500")
    parser.add_argument("--pods", type=int, default=10_000, help="of the largest cluster; default: 10000")
    parser.add_argument(
        "--beside",
        type=int,
        nargs="*",
        default=[50, 200],
        metavar="NODES",
        help="smaller clusters with as many pods on each node; default: 50 200",
    )
    parser.add_argument("--idle", type=float, default=60, metavar="SECONDS", help="default: 60")
    args = parser.parse_args()
    if args.nodes < 1 or args.pods < 2 * args.nodes:
        parser.error("at least one node, and two pods on each: one of them is pinned")
    if args.idle <= 0 or any(nodes < 1 for nodes in args.beside):
        parser.error("--idle and --beside take positive numbers")
    return args


def main() -> int:
    """Measure each cluster and print the table; return 0 if nothing grows."""
    args = read_flags()
    logging.basicConfig(level=logging.ERROR)  # without warnings about broken watches, which are counted
    measured = []
    for nodes in sorted({args.nodes, *(nodes for nodes in args.beside if nodes < args.nodes)}):
        measured.append(measure_alone(nodes, args.pods // args.nodes, args.idle))
        print(f"\nload average {os.getloadavg()[0]:.1f}", *table(measured), sep="\n", flush=True)
    answers = list(verdicts(measured)) if len(measured) > 1 else []
    for _, sentence in answers:
        print(sentence)
    return 0 if all(holds for holds, _ in answers) else 1


if __name__ == "__main__":
    sys.exit(main())
