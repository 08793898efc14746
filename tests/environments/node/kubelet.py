"""A kubelet for tests, below a cgroup of its own; its changes of the machine are undone."""

from __future__ import annotations

import json
import subprocess
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from tests.environments.node.containerd import CGROUP_ROOT
from tests.environments.server.daemon import Daemon, free_port, running
from tests.environments.server.last_use import until_last_use
from tests.environments.server.mount_points import mount_points

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tests.environments.server.apiserver import ApiServer

# Sysctls that every kubelet sets regardless of its configuration; below, the folders that it uses outside its
# root.
_SYSCTLS: Final = tuple(
    Path("/proc/sys", name)
    for name in (
        "vm/overcommit_memory",
        "vm/panic_on_oom",
        "kernel/panic",
        "kernel/panic_on_oops",
        "kernel/keys/root_maxkeys",
        "kernel/keys/root_maxbytes",
    )
)
_RECORD: Final = Path("/run/corepin-tests.sysctls")  # file with the values before the first kubelet, as JSON
_IN_USE: Final = Path("/run/corepin-tests.sysctls-in-use")
_FOLDERS: Final = tuple(map(Path, ("/var/lib/kubelet", "/var/log/containers", "/var/log/pods")))
_numbers = count(1)


@dataclass
class Kubelet:
    """A kubelet that can be stopped and started again; it dies with the thread that starts it."""

    program: Path
    directory: Path
    kubeconfig: Path | None  # None: it runs static pods alone, without an API server
    node: str
    host: tuple[str, ...] = ()  # prefix of command lines that run on another test host
    flags: tuple[str, ...] = ()
    stack: ExitStack = field(default_factory=ExitStack)
    daemon: Daemon | None = None

    @property
    def static_pods(self) -> Path:
        """The folder of static pods."""
        return self.directory / "static"

    @property
    def logs(self) -> Path:
        """The folder of the containers' logs."""
        return self.directory / "logs"

    @property
    def cpu_manager_state(self) -> Path:
        """The file with its CPU policy."""
        return self.directory / "root" / "cpu_manager_state"

    def start(self) -> None:
        """Start the process."""
        command = [
            *self.host,
            str(self.program),
            f"--config={self.directory / 'config.json'}",
            *([f"--kubeconfig={self.kubeconfig}"] if self.kubeconfig else []),
            f"--root-dir={self.directory / 'root'}",
            f"--cert-dir={self.directory / 'pki'}",
            f"--hostname-override={self.node}",
            *self.flags,
        ]
        log_file = self.directory / f"kubelet-{next(_numbers)}.log"
        self.daemon = self.stack.enter_context(running("kubelet", command, log_file))

    def stop(self) -> None:
        """Send SIGTERM, and wait for the exit."""
        assert self.daemon
        self.daemon.stop()


@contextmanager
def start_kubelet(
    program: Path,
    server: ApiServer | None,
    node: str,
    directory: Path,
    runtime: Path,
    cgroup: str,
    *,
    host: tuple[str, ...] = (),
    flags: tuple[str, ...] = (),
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[Kubelet]:
    """Run a kubelet until the block ends, with further `settings` in its configuration; its pods stay."""
    kubeconfig = server.add_user(f"system:node:{node}", group="system:nodes") if server else None
    kubelet = Kubelet(program, directory, kubeconfig, node, host, flags)
    for folder in (kubelet.static_pods, kubelet.logs, directory / "root"):
        folder.mkdir(parents=True, exist_ok=True)
    config = {**_config(kubelet, runtime, cgroup), **settings}
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    with sysctls_kept(), kubelet.stack:
        _make_cgroup(cgroup)
        kubelet.start()
        yield kubelet


def _config(kubelet: Kubelet, runtime: Path, cgroup: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{runtime}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "enforceNodeAllocatable": [],
        "cpuManagerPolicy": "none",
        "failCgroupV1": (CGROUP_ROOT / "cgroup.controllers").exists(),
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        "makeIPTablesUtilChains": False,
        "staticPodPath": str(kubelet.static_pods),
        "podLogsDir": str(kubelet.logs),
        "volumePluginDir": str(kubelet.directory / "plugins"),
        "fileCheckFrequency": "1s",
        "nodeStatusUpdateFrequency": "2s",
        "address": "127.0.0.1",
        "port": free_port(),
        "healthzPort": free_port(),
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
        "eventRecordQPS": 0,
        "oomScoreAdj": 0,
    }


def _make_cgroup(cgroup: str) -> None:
    """Make a cgroup in every hierarchy; on v1 its cpuset must be set before a process can enter."""
    roots = [CGROUP_ROOT] if (CGROUP_ROOT / "cgroup.controllers").exists() else list(CGROUP_ROOT.iterdir())
    for root in roots:
        if not (root / "cgroup.procs").exists():
            continue
        folder = root / cgroup.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            if (root / name).exists():
                (folder / name).write_text((root / name).read_text())


@contextmanager
def folders_apart(directory: Path) -> Iterator[tuple[str, ...]]:
    """Yield the prefix of a command line that gives a kubelet its own folders at the fixed paths.

    The kubelet runs in its own mount namespace. Its root folder has shared propagation, because the runtime mounts
    the volumes of pods from there.
    """
    root = directory / "root"
    own = {there: directory / "apart" / there.name for there in _FOLDERS}
    for folder in (root, *own.values()):
        folder.mkdir(parents=True)
    steps = ["set -e"]
    for there, folder in own.items():
        steps += [f'mount --make-private "$(stat --format=%m {there})"', f"mount --bind {folder} {there}"]
    script = "\n".join([*steps, 'exec "$@"'])
    with mount_points(own):
        subprocess.run(["mount", "--bind", root, root], check=True)
        try:
            subprocess.run(["mount", "--make-shared", root], check=True)
            yield ("unshare", "--mount", "--propagation", "unchanged", "sh", "-c", script, "kubelet")
        finally:
            subprocess.run(["umount", "--recursive", "--lazy", root], check=True)


@contextmanager
def sysctls_kept(
    files: Iterable[Path] = _SYSCTLS, record: Path = _RECORD, in_use: Path = _IN_USE
) -> Iterator[None]:
    """Restore files that kubelets change outside their folders when this machine's last test kubelet ends."""
    with until_last_use(record, in_use, lambda text: text or _values(files), _restore):
        yield


def _values(files: Iterable[Path]) -> str:
    return json.dumps({str(path): path.read_text() for path in files if path.exists()})


def _restore(text: str) -> None:
    for path, value in json.loads(text).items():
        with suppress(OSError):
            Path(path).write_text(value)
