"""The agent's own protobuf messages for CRI, compared with the published ones."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from cri_api.v1 import api_pb2

from agent.cri import listing_pb2
from agent.interfaces import RuntimeSandbox
from tests.agent.cri.playing import INFO, SECONDS, play, watching

NAMES = {
    "VersionRequest": ("VersionRequest",),
    "VersionResponse": ("VersionResponse",),
    "Filter": ("ContainerFilter", "PodSandboxFilter"),
    "StateValue": ("ContainerStateValue",),
    "ListRequest": ("ListContainersRequest", "ListPodSandboxRequest"),
    "StatusRequest": ("ContainerStatusRequest", "PodSandboxStatusRequest"),
    "GetEventsRequest": ("GetEventsRequest",),
    "UpdateContainerResourcesRequest": ("UpdateContainerResourcesRequest",),
    "UpdateContainerResourcesResponse": ("UpdateContainerResourcesResponse",),
    "SandboxMetadata": ("PodSandboxMetadata",),
    "PodSandbox": ("PodSandbox",),
    "ContainerMetadata": ("ContainerMetadata",),
    "Container": ("Container",),
    "LinuxResources": ("LinuxContainerResources",),
    "Resources": ("ContainerResources",),
    "ContainerStatus": ("ContainerStatus",),
    "ContainerStatusResponse": ("ContainerStatusResponse",),
    "EventSandbox": ("PodSandboxStatus",),
    "ContainerEvent": ("ContainerEventResponse",),
}
RENAMED = {
    ("ContainerStatusRequest", "id"): "container_id",
    ("PodSandboxStatusRequest", "id"): "pod_sandbox_id",
}


def test_every_message_is_compared() -> None:
    """Each of the agent's messages is compared with a published one."""
    assert NAMES.keys() == set(listing_pb2.DESCRIPTOR.message_types_by_name)


@pytest.mark.parametrize(
    ("ours", "published"), [(ours, name) for ours, names in NAMES.items() for name in names]
)
def test_fields_are_those_of_cri(ours: str, published: str) -> None:
    """Each field has CRI's name, number, type and label."""
    theirs = api_pb2.DESCRIPTOR.message_types_by_name[published].fields_by_name
    for name, field in listing_pb2.DESCRIPTOR.message_types_by_name[ours].fields_by_name.items():
        same = theirs[RENAMED.get((published, name), name)]
        assert (field.number, field.type, field.is_repeated) == (same.number, same.type, same.is_repeated), (
            name
        )


@pytest.mark.parametrize(
    ("ours", "published"), [("SandboxState", "PodSandboxState"), ("ContainerState", "ContainerState")]
)
def test_states_are_those_of_cri(ours: str, published: str) -> None:
    """Each state has CRI's name and number."""
    own, theirs = (
        listing_pb2.DESCRIPTOR.enum_types_by_name[ours],
        api_pb2.DESCRIPTOR.enum_types_by_name[published],
    )
    assert {value.name: value.number for value in own.values} == {
        value.name: value.number for value in theirs.values
    }


async def test_virtual_machines_are_listed(tmp_path: Path) -> None:
    """A machine is listed before its first container, with pid, cgroup and quota as far as reported."""
    of_sandbox = {"pid": 0, "runtimeSpec": {"linux": {"cgroupsPath": "/kubepods/pod1/s-vm"}}}
    limited = INFO | {"runtimeSpec": {"linux": {"resources": {"cpu": {"quota": 50000}}}}}
    async with play(tmp_path) as (fake, runtime):
        fake.add("one", INFO)
        fake.add("vm", limited, handler="kata-qemu")
        fake.infos["s-vm"] = of_sandbox
        container = fake.containers.pop()
        await runtime.containers()
        machine = RuntimeSandbox("s-vm", "uid-vm", "ns", "pod-vm", "kata-qemu", cgroup="/kubepods/pod1/s-vm")
        assert runtime.sandboxes() == (machine,)

        fake.infos["s-vm"] = of_sandbox | {"pid": 7}
        await runtime.containers()
        assert runtime.sandboxes() == (replace(machine, pid=7),)
        fake.containers.append(container)
        _, vm = await runtime.containers()
        assert vm.sandbox == "s-vm"
        assert runtime.sandboxes() == (replace(machine, pid=42, has_quota=True),)

        fake.containers[-1].state = api_pb2.CONTAINER_EXITED
        await runtime.containers()
        assert runtime.sandboxes() == (replace(machine, pid=7),)
        fake.sandboxes[-1].state = api_pb2.SANDBOX_NOTREADY
        await runtime.containers()
        assert runtime.sandboxes() == ()
    assert fake.asked["PodSandboxStatus"] == 2


async def test_virtual_machine_of_another_handler_is_known_by_its_containers(tmp_path: Path) -> None:
    """A handler with an unknown name is recognized by the shim of its containers."""
    async with play(tmp_path) as (fake, runtime):
        fake.add("vm", INFO | {"runtimeType": "io.containerd.kata.v2"}, handler="secure")
        (container,) = await runtime.containers()
        assert container.sandbox == "s-vm"
        assert [(machine.id, machine.pid) for machine in runtime.sandboxes()] == [("s-vm", 42)]


@pytest.mark.parametrize(
    ("error", "ids"),
    [
        pytest.param(grpc.StatusCode.NOT_FOUND, [], id="removed-meanwhile"),
        pytest.param(grpc.StatusCode.INTERNAL, ["s-vm"], id="cannot-tell"),
    ],
)
async def test_failed_sandbox_status_does_not_fail_the_list(
    tmp_path: Path, error: grpc.StatusCode, ids: list[str]
) -> None:
    """A removed machine is left out, and one whose status fails is listed without details."""
    async with play(tmp_path) as (fake, runtime):
        fake.add("vm", INFO, handler="kata")
        fake.errors["PodSandboxStatus"] = (error, "broken")
        assert len(await runtime.containers()) == 1
        assert [machine.id for machine in runtime.sandboxes()] == ids


async def test_new_virtual_machine_is_a_change(tmp_path: Path) -> None:
    """A new machine is reported by polling, because its threads run before its first container exists."""
    async with play(tmp_path) as (fake, runtime):
        fake.add("one", INFO)
        await runtime.containers()
        async with watching(runtime) as changes:
            fake.add("vm", INFO, handler="kata")
            fake.containers.pop()
            await asyncio.wait_for(changes.acquire(), SECONDS)
