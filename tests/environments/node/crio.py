"""A CRI-O for tests, with its own folders, socket, image and cgroups, used like containerd.

It runs containers by Debian's runc, or by a wrapper with crun's layout of cgroups.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cri_api.v1 import api_pb2

from tests.agent.cri.crio_config import config_text
from tests.agent.cri.snapshotter import best_snapshotter
from tests.environments.node.containerd import (
    IMAGE,
    PACKAGES,
    Containerd,
    Programs,
    _clean,
    _missing,
    install_packages,
    write_image,
)
from tests.environments.server.build import cache_folder, find
from tests.environments.server.catalog import CRIO, CRIO_SERVERS, PINNS
from tests.environments.vm import lifeline

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNC, CRUN_LAYOUT = "crio", "crio-crun"  # layouts of cgroups: that of runc, and that of crun
_PACKAGES: Final = {name: PACKAGES[name] for name in ("runc", "busybox-static")} | {"conmon": "conmon"}
_WRAPPER: Final = f"""#!{sys.executable} -IS
import sys

sys.path.insert(0, {str(Path(__file__).parents[3])!r})

from tests.agent.cri.crun_layout import main

main()
"""


def find_crio(version: str) -> Programs:
    """Return CRI-O, with runc's layout or crun's; raise RuntimeMissing with the reason."""
    install_packages(_PACKAGES)
    found = [find(server, cache_folder()) for server in CRIO_SERVERS]
    paths = [path.parent for path in found if path is not None]
    if len(paths) < len(found):
        raise _missing("CRI-O is not built; run `python -m tests.environments.server`")
    return Programs(version, tuple(paths))


class Crio(Containerd):
    """A running CRI-O, whose pods are created over CRI as by the kubelet."""

    @property
    def socket(self) -> Path:
        """The socket of the runtime."""
        return self.directory / "crio.sock"

    @property
    def name(self) -> str:
        """The start of its name and version."""
        return f"cri-o {CRIO.module.version}"

    @property
    def container_prefix(self) -> str:
        """The prefix of a container's id in its cgroup's name."""
        return "crio-"

    @property
    def command(self) -> list[str]:
        """The command line of the daemon."""
        folder = self.directory
        return self.programs.run(
            "crio", "--config", str(folder / "crio.conf"), "--config-dir", str(folder / "conf.d")
        )

    def sandbox_config(self, config: api_pb2.PodSandboxConfig) -> None:
        """Give each container a PID namespace as the kubelet does; otherwise CRI-O runs a pod process too."""
        config.linux.security_context.namespace_options.pid = api_pb2.CONTAINER

    def container_config(self, config: api_pb2.ContainerConfig) -> None:
        """Name container and image as the kubelet does, because CRI-O reads NRI's name from a label."""
        config.image.user_specified_image = IMAGE
        config.labels["io.kubernetes.container.name"] = config.metadata.name
        config.linux.security_context.namespace_options.CopyFrom(
            api_pb2.NamespaceOption(network=api_pb2.NODE, pid=api_pb2.CONTAINER)
        )

    def before_stop(self, sandbox: str) -> None:
        """Stop the pod's containers at once, because CRI-O waits a minute for those that ignore SIGTERM."""
        of_pod = api_pb2.ListContainersRequest(filter=api_pb2.ContainerFilter(pod_sandbox_id=sandbox))
        for container in self.call("ListContainers", of_pod, api_pb2.ListContainersResponse).containers:
            request = api_pb2.StopContainerRequest(container_id=container.id, timeout=0)
            self.call("StopContainer", request, api_pb2.StopContainerResponse)

    def load(self, image: Path) -> None:
        """Import an image from an archive while the daemon is stopped."""
        folder = self.directory
        command = self.programs.run(
            "copyimg",
            *("--root", str(folder / "root"), "--runroot", str(folder / "run")),
            *("--storage-driver", self.snapshotter, "--signature-policy", str(folder / "policy.json")),
            *("--image-name", IMAGE, "--import-from", f"docker-archive:{image}"),
        )
        subprocess.run(command, check=True, capture_output=True, timeout=120)


@contextmanager
def start_crio(
    version: str, directory: Path, *, has_events: bool = False, options: str = ""
) -> Iterator[Crio]:
    """Run a CRI-O with an image until the block ends; raise RuntimeMissing when there is none.

    `has_events` switches its pod events on; `options` are lines of [crio.runtime].
    """
    programs = find_crio(version)
    driver = "overlay" if best_snapshotter(directory) == "overlayfs" else "vfs"
    crio = Crio(programs, directory, driver)
    runtime = _install_wrapper(directory) if version == CRUN_LAYOUT else Path("/usr/sbin/runc")
    pinns = find(PINNS, cache_folder())
    text = config_text(directory, IMAGE, driver, runtime, pinns, has_events=has_events, options=options)
    (directory / "crio.conf").write_text(text)
    (directory / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    (directory / "conf.d").mkdir()
    write_image(directory / "image.tar")
    crio.load(directory / "image.tar")
    held = lifeline.hold(directory)
    _clean(crio)  # what a killed run left whose process had the same number
    try:
        crio.start()
        yield crio
        crio.remove_pods()
    finally:
        crio.stop()
        os.close(held)
        _clean(crio)


def _install_wrapper(directory: Path) -> Path:
    program = directory / "crun-layout"
    program.write_text(_WRAPPER)
    program.chmod(0o755)
    return program
