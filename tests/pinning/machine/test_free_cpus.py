"""Free CPUs of NUMA nodes as schedulers count them."""

from __future__ import annotations

from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.free_cpus import ZoneCPUs, free_cpus, zone_cpus
from tests.pinning.nodes import SNC


def test_cpus_are_counted_on_each_node() -> None:
    """For each NUMA node the CPUs that claims can have, and the free ones among them, are counted; both may be 0."""
    pool, free = SNC.online - SNC.numa_nodes[0], SNC.numa_nodes[1] | SNC.numa_nodes[0]
    found = zone_cpus(SNC, pool, free, SNC.numa_nodes[0])
    size = len(SNC.numa_nodes[1])
    assert found == (ZoneCPUs(0, 0, 0), ZoneCPUs(1, size, size), ZoneCPUs(2, size, 0), ZoneCPUs(3, size, 0))
    assert free_cpus(pool, free, SNC.numa_nodes[0]) == size


def test_last_cpu_of_the_shared_set_is_not_counted() -> None:
    """The agent never assigns it; without free CPUs nothing is subtracted."""
    last = CPUSet([SNC.numa_nodes[1].lowest()])
    assert [zone.free for zone in zone_cpus(SNC, SNC.online, last, last)] == [0, 0, 0, 0]
    assert free_cpus(SNC.online, last, last) == 0
    assert free_cpus(SNC.online, EMPTY, last) == 0
