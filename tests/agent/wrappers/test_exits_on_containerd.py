"""Exit codes of killed first processes from a real containerd, on a kernel that does not keep them."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cri_api.v1 import api_pb2

from agent.cri.runtime import CRI
from agent.errors import Gone
from agent.interfaces import ContainerExit, PassedContainer
from agent.kernel.cgroupfs import find_hierarchy
from agent.wrappers.service import Dependencies, WrapperService
from agent.wrappers.store import FILE, Store
from pinning.cmk.pools import ExitSource
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import Owner, State
from tests.agent.states import state_of
from tests.agent.wrappers.scene import SECONDS, Masks, plain_pod
from tests.environments.node.containerd import CGROUP_ROOT

if TYPE_CHECKING:
    from agent.interfaces import RuntimeContainer
    from agent.node_state import NodeState
    from tests.environments.node.containerd import Containerd

WRAPPED = ("/opt/bin/cmk", "isolate", "--pool=infra", "--no-affinity", "/bin/sh", "--", "-c")
UNTIL_TOLD = "while [ ! -e /opt/bin/told ]; do /bin/sleep 0.05; done; exit 7"


class Node:
    """The wrapper service for containers of containerd, with a pass for each event."""

    def __init__(self, containerd: Containerd, folder: Path) -> None:
        self.runtime = CRI(containerd.socket)
        self.alive: dict[str, RuntimeContainer] = {}
        self.said: list[ContainerExit | None] = []
        self.state = state_of(plain_pod())
        edges = Dependencies(
            find_hierarchy(CGROUP_ROOT),
            affinities=Masks().as_affinities,
            was_killed=lambda *_: None,
            exit_of=self._exit_of,
        )
        self.service = WrapperService(folder, edges, Store(folder / FILE, "boot-1"), {})
        self._wanted = asyncio.Event()

    async def _exit_of(self, container_id: str) -> ContainerExit | None:
        self.said.append(await self.runtime.exit_of(container_id))
        return self.said[-1]

    @property
    def shown(self) -> NodeState:
        """The node with its wrappers."""
        return self.service.shown(self.state)

    async def run(self) -> None:
        """Serve wrappers and run passes until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.runtime.watch(self._wanted.set))
            tasks.create_task(self.service.run(self._wanted.set, lambda: None))
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                await self._pass()

    async def _pass(self) -> None:
        self.service.uses()
        listed = await self.runtime.containers()
        self.alive = {each.id: each for each in listed if each.state is not State.EXITED}
        passed = (
            PassedContainer(
                each.id,
                Owner(each.pod_uid, each.name),
                each.full_name,
                each.cgroup,
                CPUSet(),
                each.pid,
                is_right=True,
            )
            for each in self.alive.values()
        )
        self.service.passed(self.state, passed)

    async def first_process(self, container_id: str) -> int:
        """Wait until a container's first process is wrapped; return its pid."""
        async with asyncio.timeout(SECONDS):
            while True:
                running = self.alive.get(container_id)
                if running and running.pid in {task.pid for task in self.shown.tasks}:
                    return running.pid
                await asyncio.sleep(0.01)


def start(containerd: Containerd, folder: Path, script: str) -> str:
    """Start a container that runs a script under `cmk isolate`; return its id."""
    mounts = [api_pb2.Mount(container_path="/opt/bin", host_path=str(folder), readonly=True)]
    pod = containerd.run_pod("q", "uid-q")
    return pod.start(pod.create("main", [*WRAPPED, script], mounts=mounts))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return an install directory with the command `cmk`."""
    command = Path(sys.prefix, "libexec", "cmk")
    subprocess.run(["scripts/shim", str(command)], check=True)
    shutil.copy2(command, tmp_path / "cmk")
    return tmp_path


@pytest.mark.parametrize(
    ("is_killed", "code", "sources"), [(True, 137, {ExitSource.RUNTIME}), (False, 7, set())]
)
async def test_runtime_tells_which_first_process_was_killed(
    containerd: Containerd, folder: Path, is_killed: bool, code: int, sources: set[str]
) -> None:
    """A killed first process makes an entry with the runtime as source; an ordinary exit makes none."""
    node = Node(containerd, folder)
    running = asyncio.create_task(node.run())
    container_id = await asyncio.to_thread(start, containerd, folder, UNTIL_TOLD)
    pid = await node.first_process(container_id)
    assert await node.runtime.exit_of(container_id) is None
    if is_killed:
        os.kill(pid, signal.SIGKILL)
    else:
        (folder / "told").touch()
    async with asyncio.timeout(SECONDS):
        while not node.said:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0)
    (end,) = node.said
    assert end is not None
    assert (end.code, end.reason, end.finished > 0) == (code, "Error", True)
    assert {entry.source for entry in node.shown.reclaimed} == sources
    assert {entry.pid for entry in node.shown.reclaimed} == ({pid} if sources else set())
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    await asyncio.to_thread(containerd.remove_pods)
    with pytest.raises(Gone):
        await node.runtime.exit_of(container_id)
