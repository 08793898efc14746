"""Many pods with devices that start at once, on a real node of 128 CPUs on two NUMA nodes."""

from __future__ import annotations

from itertools import pairwise

from pinning.machine.cpuset import CPUSet, union
from tests.environments.guest.guest import Report
from tests.smt_cluster.conftest import MANY_PODS
from tests.smt_cluster.device_walk import RESULTS

NUMA_NODES = [CPUSet.parse("0-63"), CPUSet.parse("64-127")]
MEAN, BURST = 5, 10  # calls to the kubelet per second


def first_cpus(walk: Report) -> dict[str, CPUSet]:
    """Return the CPUs of the first line of each pod."""
    births = walk.one("births")["births"]
    return {it["pod"]: CPUSet.parse(it["lines"][0]) for it in births}


def test_walk_comes_to_its_end(device_walk: Report) -> None:
    """Every step of the walk succeeded, and every pod has started."""
    assert [failure["traceback"] for failure in device_walk.facts.get("failed", [])] == []
    assert [it["pod"] for it in device_walk.one("births")["births"] if not it["lines"]] == []


def test_every_container_starts_beside_its_device(device_walk: Report) -> None:
    """The first instruction of each container ran on the NUMA node of its device."""
    far = {
        name: str(cpus)
        for name, cpus in first_cpus(device_walk).items()
        if not cpus <= NUMA_NODES[int(name.removeprefix("pod-")) % 2]
    }
    assert far == {}


def test_every_container_starts_on_a_cpu_of_its_own(device_walk: Report) -> None:
    """Each first line names one CPU, and no two the same."""
    cpus = first_cpus(device_walk).values()
    assert [len(it) for it in cpus] == [1] * MANY_PODS
    assert len(union(cpus)) == MANY_PODS


def test_calls_of_the_kubelet_stay_within_the_rate_limit(device_walk: Report) -> None:
    """The agent called the kubelet 5 times a second on average at most, and 10 times a second between two samples."""
    samples = device_walk.one("calls")["samples"]
    counted = [(it["at"], sum(it[result] for result in RESULTS)) for it in samples]
    (began, before), (ended, after) = counted[0], counted[-1]
    assert after - before <= MEAN * (ended - began)
    assert all(new - old <= BURST * max(1.0, later - at) for (at, old), (later, new) in pairwise(counted))
