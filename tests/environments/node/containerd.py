"""A containerd for tests, Debian's 1.6 or the built 2.4, with its own folders, socket, image and cgroups.

`install_packages` and `start_containerd` can be called from anywhere; tests use the fixture `containerd`.
Everything that was started is stopped by its process id, and unmounted.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import tarfile
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from unittest import SkipTest

import grpc
from cri_api.v1 import api_pb2

from agent.kernel.cgroupfs import find_hierarchy
from tests import debian
from tests.agent.cri.containerd_config import config_text
from tests.agent.cri.snapshotter import best_snapshotter
from tests.environments.node import crun
from tests.environments.node.image_archive import add_link, write_archive
from tests.environments.server.build import cache_folder, find
from tests.environments.server.catalog import CONTAINERD, CONTAINERD_SHIM, CTR
from tests.environments.server.daemon import Daemon, running
from tests.environments.vm import lifeline
from tests.environments.vm.kata.install import install_shim

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PACKAGES = {"containerd": "containerd", "runc": "runc", "busybox-static": "busybox"}  # package: program
IMAGE = "localhost/busybox:test"
VERSIONS = ("1.6", "2.4")  # versions with a configuration of their own
CGROUP_ROOT = Path("/sys/fs/cgroup")
FOREVER = ("/bin/sleep", "1000000")
_SECONDS = 60.0  # wait for containerd's socket, which takes a tenth of a second on an idle machine
_numbers = count(1)


class RuntimeMissing(Exception):
    """No containerd is available."""


class SkippedRuntimeMissing(RuntimeMissing, SkipTest):
    """The same outside CI, where pytest skips the test."""


def install_packages(packages: Mapping[str, str] = PACKAGES) -> None:
    """Install packages whose programs are missing; raise RuntimeMissing with the reason."""
    if os.geteuid() != 0:
        raise _missing("containers need root")
    wanted = [package for package, program in packages.items() if shutil.which(program) is None]
    if not wanted:
        return
    try:
        debian.install(wanted)
    except debian.NotInstalled as error:
        raise _missing(str(error)) from error


def _missing(why: str) -> RuntimeMissing:
    return (RuntimeMissing if os.environ.get("CI") == "true" else SkippedRuntimeMissing)(why)


@dataclass(frozen=True)
class Programs:
    """The programs of one version of containerd, and folders for PATH."""

    version: str
    folders: tuple[Path, ...]
    host: tuple[str, ...] = ()  # prefix of command lines that run on another test host

    def run(self, program: str, *arguments: str) -> list[str]:
        """Return the command line of a program of this version."""
        path = ":".join([*map(str, self.folders), "/usr/sbin", "/usr/bin", "/sbin", "/bin"])
        return [*self.host, "/usr/bin/env", f"PATH={path}", program, *arguments]


def find_programs(version: str) -> Programs:
    """Return containerd of a version, installing Debian's; raise RuntimeMissing with the reason."""
    install_packages()
    if version == VERSIONS[0]:
        return Programs(version, ())
    found = [find(server, cache_folder()) for server in (CONTAINERD, CONTAINERD_SHIM, CTR)]
    paths = [path.parent for path in found if path is not None]
    if len(paths) < len(found):
        raise _missing("containerd 2.4 is not built; run `python -m tests.environments.server`")
    return Programs(version, tuple(paths))


