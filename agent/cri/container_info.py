"""Decoders of the runtime's verbose container status: pure. containerd and CRI-O name the same facts differently."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from agent.cri.json_strings import string_sizes
from agent.interfaces import RuntimeContainer
from agent.kernel.cgroup_names import SLICE, slice_path
from pinning.pods.vm_handlers import is_vm_handler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.cri.lists import ListedContainer, ListedSandbox

SOCKETS: Final = (
    Path("/run/containerd/containerd.sock"),
    Path("/run/crio/crio.sock"),
    Path("/run/k3s/containerd/containerd.sock"),  # k3s and RKE2
    Path("/run/k0s/containerd.sock"),
    Path("/var/snap/microk8s/common/run/containerd.sock"),
    Path("/run/cri-dockerd.sock"),
)
_SYSTEMD_PARTS: Final = 3  # a name of systemd's cgroup driver: slice:prefix:name


class _CPU(msgspec.Struct):
    quota: int | None = None


class _Resources(msgspec.Struct):
    cpu: _CPU | None = None


class _Linux(msgspec.Struct):
    cgroup: str = msgspec.field(name="cgroupsPath", default="")
    resources: _Resources | None = None

    @property
    def quota(self) -> int:
        """The CFS quota in microseconds; 0 or less means unlimited."""
        cpu = self.resources.cpu if self.resources else None
        return (cpu.quota or 0) if cpu else 0


class _Spec(msgspec.Struct):
    linux: _Linux | None = None


class _Info(msgspec.Struct):
    """The part of the JSON in ContainerStatusResponse.info["info"] that the agent reads."""

    pid: int = 0
    shim: str = msgspec.field(name="runtimeType", default="")  # containerd only
    spec: _Spec | None = msgspec.field(name="runtimeSpec", default=None)


class _Process(msgspec.Struct):
    env: msgspec.Raw = msgspec.Raw(b"[]")  # the environment is counted, not decoded


class _EnvironmentSpec(msgspec.Struct):
    process: _Process | None = None


class _EnvironmentInfo(msgspec.Struct):
    spec: _EnvironmentSpec | None = msgspec.field(name="runtimeSpec", default=None)


@dataclass(frozen=True, slots=True)
class ContainerInfo:
    """Facts of a container that lists lack; they do not change while the container stays in one state."""

    pid: int = 0
    cgroup: str | None = None
    in_vm: bool = False
    has_host_shim: bool = False  # the runtime named its shim, which starts no virtual machines
    has_quota: bool = False  # has a CFS quota
    started: float = 0.0  # seconds since the epoch
    # The status was read while the container ran; before, CRI-O reports a pid and no start time.
    of_running: bool = False
    is_too_large: bool = False  # the status exceeds the limit for a message, so it is not asked for again


def find_socket(exists: Callable[[Path], bool] = Path.exists) -> Path | None:
    """Return the first of the usual sockets that exists."""
    return next((socket for socket in SOCKETS if exists(socket)), None)


def read_info(verbose: bytes | bytearray) -> ContainerInfo:
    """Parse the verbose part of a container's status; missing members keep their defaults.

    Annotations are not read: CRI-O copies a pod's annotations and labels into each container's specification. With an
    annotation for Kata a user could make the agent take an ordinary container for one in a virtual machine, and leave
    its cpuset unchanged.
    """
    try:
        info = msgspec.json.decode(verbose, type=_Info)
    except (msgspec.DecodeError, RecursionError):
        return ContainerInfo()
    spec = info.spec or _Spec()
    linux = spec.linux or _Linux()
    in_vm = is_vm_handler(info.shim)
    has_host_shim = bool(info.shim) and not in_vm
    return ContainerInfo(info.pid, cgroup_path(linux.cgroup), in_vm, has_host_shim, linux.quota > 0)


def environment_sizes(verbose: bytes | bytearray) -> Iterator[int] | None:
    """Yield a container's environment size in bytes, chunk by chunk; None if the status lacks the environment."""
    try:
        info = msgspec.json.decode(verbose, type=_EnvironmentInfo)
    except (msgspec.DecodeError, RecursionError):
        return None
    process = info.spec.process if info.spec else None
    return string_sizes(process.env) if process else None


def cgroup_path(oci_path: str) -> str | None:
    """Return the path below the hierarchy of an OCI cgroupsPath.

    The cgroupfs driver gives the path; the systemd driver "kubepods-podU.slice:cri-containerd:ID", which is
    /kubepods.slice/kubepods-podU.slice/cri-containerd-ID.scope.
    """
    parts = oci_path.split(":")
    if len(parts) == _SYSTEMD_PARTS and "/" not in oci_path:
        slice_name, prefix, name = parts
        scope = name if name.endswith(SLICE) else f"{prefix}-{name}.scope".removeprefix("-")
        return f"{slice_path(slice_name or 'system.slice')}/{scope}"
    return f"/{oci_path.strip('/')}" if oci_path.strip("/") else None


def describe(container: ListedContainer, sandbox: ListedSandbox, info: ContainerInfo) -> RuntimeContainer:
    """Build the agent's record of a container from its list entry, its sandbox and its verbose status."""
    in_vm = info.in_vm or is_vm_handler(sandbox.handler)
    return RuntimeContainer(
        id=container.id,
        pod_uid=sandbox.pod_uid,
        namespace=sandbox.namespace,
        pod=sandbox.pod,
        name=container.name,
        state=container.state,
        pid=info.pid,
        # the container's cgroup exists in the guest only; the host has one for the sandbox
        cgroup=None if in_vm else info.cgroup,
        in_vm=in_vm,
        started=info.started,
        sandbox=sandbox.id if in_vm else "",
        pod_sandbox=sandbox.id,
    )
