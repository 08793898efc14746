"""Growth and replacement on machines of which only the NUMA nodes of the chosen CPUs matter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pinning.allocation import place
from pinning.contract import NUMAPolicy, SMTPolicy
from pinning.machine.cpuset import CPUSet, union
from tests.machines import captured
from tests.pinning.growing import grown
from tests.pinning.machines import machine

if TYPE_CHECKING:
    from pinning.allocation import Sort
    from pinning.machine.topology import Topology

DISTRIBUTED = NUMAPolicy.DISTRIBUTED
SORTS: list[Sort] = ["packed", "spread"]
XEON = captured(
    "xeon-6248-snc2"
)  # 2 sockets of a cache x 2 nodes x 10 cores, numbered crosswise; pairs N,N+40
THIRTY_TWO = machine(128, 2, lambda core: (core // 64, core // 4, core // 4))  # every last-level cache a node


def per_node(topology: Topology, chosen: CPUSet) -> str:
    """Return the number of CPUs on each NUMA node."""
    return "/".join(str(len(chosen & node)) for node in topology.numa_nodes.values())


def on_node(topology: Topology, node: int, count: int) -> CPUSet:
    """Return whole cores of a node, the last ones, so that its order of cores gives no advantage."""
    cores = [core.cpus for core in topology.cores if core.numa_node == node]
    return union(cores[-count // len(cores[0]) :])


@pytest.mark.parametrize(
    ("start", "held", "count", "split"),
    [
        pytest.param(0, 8, 64, "16/16/16/16", id="all-nodes-alike"),
        pytest.param(3, 8, 64, "16/16/16/16", id="all-nodes-alike-from-the-last"),
        pytest.param(0, 8, 24, "12/12/0/0", id="the-other-node-of-its-socket"),
        pytest.param(1, 2, 26, "13/13/0/0", id="its-socket-though-the-other-is-emptier"),
        pytest.param(3, 2, 26, "0/0/13/13", id="its-socket-is-the-second"),
        pytest.param(0, 2, 18, "18/0/0/0", id="one-node-is-enough"),
        pytest.param(0, 2, 62, "16/15/16/15", id="single-cpus-where-most-are-left"),
        pytest.param(0, 16, 48, "16/0/16/16", id="it-has-its-share"),
        pytest.param(0, 18, 70, "18/17/18/17", id="it-has-its-share-and-one-of-those-left-over"),
        pytest.param(0, 20, 48, "20/0/14/14", id="the-others-share-what-its-node-leaves"),
        pytest.param(0, 20, 66, "20/15/16/15", id="the-others-share-evenly-what-its-node-leaves"),
    ],
)
def test_distributed_stays_even(start: int, held: int, count: int, split: str) -> None:
    """Growth stays even over NUMA nodes that share a cache, on the container's own sockets first."""
    free = XEON.cpus - XEON.siblings_of(CPUSet([9]))
    chosen = grown(XEON, on_node(XEON, start, held), count, free, numa_policy=DISTRIBUTED)
    assert per_node(XEON, chosen) == split


def test_distributed_over_very_many_nodes_ends() -> None:
    """Distribution over 32 NUMA nodes finishes, because it does not compare half a billion sets of nodes."""
    every = place(THIRTY_TWO, THIRTY_TWO.cpus, 130, numa_policy=DISTRIBUTED).cpus
    assert per_node(THIRTY_TWO, every).count("8") + per_node(THIRTY_TWO, every).count("7") == 17
    more = grown(THIRTY_TWO, every, 200, numa_policy=DISTRIBUTED)
    assert per_node(THIRTY_TWO, more).count("8") == 25
    assert every <= more


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("sort", SORTS)
def test_packed_stays_on_its_node_where_nodes_share_a_cache(sort: Sort, align: bool) -> None:
    """With 16 CPUs free on its node, a container does not leave it for a neighbour that shares the cache."""
    home, beside, *_ = XEON.numa_nodes.values()
    neighbour = beside - XEON.cores_of(beside)[-1].cpus
    for core in XEON.cores_of(home):
        keep = core.cpus
        assert grown(XEON, keep, 4, XEON.cpus - neighbour, sort=sort, align_uncore=align) <= home


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("numa", NUMAPolicy)
@pytest.mark.parametrize("smt", SMTPolicy)
def test_a_replacement_stays_on_its_node_where_nodes_share_a_cache(
    smt: SMTPolicy, numa: NUMAPolicy, sort: Sort
) -> None:
    """An offline CPU is replaced on its own node as long as that has room."""
    home, beside, *_ = XEON.numa_nodes.values()
    placed = place(XEON, home, 4, smt=smt, numa_policy=numa, sort=sort)
    free = XEON.cpus - placed.owned - (beside - XEON.cores_of(beside)[-1].cpus)
    for lost in placed.cpus:
        now = XEON.with_online(XEON.online - XEON.siblings_of(CPUSet((lost,))))
        again = place(now, free, 4, smt=smt, numa_policy=numa, sort=sort, keep=placed)
        assert again.cpus <= home
