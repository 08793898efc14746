"""One virtual machine in a pod: its QEMU, monitor and threads, and virt-handler's changes."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.kernel.cgroupfs import V2, Hierarchy
from pinning.machine.cpuset import CPUSet
from tests.environments.vm.guests import FIRMWARE, OVERHEARD
from tests.environments.vm.lifeline import hold
from tests.environments.vm.pods import MONITOR
from tests.environments.vm.qmp import SECONDS, monitor
from tests.environments.vm.threads import Truth, allowed, tell
from tests.environments.waiting import until
from tests.vm.firmware import write_firmware

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from tests.environments.vm.qmp import Monitor

_CREDENTIALS: Final = struct.Struct("3i")  # process, user, group


@dataclass(frozen=True, slots=True)
class SocketsFolder:
    """A virtual machine's folder of sockets, with a firmware and the machine's lifeline."""

    path: Path
    held: int
    listener: socket.socket  # path of the machine's further monitor, if the test listens on it

    @classmethod
    def new(cls) -> SocketsFolder:
        """Create a folder with a path short enough for sockets."""
        path = Path(tempfile.mkdtemp(prefix="vm-"))
        write_firmware(path / FIRMWARE)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path / OVERHEARD))
        listener.listen()
        return cls(path, hold(path), listener)

    def callers(self) -> list[int]:
        """Return the pids that have connected to the further monitor since the last call."""
        found = []
        self.listener.settimeout(0)
        with suppress(BlockingIOError):
            while True:
                connection, _ = self.listener.accept()
                with connection:
                    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
                found.append(_CREDENTIALS.unpack(peer)[0])
        return found

    def remove(self) -> None:
        """Close the lifeline, which ends the machine, and remove the folder."""
        os.close(self.held)
        self.listener.close()
        shutil.rmtree(self.path, ignore_errors=True)


@dataclass
class Machine:
    """A virtual machine, found by its process; ids are those of this pid namespace."""

    name: str
    folder: Path  # folder of its sockets
    find: Callable[[], int | None]
    owned: SocketsFolder | None = None  # the folder, if the test created it
    _pid: int = field(default=0, init=False)

    @property
    def pid(self) -> int:
        """The pid of QEMU; waits until it runs."""
        if not self._pid:
            self._pid = until(f"QEMU of {self.name}", self.find, SECONDS)
        return self._pid

    def talk(self) -> AbstractContextManager[Monitor]:
        """Connect to its monitor."""
        return monitor(self.folder / MONITOR)

    def truth(self) -> Truth:
        """Wait for its monitor, and return its threads by role."""
        return tell(self.pid, self.folder / MONITOR)

    def masks(self) -> dict[int, CPUSet]:
        """Return the affinity of each thread."""
        return {tid: allowed(tid) for tid in self.truth().all}

    def pin(self, vcpus: Iterable[int], emulator: CPUSet) -> None:
        """Pin each vCPU to a CPU and all other threads to the emulator's, as libvirt does."""
        truth = self.truth()
        for tid, cpu in zip(truth.vcpus, vcpus, strict=True):
            os.sched_setaffinity(tid, {cpu})
        for tid in (*truth.others, *truth.iothreads.values()):
            with suppress(ProcessLookupError):  # an idle worker exits after some seconds
                os.sched_setaffinity(tid, emulator)

    def clean(self) -> None:
        """Remove its folder, and end it if it still runs."""
        if self.owned:
            self.owned.remove()


def keep_house(hierarchy: Hierarchy, container: Path, cpus: CPUSet, truth: Truth) -> Path:
    """Create virt-handler's child cgroup for an isolated emulator: all threads except the vCPUs."""
    child = container / "housekeeping"
    if hierarchy.version == V2:
        (container / "cgroup.subtree_control").write_text("+cpuset")
    child.mkdir()
    if hierarchy.version == V2:
        (child / "cgroup.type").write_text("threaded")
    else:
        (child / "cpuset.mems").write_text((container / "cpuset.mems").read_text())
    (child / "cpuset.cpus").write_text(str(cpus))
    for tid in (container / hierarchy.tasks).read_text().split():
        if int(tid) not in truth.vcpus:
            (child / hierarchy.tasks).write_text(tid)
    return child
