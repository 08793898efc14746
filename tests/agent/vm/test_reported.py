"""A virtual machine in the pod's status, the agent's state, the metrics and `corepin map`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from agent.metrics import Metrics
from agent.node_state import NodeState, VMState
from agent.report.pod_status import pod_status
from agent.serve.state_json import to_json
from corepin.node.node_view import view_of_state
from pinning.machine.cpuset import EMPTY, CPUSet
from tests.agent.states import EXCLUSIVE, WHEN, bound, state_of
from tests.pods import container

LATER = "2026-11-20T11:00:00Z"
PAIR = (CPUSet([1]), CPUSet([5]))
VM = VMState(
    kind="qemu",
    cpus=CPUSet.parse("1-2,5"),
    vcpus=PAIR,
    emulator=CPUSet([2]),
    iothreads=(CPUSet([2]),),
    vhost=CPUSet([2]),
    is_one_to_one=True,
    when=WHEN,
)
TOGETHER = replace(
    VM, vcpus=(VM.cpus,) * 2, emulator=VM.cpus, is_one_to_one=False, reason="no names", refused=("kvm-pit",)
)


def state_with(vm: VMState | None) -> NodeState:
    """Return the state of a node with one pod and this machine."""
    state = state_of(bound("v", container("main", 3), annotations=EXCLUSIVE))
    return replace(state, pods=tuple(replace(pod, vm=vm) for pod in state.pods))


def reported(vm: VMState | None, before: str | None = None) -> Any:
    """Return the machine in the pod's status."""
    text = pod_status(state_with(vm).pods[0], before)
    assert text
    return json.loads(text).get("vm")


def test_status_has_the_cpus_of_each_role() -> None:
    """The status has the CPUs of vCPUs in order, emulator, iothreads and vhost, with the time."""
    assert reported(VM) == {
        "kind": "qemu",
        "vcpus": ["1", "5"],
        "oneToOne": True,
        "emulator": "2",
        "iothreads": ["2"],
        "vhost": "2",
        "time": WHEN,
    }


def test_status_has_the_reason_for_shared_vcpus() -> None:
    """The status has the reason and the threads that the kernel does not move."""
    vm = reported(TOGETHER)

    assert (vm["oneToOne"], vm["reason"], vm["refused"]) == (False, "no names", ["kvm-pit"])


def test_time_of_an_unchanged_machine_stays() -> None:
    """A restarted agent that reads the same CPUs does not change the status."""
    before = pod_status(state_with(VM).pods[0], None)
    assert pod_status(state_with(replace(VM, when=LATER)).pods[0], before) == before
    assert reported(replace(VM, when=LATER, vhost=EMPTY), before)["time"] == LATER


def test_shared_set_is_left_out_of_the_annotation() -> None:
    """The shared set is omitted, because it changes without the pod."""
    shared = CPUSet.parse("0,3-4,6-7")
    aside = replace(VM, emulator=shared, iothreads=(shared,), vhost=shared)

    assert reported(aside).keys() == {"kind", "vcpus", "oneToOne", "time"}
    assert reported(replace(aside, cpus=EMPTY)) is None


def test_pinned_machine_is_reported_while_observing() -> None:
    """A machine with CPUs is reported although its containers have none from this agent."""
    state = state_of(bound("v"))
    pod = replace(state.pods[0], vm=VM)

    assert pod.is_reported
    assert not replace(pod, vm=replace(VM, cpus=EMPTY)).is_reported
    assert json.loads(pod_status(pod, None) or "{}")["containers"] == {}


def test_state_has_the_machine_as_json() -> None:
    """CPU sets are lists in the kernel's format."""
    (pod,) = json.loads(to_json(state_with(VM)))["pods"]

    assert pod["vm"] == {
        "kind": "qemu",
        "cpus": "1-2,5",
        "vcpus": ["1", "5"],
        "emulator": "2",
        "iothreads": ["2"],
        "vhost": "2",
        "oneToOne": True,
        "time": WHEN,
    }
    assert "vm" not in json.loads(to_json(state_with(None)))["pods"][0]


@pytest.mark.parametrize(
    ("vm", "line"),
    [
        (
            VM,
            "virtual machine (qemu), vCPU 0 on CPU 1, 1 on CPU 5, emulator on 2, iothreads on 2, vhost on 2",
        ),
        (
            TOGETHER,
            "virtual machine (qemu), 2 vCPUs on CPUs 1-2,5, emulator on 1-2,5, iothreads on 2, vhost on 2,"
            " the kernel keeps kvm-pit on other CPUs, vCPUs not pinned one to one (no names)",
        ),
        (
            replace(
                VM, vcpus=(), iothreads=(), vhost=EMPTY, is_one_to_one=False, reason="why", note="besides"
            ),
            "virtual machine (qemu), emulator on 2, vCPUs not pinned one to one (why), besides",
        ),
    ],
)
def test_map_shows_the_cpus_of_the_machine(vm: VMState, line: str) -> None:
    """The map has one line for the machine below the pod's containers."""
    view = view_of_state(to_json(state_with(vm)))

    assert view.containers[-1] == f"default/v: {line}"


def test_metric_counts_machines_by_their_pins() -> None:
    """Machines with CPUs are counted by one-to-one pins or not."""
    metrics = Metrics()
    for vm, expected in ((VM, (1, 0)), (TOGETHER, (0, 1)), (replace(VM, cpus=EMPTY), (0, 0))):
        metrics.show(state_with(vm))
        values = tuple(
            metrics.registry.get_sample_value("corepin_agent_vms", {"vcpus": word}) or 0
            for word in ("one_to_one", "together")
        )
        assert values == expected
