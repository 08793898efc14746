"""Texts of the commit before the types, d757a7e: they are read as they were, and written as they were."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agent.config import NodeOptions
from agent.node_state import VMState
from agent.published_parts import reported_cpus
from agent.report.desired_node import pools_text
from agent.report.pod_status import pod_status
from corepin.cmk.fits import machine_of
from corepin.node.node_view import view_of_annotations, view_of_state
from corepin.node.pod_timeline import agent_status
from dashboard.model.records import read_node, read_status
from pinning.contract import STATUS_CPUS, STATUS_POOLS, STATUS_TOPOLOGY
from pinning.guests.threads import GuestID
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import Owner, SeenPod
from published.codec import decode
from published.node_pools import Pools
from published.node_topology import decode_topology
from published.pod_status import GuestPlace, PodStatus
from tests.agent.states import EXCLUSIVE, ISOLATE, MACHINE, WHEN, bound, state_of
from tests.pods import container

FOLDER = Path("tests/data/published")
SHARED = {**ISOLATE, "shared-cpus.corepin.io/pod": "true"}
STATE = state_of(
    bound("web", container("main", 1), annotations=ISOLATE),
    bound("mixed", container("main", 1), annotations=SHARED),
    bound("late", container("main", 64), annotations=ISOLATE),
    bound("odd", annotations={"cpu-manager.corepin.io/pod": "banana"}),
    bound("plain"),
)
VM = VMState(
    kind="qemu",
    cpus=CPUSet.parse("1-2,5"),
    vcpus=(CPUSet([1]), CPUSet([5])),
    emulator=CPUSet([2]),
    iothreads=(CPUSet([2]),),
    vhost=CPUSet([2]),
    is_one_to_one=True,
    note="besides",
    refused=("kvm-pit",),
    guest_ids=(GuestID(0, 0, 0), GuestID(0, 0, 1)),
    when=WHEN,
)
LAUNCHED = state_of(bound("v", container("main", 3), annotations=EXCLUSIVE)).pods[0]
PODS = {pod.name: pod for pod in STATE.pods} | {"vm": replace(LAUNCHED, vm=VM)}
REPORTED = ["late", "mixed", "odd", "vm", "web"]


def text_of(name: str) -> str:
    """Return a captured text."""
    return (FOLDER / f"{name}.json").read_text(encoding="utf-8").rstrip("\n")


@pytest.mark.parametrize("name", REPORTED)
def test_an_agent_that_is_upgraded_writes_no_pod_again(name: str) -> None:
    """An upgraded agent writes the same bytes as the older one, so that it updates no pod."""
    before = text_of(f"status-{name}")

    assert pod_status(PODS[name], None) == before
    assert pod_status(PODS[name], before) == before


@pytest.mark.parametrize("name", REPORTED)
def test_every_reader_reads_the_status_of_a_pod(name: str) -> None:
    """The page, `corepin why` and the recovery of a ledger read an older agent's status."""
    text = text_of(f"status-{name}")
    status, problem = read_status(text)
    pod = SeenPod("uid", "default", name, "", (), (), said=text)

    assert (status, problem) == (decode(PodStatus, text), "")
    assert agent_status({"metadata": {"annotations": {STATUS_CPUS: text}}}) == status
    held = {"mixed": "1", "web": "2", "vm": "2-3,6"}
    expected = {Owner("uid", "main"): CPUSet.parse(held[name])} if name in held else {}
    assert reported_cpus([pod, replace(pod, said="[" * 10**5), replace(pod, said="")]) == expected


def test_a_virtual_machine_is_read() -> None:
    """A virtual machine in an older status is read with the CPUs of its threads and the guest's topology."""
    vm = decode(PodStatus, text_of("status-vm")).vm

    assert vm
    assert (vm.vcpus, vm.emulator, vm.note, vm.refused) == (("1", "5"), "2", "besides", ("kvm-pit",))
    assert vm.guest == (GuestPlace(), GuestPlace(thread=1))


def test_every_reader_reads_the_annotations_of_a_node() -> None:
    """The page, `corepin map` and `cmk cluster-init` read an older agent's annotations; cache alignment is unknown."""
    topology, pools = text_of("topology"), text_of("pools")
    node = read_node("n", topology, pools)
    there = machine_of({"metadata": {"annotations": {STATUS_TOPOLOGY: topology, STATUS_POOLS: pools}}})

    assert (node.problem, node.free, node.pools) == ("", CPUSet.parse("3,7"), decode(Pools, pools))
    assert node.pools
    assert node.pools.align_uncore is None
    assert decode_topology(topology) == MACHINE
    assert there
    assert (there.topology, there.universe) == (MACHINE, CPUSet.parse("0-7"))
    assert "default/web/main: exclusive, CPUs 2" in view_of_annotations("n", topology, pools).containers
    assert decode(Pools, pools_text(STATE, [], NodeOptions())).owners == node.pools.owners


def test_the_state_of_before_is_of_another_version() -> None:
    """The socket state of an agent before the renaming is refused with both versions."""
    with pytest.raises(Exception, match=r"version 1; this one reads version 2.*use the same version"):
        view_of_state(text_of("state").encode())
