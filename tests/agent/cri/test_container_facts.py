"""Facts of containers, from the runtime's verbose status or from NRI."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from cri_api.v1 import api_pb2

from agent.cri import listing_pb2
from agent.cri.container_info import (
    SOCKETS,
    ContainerInfo,
    cgroup_path,
    environment_sizes,
    find_socket,
    read_info,
)
from agent.cri.lists import ListedContainer
from agent.cri.runtime import CRI
from agent.interfaces import RuntimeSandbox
from pinning.planning.observed import State
from pinning.pods.vm_handlers import is_vm_handler
from tests.agent.cri.fake_cri import FakeRuntime
from tests.agent.cri.playing import INFO, SECONDS, play, watching

CGROUP = "/kubepods.slice/kubepods-pod1.slice/crio-one.scope"
RUNC = INFO | {"runtimeType": "io.containerd.runc.v2"}
KATA = INFO | {"runtimeType": "io.containerd.kata.v2"}


def listed(name: str, state: State = State.RUNNING) -> ListedContainer:
    """Return the list's entry of a container."""
    return ListedContainer(name, f"s-{name}", name, state, 0)


async def asked(
    fake: FakeRuntime, runtime: CRI, *containers: ListedContainer, handler: str = "", is_followed: bool = True
) -> Sequence[tuple[ContainerInfo | None, int]]:
    """Return the facts of containers, each with the number of status requests so far."""
    found = []
    for container in containers:
        info = await runtime.facts.of(container, handler, is_followed=is_followed)
        found.append((info, fake.asked["ContainerStatus"]))
    return found


def show(runtime: CRI) -> None:
    """Let NRI show the first process of every container."""
    runtime.facts.first_process = lambda name: (43, f"kubepods-pod1.slice:crio:{name}")
    runtime.facts.has_cgroup = lambda _: True


async def test_shown_process_needs_no_status(tmp_path: Path) -> None:
    """After a handler's first container, pid and cgroup of its running containers come from NRI, without a status."""
    async with play(tmp_path) as (fake, runtime):
        show(runtime)
        for name in ("zero", "one", "two"):
            fake.add(name, RUNC)
        (first, one), (second, two) = await asked(fake, runtime, listed("zero"), listed("one"))
        assert (first and first.pid, one) == (42, 1)
        assert (second and (second.pid, second.cgroup, second.of_running), two) == ((43, CGROUP, True), 1)

        created, runs = listed("two", State.CREATED), listed("two")
        (third, three), (fourth, four) = await asked(fake, runtime, created, runs)
        assert (third and third.of_running, three) == (False, 2)
        assert (fourth and fourth.pid, four) == (43, 2)


@pytest.mark.parametrize(
    ("info", "handlers", "is_followed"),
    [
        pytest.param(INFO, ("", ""), True, id="no-shim-as-in-CRI-O"),
        pytest.param(KATA, ("", ""), True, id="virtual-machines"),
        pytest.param(RUNC, ("", "other"), True, id="another-handler"),
        pytest.param(RUNC, ("", ""), False, id="no-events"),
    ],
)
async def test_status_is_requested_where_the_shim_may_be_another(
    tmp_path: Path, info: object, handlers: tuple[str, str], *, is_followed: bool
) -> None:
    """The status of a container whose handler may start virtual machines is requested."""
    async with play(tmp_path) as (fake, runtime):
        show(runtime)
        for name, handler in zip(("zero", "one"), handlers, strict=True):
            fake.add(name, info)
            await asked(fake, runtime, listed(name), handler=handler, is_followed=is_followed)
        assert fake.asked["ContainerStatus"] == 2


async def test_status_is_requested_if_the_host_lacks_the_shown_cgroup(tmp_path: Path) -> None:
    """The status is requested if the cgroup from NRI is missing on the host, as for untrusted workloads."""
    async with play(tmp_path) as (fake, runtime):
        show(runtime)
        runtime.facts.has_cgroup = lambda path: path == CGROUP
        for name, info in (("zero", RUNC), ("one", RUNC), ("two", KATA)):
            fake.add(name, info)
        _, (trusted, one), (untrusted, two) = await asked(fake, runtime, *map(listed, ("zero", "one", "two")))
        assert (trusted and (trusted.pid, trusted.in_vm), one) == ((43, False), 1)
        assert (untrusted and (untrusted.pid, untrusted.in_vm), two) == ((42, True), 2)


