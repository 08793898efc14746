"""Parsing of container details from containerd and CRI-O."""

from __future__ import annotations

import pytest

from agent.cri.container_info import (
    SOCKETS,
    ContainerInfo,
    cgroup_path,
    environment_sizes,
    find_socket,
    read_info,
)
from pinning.pods.vm_handlers import is_vm_handler


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
