"""Sums of the requests of a node's pods, as the scheduler computes them, and the load of shared and reserved CPUs."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from pinning.machine.cpuset import CPUSet
from pinning.planning.ledger import Ledger
from pinning.planning.node_config import NodeConfig
from pinning.planning.node_sets import NodeSets, node_sets
from pinning.planning.observed import SeenPod
from pinning.planning.requests import (
    Overcommit,
    Sidecars,
    fulfilled,
    in_shared_set,
    overcommit,
    requested,
    rounded_up_fraction,
    sidecars,
    system_load,
    totals,
)
from pinning.pods.resources import members
from pinning.pods.types import Pod
from tests.pinning.entries import entry
from tests.pinning.nodes import smt_machine
from tests.pods import CORES, container, pod
from tests.tables import table

EXCLUSIVE = {"cpu-manager.corepin.io/container.c": "exclusive"}
SIDECAR = ("200m", "64M")


def named(uid: str, *containers: Any, phase: str = "Running", **more: Any) -> Pod:
    """Return a pod of namespace n, as the API server returns it."""
    document = pod(*containers, **more)
    metadata = {**(document["metadata"] or {}), "name": uid, "namespace": "n", "uid": uid}
    return {**document, "metadata": metadata, "status": {"phase": phase}}  # type: ignore[typeddict-item]


def sets_of(**config: Any) -> NodeSets:
    """Return the CPU sets of a node of 4 cores of which one is reserved."""
    machine = smt_machine(4)
    return node_sets(machine, machine.online, NodeConfig(reserved=CPUSet.parse("0,4"), **config))


@table(
    "init, main, total",
    {
        "containers add up": ([], [1, 2], 3),
        "an init container runs alone": ([(5, None)], [1], 5),
        "but beside sidecars before it": ([(1, "Always"), (5, None)], [1], 6),
        "and not beside those after it": ([(5, None), (1, "Always")], [3], 5),
    },
)
def test_extended_resources_are_summed_as_by_the_scheduler(
    init: list[tuple[int, str | None]], main: list[int], total: int
) -> None:
    """Containers and sidecars are summed, and an init container counts if it requests more than these."""
    first = [
        container(f"i{at}", {CORES: number}, restartPolicy=when) for at, (number, when) in enumerate(init)
    ]
    mains = [container(f"m{at}", {CORES: number}) for at, number in enumerate(main)]
    assert requested(members(pod(*mains, init=first)), CORES) == total


def test_all_requests_are_summed_exactly() -> None:
    """Requests are summed exactly, down to the smallest amount that the API can express."""
    asks = pod(container("a", requests={"cpu": "100m"}), container("b", requests={"cpu": 2, "memory": "1Ki"}))
    assert totals(asks) == {"cpu": "2100000000n", "memory": "1024000000000n"}
    assert [rounded_up_fraction(Fraction(part, 2)) for part in (0, 1, 2)] == [0, 1, 1]


def test_surplus_of_one_container_fills_no_gap_of_another() -> None:
    """Cores that one container holds beyond its request do not reduce what another one lacks."""
    asks = members(pod(container("a", {CORES: 2}), container("b", {CORES: 2})))
    assert [fulfilled(asks, CORES, held) for held in ({}, {"a": 4}, {"a": 1, "b": 2})] == [0, 2, 3]


def test_owners_and_ended_pods_are_no_shared_load() -> None:
    """The shared load is the requests of containers without own CPUs, plus what owners leave of pod-level requests."""
    pods = [
        named("a", container("c", 2), container("side", requests="500m")),
        named("b", container("x", requests="2500m")),
        named("done", container("x", requests=9), phase="Succeeded"),
        named("whole", container("c", 2), resources={"requests": {"cpu": "3"}}),
    ]
    ledger = Ledger().assign(entry("a", "1-2")).assign(entry("whole", "5-6"))
    assert overcommit(pods, ledger, 4) == Overcommit(4000, 4000)
    assert not overcommit(pods, ledger, 4).is_over
    assert overcommit(pods, Ledger(), 4) == Overcommit(8000, 4000)
    assert overcommit(pods, Ledger(), 4).is_over


def test_gate_is_no_load() -> None:
    """The gate's request is not counted as load, because the gate ends before the other containers start."""
    gate = container("corepin-gate", {"cpu": "200m", "memory": "64M"})
    gated = named("a", container("c", 2), init=[gate], annotations=EXCLUSIVE)
    assert overcommit([gated], Ledger().assign(entry("a", "1-2")), 4).requested == 0
    assert sidecars([gated], [SeenPod.of(gated)], SIDECAR) == Sidecars(0, 0, 0)


@table(
    "config, load, shared",
    {
        "no system namespaces": ({}, 0, 3000),
        "system pods": ({"system_namespaces": ("n",)}, 3000, 3000),
        "on a strict reserve": ({"system_namespaces": ("n",), "strict_reserved": True}, 3000, 0),
        "of other namespaces": ({"system_namespaces": ("m",), "strict_reserved": True}, 0, 3000),
    },
)
def test_system_pods_are_load_of_the_reserved_cpus(config: dict[str, Any], load: int, shared: int) -> None:
    """System pods are load of the reserved CPUs, and, unless the reserve is strict, also of the shared ones."""
    pods = [named("a", container("x", requests=3)), named("b", container("x", requests=3), phase="Failed")]
    sets = sets_of(**config)
    assert system_load(map(SeenPod.of, pods), sets) == Overcommit(load, 2000)
    assert overcommit(in_shared_set(pods, sets), Ledger(), 4).requested == shared


def test_sidecars_are_known_by_their_amount() -> None:
    """A sidecar is counted if it has exactly the injected amounts, and its pod claims CPUs and has not ended."""
    amount = {"cpu": "200m", "memory": "64M"}
    injected = (container("s1", amount), container("s2", amount), container("own", {"cpu": "200m"}))
    pods = [
        named("a", container("c", 1), *injected, annotations=EXCLUSIVE),
        named("b", container("s", amount)),
        named("done", container("c", 1), *injected, annotations=EXCLUSIVE, phase="Failed"),
    ]
    assert sidecars(pods, map(SeenPod.of, pods), SIDECAR) == Sidecars(2, 400, 128_000_000)