async def test_status_is_requested_after_events_were_lost(tmp_path: Path) -> None:
    """After lost events the status is requested again, because a restarted runtime may use other shims."""
    async with play(tmp_path) as (fake, runtime):
        show(runtime)
        for name in ("zero", "one", "two"):
            fake.add(name, RUNC)
        await asked(fake, runtime, listed("zero"))
        runtime.facts.lost()
        assert [number for _, number in await asked(fake, runtime, listed("one"))] == [2]
        runtime.facts.first_process = lambda _: None
        assert [number for _, number in await asked(fake, runtime, listed("two"))] == [3]


@pytest.mark.parametrize(
    ("oci_path", "path"),
    [
        ("/kubepods/burstable/pod1/ab12", "/kubepods/burstable/pod1/ab12"),
        ("kubepods/pod1/ab12", "/kubepods/pod1/ab12"),
        (
            "kubepods-burstable-pod1_2.slice:cri-containerd:ab12",
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice/cri-containerd-ab12.scope",
        ),
        ("kubepods-pod1.slice:crio:ab12", "/kubepods.slice/kubepods-pod1.slice/crio-ab12.scope"),
        ("kubepods-pod1.slice::ab12", "/kubepods.slice/kubepods-pod1.slice/ab12.scope"),
        (":docker:ab12", "/system.slice/docker-ab12.scope"),
        ("-.slice:docker:ab12", "/docker-ab12.scope"),
        ("kubepods.slice:x:kubepods-pod1.slice", "/kubepods.slice/kubepods-pod1.slice"),
        ("/odd:path:here/ab12", "/odd:path:here/ab12"),
        ("", None),
        ("/", None),
    ],
)
def test_cgroup_path_of_both_drivers(oci_path: str, path: str | None) -> None:
    """The cgroup path of both drivers is translated into the path below the hierarchy."""
    assert cgroup_path(oci_path) == path


@pytest.mark.parametrize(
    ("verbose", "info"),
    [
        pytest.param(
            '{"pid":7,"runtimeType":"io.containerd.runc.v2"}',
            ContainerInfo(7, has_host_shim=True),
            id="containerd-created",
        ),
        pytest.param('{"runtimeSpec":{"linux":null,"annotations":null}}', ContainerInfo(), id="nothing-told"),
        pytest.param('{"runtimeType":"io.containerd.kata.v2"}', ContainerInfo(in_vm=True), id="kata-shim"),
        pytest.param(
            '{"runtimeSpec":{"annotations":{"io.katacontainers.pkg.oci.container_type":"pod_container"}}}',
            ContainerInfo(),
            id="annotation-of-a-tenant",
        ),
        pytest.param(
            '{"runtimeSpec":{"linux":{"resources":{"cpu":{"quota":50000}}}}}',
            ContainerInfo(has_quota=True),
            id="quota",
        ),
        pytest.param(
            '{"runtimeSpec":{"linux":{"resources":{"cpu":{"quota":-1,"shares":2}}}}}',
            ContainerInfo(),
            id="no-quota",
        ),
        pytest.param('{"pid":"many"}', ContainerInfo(), id="another-shape"),
        pytest.param("no JSON", ContainerInfo(), id="no-json"),
    ],
)
def test_status_of_every_shape(verbose: str, info: ContainerInfo) -> None:
    """Known fields of the verbose status are read, and missing or malformed ones are unknown."""
    assert read_info(verbose.encode()) == info


def test_usual_sockets_are_found_in_order() -> None:
    """The first existing socket is returned, or None."""
    assert find_socket(lambda path: path in SOCKETS[1:3]) == SOCKETS[1]
    assert find_socket(lambda _: False) is None


@pytest.mark.parametrize(
    ("handler", "in_vm"), [("kata-qemu", True), ("kata", True), ("", False), ("runc", False)]
)
def test_vm_handlers(handler: str, in_vm: bool) -> None:
    """Handlers of virtual machines are recognized by their names."""
    assert is_vm_handler(handler) is in_vm


def test_size_of_an_environment_counts_bytes() -> None:
    """The size is that of the unescaped UTF-8 bytes, or None if the runtime does not report it."""
    sizes = environment_sizes(b'{"runtimeSpec": {"process": {"env": ["A=\\u003c\\u003c", "B=\xc3\xa9"]}}}')
    assert sizes is not None
    assert sum(sizes) == 8
    for empty in (b"{}", b'{"env": null}', b'{"env": []}'):
        sizes = environment_sizes(b'{"runtimeSpec": {"process": %b}}' % empty)
        assert sizes is not None
        assert sum(sizes) == 0
    for unknown in (b"{}", b'{"runtimeSpec": {}}', b"nonsense"):
        assert environment_sizes(unknown) is None


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
