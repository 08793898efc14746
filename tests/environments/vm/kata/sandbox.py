"""Kata's effects on the host for one sandbox: QEMU and virtiofsd in cgroups with the union of all cpusets."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path("/sys/fs/cgroup")
OVERHEAD: Final = "/kata_overhead"
# Annotations of a pod for Kata, and of a test for this shim: the command of QEMU, with sandbox and folder.
CGROUP_ONLY: Final = "io.katacontainers.config.runtime.sandbox_cgroup_only"
QEMU: Final = "io.katacontainers.test.qemu"
THIS_SANDBOX, THIS_FOLDER = (
    "@SANDBOX@",
    "@FOLDER@",
)  # placeholders in the command: the sandbox's id, and the folder of its sockets
BOOTED: Final = "io.katacontainers.test.booted"  # the guest boots once this file exists
WITHOUT_CPUSET: Final = "io.katacontainers.test.without_cpuset"
_SECONDS: Final = 300.0
_POLL_SECONDS: Final = 0.02


@dataclass
class Container:
    """A container, or the sandbox's own; it has no process on the host."""

    id: str
    bundle: str
    cpus: str  # its last cpuset from the runtime
    outputs: list[int] = field(default_factory=list)  # containerd's pipes
    is_started: bool = False
    exit_status: int | None = None
    exited_at: float = 0.0
    over: threading.Event = field(default_factory=threading.Event)

    def end(self, status: int) -> None:
        """Set the exit status, once."""
        if self.exit_status is None:
            self.exit_status, self.exited_at = status, time.time()
            for pipe in self.outputs:
                os.close(pipe)
            self.over.set()


@dataclass
class Sandbox:
    """The virtual machine of a pod."""

    id: str
    spec: dict[str, Any]
    folder: Path  # folder of its sockets
    containers: dict[str, Container] = field(default_factory=dict)
    qemu: subprocess.Popen[bytes] | None = None
    virtiofsd: subprocess.Popen[bytes] | None = None
    monitor: socket.socket | None = None  # kept open until the end, as Kata does

    @property
    def cgroup(self) -> str:
        """The cgroup with the union of the cpusets."""
        above, _, name = str(self.spec["linux"]["cgroupsPath"]).rpartition("/")
        return f"{above}/kata_{name}"

    @property
    def annotations(self) -> dict[str, str]:
        """The annotations of the pod."""
        return dict(self.spec.get("annotations") or {})

    def start(self) -> None:
        """Start virtiofsd and QEMU in Kata's cgroups: the sandbox's, or another one.

        Must be called by the main thread, because its children end with the thread.
        """
        has_cpuset = WITHOUT_CPUSET not in self.annotations
        make_cgroup(self.cgroup, has_cpuset=has_cpuset)
        is_alone = self.annotations.get(CGROUP_ONLY, "true") == "true"
        first = self.cgroup if is_alone else f"{OVERHEAD}/{self.id}"
        make_cgroup(first, has_cpuset=has_cpuset)
        enter(first, os.getpid())  # child processes start in this cgroup
        self.virtiofsd = start_virtiofsd(self.id)
        words = json.loads(self.annotations[QEMU])
        command = [
            word.replace(THIS_SANDBOX, self.id).replace(THIS_FOLDER, str(self.folder)) for word in words
        ]
        with (self.folder / "qemu.log").open("wb") as log:
            self.qemu = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        vcpus = self._vcpus()
        if not is_alone:
            self._move(vcpus)
        self._boot()

    def _boot(self) -> None:
        """Wait for the guest, as Kata waits for its agent before it answers the runtime."""
        file = self.annotations.get(BOOTED)
        while file and not Path(file).exists():
            time.sleep(_POLL_SECONDS)

    def _vcpus(self) -> list[int]:
        """Return QEMU's vCPU threads over its monitor, and keep the connection."""
        self.monitor = _connect(self.folder / "qmp.sock")
        stream = self.monitor.makefile("rwb")
        stream.readline()
        for command in ("qmp_capabilities", "query-cpus-fast"):
            stream.write(json.dumps({"execute": command}).encode() + b"\n")
            stream.flush()
            answer = json.loads(stream.readline())
        return [cpu["thread-id"] for cpu in answer["return"]]

    def _move(self, vcpus: list[int]) -> None:
        """Move the vCPUs; on version 2 that moves the whole process."""
        assert self.qemu
        if (ROOT / "cgroup.controllers").exists():
            enter(self.cgroup, self.qemu.pid)
            return
        for tid in vcpus:
            for folder in folders(self.cgroup):
                (folder / "tasks").write_text(str(tid))

    def confine(self) -> None:
        """Write the union of all cpusets; an empty one is not written, so that the last one stays."""
        sets = [cpus for cpus in (container.cpus for container in self.containers.values()) if cpus]
        file = cpuset_folder(self.cgroup) / "cpuset.cpus"
        if sets and file.exists():
            file.write_text(",".join(sets))

    def end(self) -> None:
        """End the virtual machine with all containers."""
        for process in filter(None, (self.qemu, self.virtiofsd)):
            process.kill()
            process.wait()
        for container in self.containers.values():
            container.end(128 + signal.SIGKILL)

    def remove(self) -> None:
        """Leave the cgroups, and remove them."""
        enter("/", os.getpid())
        for cgroup in (self.cgroup, f"{OVERHEAD}/{self.id}", OVERHEAD):
            for folder in folders(cgroup):
                with suppress(OSError):  # the cgroup has other processes, or never existed
                    folder.rmdir()


