"""Containers of a real runtime, restricted as CMK's own examples, with the install directory mounted."""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final

from cri_api.v1 import api_pb2

from tests.environments.node.containerd import IMAGE
from tests.environments.node.image_archive import write_archive
from tests.environments.waiting import until, until_equal
from tests.shim.roots import NOBODY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.environments.node.containerd import Containerd

EMPTY: Final = "localhost/empty:test"
BUSYBOX: Final = IMAGE
_numbers = count(1)


def load_empty_image(containerd: Containerd) -> None:
    """Import an image without files into the runtime."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w"):
        pass
    path = containerd.directory / "empty.tar"
    write_archive(path, EMPTY, layer.getvalue(), {})
    containerd.load(path)


@dataclass(frozen=True)
class Locked:
    """A container without capabilities, with a read-only root, a seccomp profile and a user other than root."""

    containerd: Containerd
    id: str
    log_file: Path

    def written(self, stream: str) -> list[str]:
        """Return the lines of `stdout` or `stderr`; the runtime copies the two independently."""
        lines = self.log_file.read_text().splitlines(keepends=True) if self.log_file.exists() else []
        whole = [line.rstrip("\n") for line in lines if line.endswith("\n")]
        parts = [line.split(" ", 3) for line in whole]  # when, stream, full or partial, text
        return [part[3] for part in parts if part[1] == stream]

    def wait_for_last_line(self, line: str) -> None:
        """Wait for the last line of the output, because the runtime may report the exit before it has copied it."""
        until_equal("the last line", lambda: self.written("stdout")[-1:], [line])

    def exit_code(self) -> int:
        """Wait for the container's exit, and return its exit code."""
        request = api_pb2.ContainerStatusRequest(container_id=self.id)

        def ended() -> tuple[int] | None:
            status = self.containerd.call("ContainerStatus", request, api_pb2.ContainerStatusResponse).status
            return (status.exit_code,) if status.state == api_pb2.CONTAINER_EXITED else None

        return until("the container's end", ended)[0]

    def stop(self) -> None:
        """Stop the container as the kubelet does: SIGTERM, and SIGKILL after the grace period."""
        request = api_pb2.StopContainerRequest(container_id=self.id, timeout=600)
        self.containerd.call("StopContainer", request, api_pb2.StopContainerResponse)


def run_locked(
    containerd: Containerd,
    image: str,
    command: Sequence[str],
    install_dir: Path,
    env: Mapping[str, str],
) -> Locked:
    """Start a restricted container in its own pod."""
    uid = f"uid-shim-{next(_numbers)}"
    pod = containerd.run_pod(uid.replace("uid-", ""), uid)
    config = api_pb2.ContainerConfig(
        metadata=api_pb2.ContainerMetadata(name="main"),
        image=api_pb2.ImageSpec(image=image),
        command=command,
        envs=[api_pb2.KeyValue(key=key, value=value) for key, value in env.items()],
        log_path="main.log",
        mounts=[api_pb2.Mount(container_path="/opt/bin", host_path=str(install_dir), readonly=True)],
        linux=api_pb2.LinuxContainerConfig(security_context=_locked()),
    )
    request = api_pb2.CreateContainerRequest(pod_sandbox_id=pod.id, config=config, sandbox_config=pod.config)
    answer = containerd.call("CreateContainer", request, api_pb2.CreateContainerResponse)
    pod.start(answer.container_id)
    return Locked(containerd, answer.container_id, containerd.directory / "logs" / uid / "main.log")


def _locked() -> api_pb2.LinuxContainerSecurityContext:
    profile = api_pb2.SecurityProfile
    own = api_pb2.NamespaceOption(
        network=api_pb2.NODE, pid=api_pb2.CONTAINER
    )  # as the kubelet sets it for most pods
    return api_pb2.LinuxContainerSecurityContext(
        namespace_options=own,
        run_as_user=api_pb2.Int64Value(value=NOBODY),
        run_as_group=api_pb2.Int64Value(value=NOBODY),
        readonly_rootfs=True,
        no_new_privs=True,
        capabilities=api_pb2.Capability(drop_capabilities=["ALL"]),
        seccomp=profile(profile_type=profile.RuntimeDefault),
    )
