"""Time of one allocation on 256 CPUs in 8 NUMA nodes: `python -m bench.allocate`.

The time of a case is the best of five runs, so that a busy machine does not look like a slow algorithm. The
baseline is one pass over a list of integers that keeps the free ones, for the same cases.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from pinning.allocation import Placement, place, take_cores, take_cpus
from pinning.contract import NUMAPolicy, SMTPolicy
from pinning.errors import NotEnoughCPUs
from pinning.machine.cpuset import CPUSet
from pinning.machine.topology import CPUFacts, Topology, assemble

if TYPE_CHECKING:
    from collections.abc import Iterator

CORES, CORES_PER_CACHE, CORES_PER_NODE, NODES_PER_PACKAGE = 128, 4, 16, 4
REPEATS = 5
RANDOM_CASES = 600
MICROSECONDS = 1e6


class Act(Protocol):
    """An allocator: chooses a number of the free CPUs."""

    def __call__(self, free: CPUSet, count: int, /) -> object:
        """Return the choice, or raise NotEnoughCPUs."""


@dataclass(frozen=True)
class Case:
    """The free CPUs, and the number of wanted ones."""

    free: CPUSet
    count: int


@dataclass(frozen=True)
class Subject:
    """An allocator with its time limit."""

    name: str
    act: Act
    limit: float | None = None  # microseconds


def machine() -> Topology:
    """Return 2 packages x 4 NUMA nodes x 4 caches x 4 cores x 2 threads."""
    facts = [
        CPUFacts(
            core + thread * CORES,
            core,
            core // CORES_PER_NODE // NODES_PER_PACKAGE,
            core // CORES_PER_NODE,
            core // CORES_PER_CACHE,
        )
        for core in range(CORES)
        for thread in range(2)
    ]
    return assemble(facts, CPUSet(range(2 * CORES)))


def cases(topology: Topology) -> Iterator[Case]:
    """Yield an empty machine, machines after random allocations, and unevenly filled NUMA nodes."""
    for count in range(1, len(topology.cpus) + 1, 5):
        yield Case(topology.cpus, count)
    random = Random(4)  # noqa: S311 - the same cases in every run
    for _ in range(RANDOM_CASES):
        shares = [random.random() for _ in topology.numa_nodes]
        free = CPUSet(
            cpu
            for node, share in zip(topology.numa_nodes.values(), shares, strict=True)
            for cpu in node
            if random.random() < share
        )
        if free:
            yield Case(free, random.randint(1, len(free)))


def subjects(topology: Topology) -> list[Subject]:
    """Return the allocators to measure."""
    take, put = partial(take_cpus, topology), partial(place, topology)
    require, isolate = SMTPolicy.REQUIRE, SMTPolicy.ISOLATE
    return [
        Subject("packed", take, 200),
        Subject("packed, caches aligned", partial(take, align_uncore=True), 200),
        Subject("spread", partial(take, sort="spread"), 200),
        Subject("distributed", partial(take, distribute=True), 5000),
        Subject("distributed, whole cores", partial(take, distribute=True, group_size=2), 5000),
        Subject("place: prefer", put),
        Subject("place: require", partial(put, smt=require)),
        Subject("place: isolate", partial(put, smt=isolate)),
        Subject("place: require, one node", partial(put, smt=require, numa_policy=NUMAPolicy.SINGLE)),
        Subject("CMK cores, spread", partial(take_cores, topology, mode="spread")),
        Subject("grown: prefer", partial(grow, topology)),
        Subject("grown: prefer, spread", partial(grow, topology, sort="spread")),
        Subject("grown: distributed", partial(grow, topology, numa_policy=NUMAPolicy.DISTRIBUTED), 5000),
    ]


def grow(topology: Topology, free: CPUSet, count: int, /, **options: Any) -> Placement:
    """Double a claim whose present CPUs are scattered."""
    keep = CPUSet(list(free)[:count:2])
    return place(topology, free - keep, count, keep=Placement(keep), **options)


def seconds(act: Act, case: Case) -> float:
    """Return the best time of one case, also if the allocator refuses it."""
    best = float("inf")
    for _ in range(REPEATS):
        start = perf_counter()
        with suppress(NotEnoughCPUs):
            act(case.free, case.count)
        best = min(best, perf_counter() - start)
    return best


def one_pass(every: list[int], free: set[int], _all: CPUSet, count: int) -> list[int]:
    """Keep the first free CPUs, as integers."""
    return [cpu for cpu in every if cpu in free][:count]


def baseline(topology: Topology, every: list[Case]) -> float:
    """Return the median time of the baseline."""
    numbers = list(topology.cpus)
    times = [seconds(partial(one_pass, numbers, set(case.free)), case) for case in every]
    return sorted(times)[len(times) // 2]


def report(subject: Subject, every: list[Case], bare: float) -> str:
    """Return one line of figures and one that shows the worst case."""
    timed = sorted((seconds(subject.act, case), number) for number, case in enumerate(every))
    middle, high, (most, worst) = timed[len(timed) // 2][0], timed[len(timed) * 99 // 100][0], timed[-1]
    figures = " ".join(
        f"{value * MICROSECONDS:9.1f} us {value / bare:6.1f}x" for value in (middle, high, most)
    )
    limit = f"  limit {subject.limit:.0f} us" if subject.limit else ""
    verdict = "" if not subject.limit else ": kept" if most * MICROSECONDS < subject.limit else ": EXCEEDED"
    case = every[worst]
    return f"{subject.name:26}{figures}{limit}{verdict}\n    worst: {case.count} of {len(case.free)} free, {case.free}"


def main() -> None:
    """Print the figures."""
    topology = machine()
    every = list(cases(topology))
    start = perf_counter()
    take_cpus(topology, topology.cpus, 1)
    first = perf_counter() - start
    bare = baseline(topology, every)
    print(f"{len(every)} cases, {len(topology.cpus)} CPUs, {len(topology.numa_nodes)} NUMA nodes")
    print(f"baseline, one pass over a list: {bare * MICROSECONDS:.1f} us")
    print(f"first allocation on a machine (makes its tables once): {first * MICROSECONDS:.0f} us")
    print(f"{'':26}{'p50':>20}{'p99':>21}{'max':>21}")
    for subject in subjects(topology):
        print(report(subject, every, bare))


if __name__ == "__main__":
    main()
