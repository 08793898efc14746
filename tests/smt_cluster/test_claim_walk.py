"""Claims of other projects on a real cluster of one node with ten cores of two threads, on two NUMA nodes."""

from __future__ import annotations

from typing import Any

import pytest

from pinning.contract import DRA_CPUSET_PREFIX, DRA_DRIVER
from pinning.machine.cpuset import CPUSet, union
from tests.environments.guest.guest import Report
from tests.environments.node.claim_shapes import HUGEPAGES, SHAPES, VEP_152_MEM, Named, Shape

NUMA_NODES = [CPUSet.parse("0-15"), CPUSet.parse("16-19")]
CORES = [CPUSet((first, first + 1)) for first in range(0, 20, 2)]
Seen = dict[str, Any]
NAMED = [
    pytest.param(name, it, id=f"{name}, {it.container}")
    for name, shape in SHAPES.items()
    for it in shape.named
]


def seen(walk: Report, shape: str) -> Seen:
    """Return the observation of one pod."""
    [found] = [it for it in walk.all("shape") if it["shape"] == shape]
    return found


def cpus_of(container: Seen) -> CPUSet:
    """Return the CPUs of a container: those of its cgroup, which its tasks and its first line must have too."""
    assert {*container["allowed"]} == {container["cpuset"]}
    assert container["first"] == container["requested"] == container["cpuset"]
    return CPUSet.parse(container["cpuset"])


def test_walk_comes_to_its_end(claim_walk: Report) -> None:
    """Every step of the walk succeeded within its timeout."""
    assert [failure["traceback"] for failure in claim_walk.facts.get("failed", [])] == []
    assert [passed["step"] for passed in claim_walk.all("passed")] == ["start", "install", *SHAPES, "budget"]
    assert [call["command"] for call in claim_walk.all("kubectl") if call["status"]] == []


@pytest.mark.parametrize(("shape", "named"), NAMED)
def test_container_runs_on_its_claim_from_its_first_line_on(
    claim_walk: Report, shape: str, named: Named
) -> None:
    """Variable, cpuset, tasks and first line are the claim's CPUs: all allocated ones, in whole cores of one NUMA node."""
    found = seen(claim_walk, shape)
    container, claim = found["containers"][named.container], found["claims"][named.claim]
    own = cpus_of(container)
    assert container["variables"] == {f"{DRA_CPUSET_PREFIX}{claim['metadata']['uid']}": str(own)}
    assert len(own) == named.cpus == consumed(claim)
    assert own == union(core for core in CORES if core & own)
    assert any(own <= numa_node for numa_node in NUMA_NODES)


def consumed(claim: Seen) -> int:
    """Return the CPUs that the scheduler charged to a claim."""
    results = claim["status"]["allocation"]["devices"]["results"]
    [amount] = [it["consumedCapacity"]["dra.cpu/cpu"] for it in results if it["driver"] == DRA_DRIVER]
    return int(amount)


@pytest.mark.parametrize(
    ("shape", "container", "quota"),
    [
        ("dra-driver-cpu, mirrored", "workload-container", "max"),
        ("dra-driver-cpu, mapped", "workload-container", "1000"),
        ("nri-plugins", "main", "max"),
        ("VEP 152", "compute", "1100000"),
    ],
)
def test_limit_below_the_claim_stays_a_quota(
    claim_walk: Report, shape: str, container: str, quota: str
) -> None:
    """A container has the quota of its limit, in a period of 100,000 us, if that is lower than its CPUs."""
    assert seen(claim_walk, shape)["containers"][container]["quota"] == quota


@pytest.mark.parametrize(("name", "shape"), SHAPES.items(), ids=SHAPES)
def test_no_other_container_runs_there(claim_walk: Report, name: str, shape: Shape) -> None:
    """A claim shares no CPU with another claim or with containers without a claim, which get no claim variables."""
    containers = seen(claim_walk, name)["containers"]
    cpus = {it: cpus_of(container) for it, container in containers.items()}
    assert cpus.keys() == {*(it.container for it in shape.named), *shape.others}
    assert len(union(cpus.values())) == sum(map(len, cpus.values()))
    assert [containers[it]["variables"] for it in shape.others] == [{} for _ in shape.others]


def test_claim_of_two_drivers_has_results_of_both(claim_walk: Report) -> None:
    """A claim of two drivers has CPUs and hugepages of the same NUMA node."""
    [name] = [name for name, shape in SHAPES.items() if shape is VEP_152_MEM]
    [claim] = seen(claim_walk, name)["claims"].values()
    results = claim["status"]["allocation"]["devices"]["results"]
    assert [(it["request"], it["driver"], it["device"]) for it in results] == [
        ("cpu", DRA_DRIVER, "cpudevnuma000"),
        ("mem", HUGEPAGES, "hugepages-0"),
    ]