def folders(cgroup: str) -> list[Path]:
    """Return the folders of a cgroup in every hierarchy."""
    path = cgroup.strip("/")
    if (ROOT / "cgroup.controllers").exists():
        return [ROOT / path]
    return [root / path for root in ROOT.iterdir() if (root / "tasks").exists()]


def cpuset_folder(cgroup: str) -> Path:
    """Return the folder of a cgroup in the hierarchy of cpusets."""
    return next(folder for folder in folders(cgroup) if "cpuset" in folder.parts or len(folders(cgroup)) == 1)


def make_cgroup(cgroup: str, *, has_cpuset: bool) -> None:
    """Create a cgroup, and on version 1 fill its cpuset, without which no process may enter."""
    for folder in folders(cgroup):
        root = next(above for above in folder.parents if (above / "cgroup.procs").exists())
        above = list(folder.relative_to(root).parts)
        for depth in range(1, len(above) + 1):
            _make(root.joinpath(*above[:depth]), has_cpuset=has_cpuset or depth < len(above))


def _make(folder: Path, *, has_cpuset: bool) -> None:
    control = folder.parent / "cgroup.subtree_control"
    if has_cpuset and control.exists() and "cpuset" not in control.read_text().split():
        control.write_text("+cpuset")
    folder.mkdir(exist_ok=True)
    for name in ("cpuset.cpus", "cpuset.mems"):
        is_first = (
            not control.exists() and (folder / name).exists() and not (folder / name).read_text().strip()
        )
        if is_first:
            (folder / name).write_text((folder.parent / name).read_text())


def enter(cgroup: str, pid: int) -> None:
    """Move a process into a cgroup of every hierarchy."""
    for folder in folders(cgroup):
        (folder / "cgroup.procs").write_text(str(pid))


def start_virtiofsd(sandbox: str) -> subprocess.Popen[bytes]:
    """Start a fake virtiofsd, a process of two threads and its child, and wait until it runs."""
    words = ["/usr/libexec/virtiofsd", "--syslog", "--cache=auto"]
    words.append(f"--shared-dir=/run/kata-containers/shared/sandboxes/{sandbox}/shared/")
    program = str(Path(__file__).with_name("looks_like.py"))
    command = [sys.executable, "-IS", program, "virtiofsd", *words, "--fd=3"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert process.stdout
    process.stdout.read(1)
    return process


def _connect(path: Path) -> socket.socket:
    deadline = time.monotonic() + _SECONDS
    while True:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(_SECONDS)
        try:
            connection.connect(str(path))
        except OSError:
            connection.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)
        else:
            return connection