@dataclass
class Containerd:
    """A running containerd, whose pods are created over CRI as by the kubelet."""

    programs: Programs
    directory: Path
    snapshotter: str = "native"
    daemon: Daemon | None = None
    cgroup: str = field(default_factory=lambda: f"/corepin-test-{os.getpid()}-{next(_numbers)}")
    _channel: Any = None
    _running: ExitStack = field(default_factory=ExitStack)

    @property
    def socket(self) -> Path:
        """The socket of the runtime."""
        return self.directory / "containerd.sock"

    @property
    def nri_socket(self) -> Path:
        """The socket for NRI's plugins, of this containerd alone; only version 2.4 has it."""
        return self.directory / "nri" / "nri.sock"

    @property
    def name(self) -> str:
        """The start of its name and version."""
        return f"containerd {self.programs.version}"

    @property
    def container_prefix(self) -> str:
        """The prefix of a container's id in its cgroup's name."""
        return ""

    def container_folder(self, pod_uid: str, container: str) -> Path:
        """Return the cpuset folder of a container."""
        pod = find_hierarchy(CGROUP_ROOT).folder(f"{self.cgroup}/pod{pod_uid}")
        return pod / f"{self.container_prefix}{container}"

    @property
    def command(self) -> list[str]:
        """The command line of the daemon."""
        return self.programs.run("containerd", "--config", str(self.directory / "config.toml"))

    def sandbox_config(self, config: api_pb2.PodSandboxConfig) -> None:
        """Add this runtime's settings to a sandbox's configuration."""

    def container_config(self, config: api_pb2.ContainerConfig) -> None:
        """Add this runtime's settings to a container's configuration."""

    def before_stop(self, sandbox: str) -> None:
        """Prepare the stop of a sandbox, if this runtime needs it."""

    def call(self, method: str, request: Any, answer: Any) -> Any:
        """Call CRI as a client other than the agent."""
        if self._channel is None:
            options = [
                ("grpc.default_authority", "localhost"),
                ("grpc.max_reconnect_backoff_ms", 200),
                ("grpc.max_receive_message_length", 16 * 2**20),
            ]
            self._channel = grpc.insecure_channel(f"unix://{self.socket}", options=options)
        service = "ImageService" if method.endswith(("Image", "Images")) else "RuntimeService"
        call = self._channel.unary_unary(
            f"/runtime.v1.{service}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return call(request, timeout=_SECONDS, wait_for_ready=True)

    def run_pod(
        self,
        name: str,
        uid: str,
        annotations: Mapping[str, str] = MappingProxyType({}),
        *,
        labels: Mapping[str, str] = MappingProxyType({}),
        handler: str = "",
        namespace: str = "default",
    ) -> Pod:
        """Start a sandbox with the host's network, by the default runtime or that of a handler."""
        config = api_pb2.PodSandboxConfig(
            metadata=api_pb2.PodSandboxMetadata(name=name, namespace=namespace, uid=uid),
            annotations=dict(annotations),
            labels=dict(labels),
            log_directory=str(self.directory / "logs" / uid),
            linux=api_pb2.LinuxPodSandboxConfig(
                cgroup_parent=f"{self.cgroup}/pod{uid}",
                security_context=api_pb2.LinuxSandboxSecurityContext(
                    namespace_options=api_pb2.NamespaceOption(network=api_pb2.NODE)
                ),
            ),
        )
        self.sandbox_config(config)
        request = api_pb2.RunPodSandboxRequest(config=config, runtime_handler=handler)
        answer = self.call("RunPodSandbox", request, api_pb2.RunPodSandboxResponse)
        return Pod(self, answer.pod_sandbox_id, config)

    def remove_pods(self) -> None:
        """Stop and remove every pod, its containers with it."""
        listed = self.call("ListPodSandbox", api_pb2.ListPodSandboxRequest(), api_pb2.ListPodSandboxResponse)
        for sandbox in listed.items:
            self.remove_pod(sandbox.id)

    def running(self) -> list[str]:
        """Return the containers that the runtime lists as running, which may lag behind the kernel."""
        running = api_pb2.ContainerStateValue(state=api_pb2.CONTAINER_RUNNING)
        request = api_pb2.ListContainersRequest(filter=api_pb2.ContainerFilter(state=running))
        listed = self.call("ListContainers", request, api_pb2.ListContainersResponse)
        return [container.id for container in listed.containers]

    def remove_pod(self, sandbox: str) -> None:
        """Stop one pod, remove its containers, then the pod, in the order of the kubelet.

        containerd 2.4.2 deadlocks when a NRI plugin connects while it removes a pod that still has containers:
        RemovePodSandbox holds a read lock that RemoveContainer takes again, and the plugin waits for the write lock.
        """
        self.before_stop(sandbox)
        stop = api_pb2.StopPodSandboxRequest(pod_sandbox_id=sandbox)
        self.call("StopPodSandbox", stop, api_pb2.StopPodSandboxResponse)
        of_pod = api_pb2.ListContainersRequest(filter=api_pb2.ContainerFilter(pod_sandbox_id=sandbox))
        for container in self.call("ListContainers", of_pod, api_pb2.ListContainersResponse).containers:
            self.remove_container(container.id)
        remove = api_pb2.RemovePodSandboxRequest(pod_sandbox_id=sandbox)
        self.call("RemovePodSandbox", remove, api_pb2.RemovePodSandboxResponse)

    def remove_pod_cgroup(self, pod_uid: str) -> None:
        """Remove the cgroup of a removed pod, as the kubelet does."""
        for folder in cgroup_folders(f"{self.cgroup}/pod{pod_uid}"):
            folder.rmdir()

    def remove_container(self, container: str) -> None:
        """Remove one stopped container."""
        request = api_pb2.RemoveContainerRequest(container_id=container)
        self.call("RemoveContainer", request, api_pb2.RemoveContainerResponse)

    def start(self) -> None:
        """Start the daemon and wait until it serves. The kernel kills it with the calling thread."""
        log_file = self.directory / f"runtime-{next(_numbers)}.log"
        self.daemon = self._running.enter_context(
            running(f"runtime {self.programs.version}", self.command, log_file)
        )
        self.daemon.wait_until(self._answers)

    def kill(self) -> None:
        """Kill the daemon with SIGKILL; its containers keep running."""
        assert self.daemon is not None
        self.daemon.process.kill()
        self.daemon.process.wait()

    def stop(self) -> None:
        """Stop the daemon and the connection to it."""
        self._running.close()
        if self._channel is not None:
            self._channel.close()

    def _answers(self) -> bool:
        """Return whether CRI is ready, which is later than the socket."""
        with suppress(grpc.RpcError):
            self.call("Status", api_pb2.StatusRequest(), api_pb2.StatusResponse)
            return True
        return False

    def ctr(self, *arguments: str) -> None:
        """Run `ctr` in the namespace of Kubernetes."""
        command = self.programs.run("ctr", "-a", str(self.socket), "-n", "k8s.io", *arguments)
        subprocess.run(command, check=True, capture_output=True, timeout=2 * _SECONDS)

    def load(self, image: Path) -> None:
        """Import an image from an archive."""
        local = () if self.programs.version == VERSIONS[0] else ("--local",)
        self.ctr("images", "import", *local, "--snapshotter", self.snapshotter, str(image))


@dataclass(frozen=True)
class Pod:
    """A running sandbox."""

    containerd: Containerd
    id: str
    config: api_pb2.PodSandboxConfig

    def create(
        self,
        name: str,
        command: Sequence[str] = FOREVER,
        cpus: str = "",
        *,
        quota: int = 50000,
        mounts: Sequence[api_pb2.Mount] = (),
        devices: Sequence[str] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> str:
        """Create a container without starting it, and return its id."""
        config = api_pb2.ContainerConfig(
            metadata=api_pb2.ContainerMetadata(name=name),
            image=api_pb2.ImageSpec(image=IMAGE),
            command=command,
            log_path=f"{name}.log",
            mounts=mounts,
            envs=[api_pb2.KeyValue(key=key, value=value) for key, value in environment.items()],
            devices=[
                api_pb2.Device(host_path=path, container_path=path, permissions="rwm") for path in devices
            ],
            linux=api_pb2.LinuxContainerConfig(
                resources=api_pb2.LinuxContainerResources(
                    cpuset_cpus=cpus, cpu_quota=quota, cpu_period=100000
                )
            ),
        )
        self.containerd.container_config(config)
        request = api_pb2.CreateContainerRequest(
            pod_sandbox_id=self.id, config=config, sandbox_config=self.config
        )
        answer = self.containerd.call("CreateContainer", request, api_pb2.CreateContainerResponse)
        return str(answer.container_id)

    def start(self, container_id: str) -> str:
        """Start a created container and return its id."""
        request = api_pb2.StartContainerRequest(container_id=container_id)
        self.containerd.call("StartContainer", request, api_pb2.StartContainerResponse)
        return container_id

    def run(self, name: str, command: Sequence[str] = FOREVER, cpus: str = "") -> str:
        """Create and start a container, and return its id."""
        return self.start(self.create(name, command, cpus))

    def stop(self, container_id: str) -> None:
        """Stop a container at once."""
        request = api_pb2.StopContainerRequest(container_id=container_id, timeout=0)
        self.containerd.call("StopContainer", request, api_pb2.StopContainerResponse)

    def remove(self, container_id: str) -> None:
        """Remove a stopped container."""
        self.containerd.remove_container(container_id)


@contextmanager
def start_containerd(version: str, directory: Path, host: tuple[str, ...] = ()) -> Iterator[Containerd]:
    """Run a containerd with an image until the block ends; raise RuntimeMissing without one."""
    programs = find_programs(version)
    folders = (*programs.folders, install_shim(directory / "shims"))
    crun.install_script(directory / "shims")
    snapshotter = best_snapshotter(directory)
    containerd = Containerd(replace(programs, folders=folders, host=host), directory, snapshotter)
    (directory / "config.toml").write_text(config_text(programs.version, directory, IMAGE, snapshotter))
    held = lifeline.hold(directory)
    _clean(containerd)  # what a killed run left whose process had the same number
    try:
        containerd.start()
        _import_image(containerd)
        yield containerd
        containerd.remove_pods()
    finally:
        containerd.stop()
        os.close(held)
        _clean(containerd)


def _import_image(containerd: Containerd) -> None:
    image = containerd.directory / "image.tar"
    write_image(image)
    containerd.load(image)


def _clean(containerd: Containerd) -> None:
    """Kill shims that a killed daemon left, and remove mounts and cgroups."""
    for pid in _shims(containerd.socket):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _end_tasks(containerd.cgroup)
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in reversed([mount for mount in mounts if Path(mount).is_relative_to(containerd.directory)]):
        subprocess.run(["umount", "-l", mount], check=False)
    for folder in cgroup_folders(containerd.cgroup):
        for below, _, _ in os.walk(folder, topdown=False):
            with suppress(OSError):
                Path(below).rmdir()


def _shims(socket: Path) -> list[int]:
    """Return the shims that serve this socket."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            arguments = path.read_bytes().split(b"\0")
            if b"containerd-shim" in arguments[0] and os.fsencode(socket) in arguments:
                found.append(int(path.parent.name))
    return found


def _end_tasks(cgroup: str) -> None:
    """Kill the remaining processes in the test's cgroups and wait for their exit."""
    deadline = time.monotonic() + _SECONDS
    while (pids := _pids(cgroup)) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _pids(cgroup: str) -> set[int]:
    found: set[int] = set()
    for folder in cgroup_folders(cgroup):
        for path, _, _ in os.walk(folder):  # tolerates cgroups that are removed during the walk
            with suppress(OSError):
                found |= {int(pid) for pid in (Path(path) / "cgroup.procs").read_text().split()}
    return found


def cgroup_folders(cgroup: str) -> list[Path]:
    """Return the folders of a cgroup in every hierarchy that has it."""
    roots = [CGROUP_ROOT, *(path for path in CGROUP_ROOT.iterdir() if path.is_dir())]
    return [folder for root in roots if (folder := root / cgroup.lstrip("/")).is_dir()]


def write_image(path: Path) -> None:
    """Write a Docker archive with busybox and the commands of the tests."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as files:
        files.add(str(shutil.which("busybox")), "bin/busybox")
        for name in ("sh", "sleep", "taskset", "cat", "true"):
            add_link(files, f"bin/{name}", "busybox")
    write_archive(path, IMAGE, layer.getvalue(), {"Cmd": list(FOREVER), "Env": ["PATH=/bin"]})
