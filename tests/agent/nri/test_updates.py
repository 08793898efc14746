"""Updates of running containers about which the runtime asks the agent's NRI plugin."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.nri.wire import Event
from agent.nri.wire import nri_pb2 as pb
from pinning.planning.observed import Owner
from tests.agent.nri.fake_runtime import container, known, known_pod
from tests.agent.nri.planned_node import A, Node, node_with
from tests.pinning.world import EXCLUSIVE


@pytest.fixture
def node() -> Node:
    """Return a node on which an exclusive container is to start."""
    return node_with(EXCLUSIVE)


@pytest.mark.parametrize(("asked", "corrected"), [("", "1,5"), ("0-7", "1,5"), ("1,5", None)])
def test_update_keeps_a_container_on_its_cpus(node: Node, asked: str, corrected: str | None) -> None:
    """An update with other CPUs is answered with the CPUs of the newest table, and with nothing else."""
    update = node.plugin.update_container(
        A, container("c0", "a"), pb.LinuxResources(cpu=pb.LinuxCPU(cpus=asked))
    )
    expected = pb.ContainerUpdate(container_id="a-c0")
    if corrected is None:
        assert not update.update
        return
    expected.linux.resources.cpu.cpus = corrected
    assert list(update.update) == [expected]


@pytest.mark.parametrize(("asked", "applied"), [("", "1,5"), ("0-7", "1,5"), ("1,5", "1,5")])
def test_every_update_is_counted_with_the_cpus_that_are_applied(node: Node, asked: str, applied: str) -> None:
    """After each update its number and its CPUs are known, which are the corrected ones if it was corrected."""
    resources = pb.LinuxResources(cpu=pb.LinuxCPU(cpus=asked))
    for number in range(3):
        assert node.plugin.last_update("a-c0")[0] == number
        node.plugin.update_container(A, container("c0", "a"), resources)
    assert node.plugin.last_update("a-c0") == (3, applied)


def test_update_while_observing_is_counted(node: Node) -> None:
    """An update that is left alone is counted with its own CPUs, so that an earlier record is not taken for the present one."""
    node.plugin.table = None
    resources = pb.LinuxResources(cpu=pb.LinuxCPU(cpus="0-7"))
    node.plugin.update_container(A, container("c0", "a"), resources)
    assert node.plugin.last_update("a-c0") == (1, "0-7")


@pytest.mark.parametrize("end", ["removal", "connection"])
def test_updates_are_forgotten(node: Node, end: str) -> None:
    """With its container, or with the connection, the updates are forgotten."""
    node.plugin.update_container(A, container("c0", "a"), pb.LinuxResources())
    if end == "removal":
        node.plugin.event(Event.REMOVE_CONTAINER, known_pod(A), known(container("c0", "a")))
    else:
        node.plugin.disconnected()
    assert node.plugin.last_update("a-c0") == (0, "")
    assert node.plugin.connections == (end == "connection")


def test_container_in_conflict_is_not_corrected(node: Node) -> None:
    """During a conflict the plugin does not correct updates of the container, and new containers still get their CPUs."""
    table = node.publish()
    node.plugin.table = replace(table, left_alone=frozenset({Owner("uid-a", "c0")}))
    assert not node.plugin.update_container(A, container("c0", "a"), pb.LinuxResources()).update
    assert node.cpus(A) == "1,5"
