"""Memory binding in the plan: to the CPUs' NUMA node if it has memory, and not under the kubelet's Memory Manager."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pinning.machine.cpuset import CPUSet
from pinning.planning.memory import too_much_memory
from pinning.planning.observed import Owner
from tests.pinning.world import Wish, World, edit, one_pod, reasons, world

BOUND = Wish("2", policy="exclusive", numa="single", memory="bind", memory_limit="1Gi")
FREE = replace(BOUND, memory="free")


def mems(node: World, uid: str = "a") -> str:
    """Return the NUMA nodes to which a container's memory is bound at its start."""
    assignment = node.ledger.of(Owner(uid, "c0"))
    assert assignment is not None
    return str(assignment.mems)


def with_memory(node: World, nodes: str) -> World:
    """Return the node with memory only on these NUMA nodes."""
    node.topology = replace(node.topology, known_memory_nodes=CPUSet.parse(nodes))
    return node


def test_memory_is_bound_to_the_node_of_the_cpus() -> None:
    """On two sockets that are NUMA nodes, the memory of each container is bound to the node of its CPUs."""
    node = one_pod(BOUND, sockets=2)
    node.add("b", [replace(BOUND, cpu="8")])
    assert reasons(node.run_all()) == {}
    assert (node.holds("a"), mems(node)) == ("1,9", "0")
    assert (node.holds("b"), mems(node, "b")) == ("4-7,12-15", "1")


@pytest.mark.parametrize(
    "wish",
    [FREE, replace(BOUND, memory=None), replace(BOUND, numa="packed")],
    ids=["free", "unsaid", "packed"],
)
def test_memory_stays_free_elsewhere(wish: Wish) -> None:
    """Memory is bound only under `bind` together with `single`."""
    assert mems(one_pod(wish, sockets=2)) == ""


def test_an_edit_counts_from_the_next_start() -> None:
    """An edit of the memory annotation applies at the container's next start, and changes no CPUs."""
    node = one_pod(FREE, sockets=2)
    before = node.holds("a")
    edit(node, "a", BOUND)
    assert (node.holds("a"), mems(node)) == (before, "0")
    edit(node, "a", FREE)
    assert (node.holds("a"), mems(node)) == (before, "")


def test_cpus_beside_memory_come_first() -> None:
    """A container whose memory is bound gets CPUs of a NUMA node with memory, even if another node has as many free CPUs."""
    node = with_memory(world(sockets=2), "1")
    node.add("a", [BOUND])
    node.add("b", [FREE])
    assert reasons(node.run_all()) == {}
    assert (node.holds("a"), mems(node)) == ("4,12", "1")
    assert node.holds("b") == "1,9"


def test_cpus_without_memory_beside_them_are_better_than_none() -> None:
    """If only a NUMA node without memory is free, the container gets CPUs without bound memory, and a refusal says so."""
    node = with_memory(one_pod(replace(BOUND, cpu="8"), sockets=2), "1")
    node.run_all()
    planned = node.create("b", [BOUND])

    assert (node.holds("b"), mems(node, "b")) == ("1,9", "")
    (refusal,) = planned.refusals
    assert (refusal.name, refusal.reason, refusal.blocks_start) == ("test/pod-b/c0", "MemoryNotBound", False)
    assert "NUMA node 0 of its CPUs 1,9 has none (nodes with memory: 1)" in refusal.message


def test_beside_the_memory_manager_nothing_is_bound() -> None:
    """If the kubelet's Memory Manager binds memory, a container gets its CPUs, and its memory binding is refused."""
    node = one_pod(BOUND, sockets=2, kubelet_binds_memory=True)
    (refusal,) = node.run_all().refusals
    assert (node.holds("a"), mems(node)) == ("1,9", "")
    assert refusal.reason == "MemoryNotBound"
    assert "Memory Manager (policy Static)" in refusal.message


def test_a_claim_that_holds_nothing_is_refused_once() -> None:
    """A container whose CPUs are refused has no second refusal about its memory."""
    node = one_pod(replace(BOUND, cpu="16"), sockets=2)
    assert reasons(node.run_all()) == {"test/pod-a/c0": "NotEnoughCPUs"}


@pytest.mark.parametrize(
    ("size", "says"),
    [
        pytest.param(2**29, "limit 1024 MiB is above the 512 MiB of NUMA node 0", id="less than the limit"),
        pytest.param(2**30, "", id="just enough"),
        pytest.param(None, "", id="not known"),
    ],
)
def test_a_limit_above_the_memory_is_warned_about(size: int | None, says: str) -> None:
    """A container whose limit is above its NUMA node's memory gets a warning, because it could be OOM killed."""
    node = one_pod(BOUND, sockets=2)
    (assignment,) = node.ledger
    told = too_much_memory(assignment, replace(node.topology, memory={} if size is None else {0: size}))
    assert says in told
    assert bool(told) is bool(says)
