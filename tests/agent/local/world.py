"""A folder of manifests with the `local` runtime, used as by an agent."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml

from agent.interfaces import Cpusets, RuntimeContainer, Tasks
from agent.kernel.cgroupfs import DEFAULT_ROOT, find_hierarchy
from agent.kernel.cpusets import KernelCpusets
from agent.kernel.tasks import KernelTasks
from agent.local.affinity import AffinityCgroups
from agent.local.cgroups import ContainerCgroups, KernelContainerCgroups
from agent.local.manifest import uid_for
from agent.local.pods_dir import PodsDir
from agent.local.process import kill_all
from agent.local.runtime import LocalRuntime
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.observed import State
from tests.environments.waiting import background

LAST = CPUSet([max(os.sched_getaffinity(0))])
UID = uid_for("default/p")
SECONDS = 60.0


class World:
    """A folder of manifests and the runtime: lists containers and sends CPUs to created ones."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self.kind = kind
        self.root = f"/corepin-test-{uuid4().hex[:8]}"
        self.sent: CPUSet | None = LAST
        self.sent_mems = EMPTY
        self.changed = asyncio.Event()
        self.watching: list[asyncio.Task[None]] = []
        (folder / "pods").mkdir()
        self.start()

    def start(self) -> None:
        """Start a new agent."""
        self.source = PodsDir(self.folder / "pods", self.folder / "finished.json")
        self.cpusets: Cpusets
        self.tasks: Tasks
        self.cgroups: ContainerCgroups
        if self.kind == "affinity":
            self.cpusets = self.tasks = self.cgroups = AffinityCgroups(self.root)
        else:
            hierarchy = find_hierarchy(DEFAULT_ROOT)
            self.cpusets = KernelCpusets(hierarchy)
            self.tasks = KernelTasks(hierarchy, self.cpusets)
            self.cgroups = KernelContainerCgroups(hierarchy, self.root)
        self.runtime = LocalRuntime(self.source, self.cpusets, self.cgroups, root=self.root, logs=self.folder)

    def put(self, *containers: dict[str, Any], init: list[dict[str, Any]] | None = None, **spec: Any) -> None:
        """Write the manifest of pod `p`."""
        spec = {"terminationGracePeriodSeconds": 5, **spec, "containers": list(containers)}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p"},
            "spec": spec | ({"initContainers": init} if init else {}),
        }
        (self.folder / "pods/p.yaml").write_text(yaml.safe_dump(pod))

    def remove(self) -> None:
        """Remove the manifest."""
        (self.folder / "pods/p.yaml").unlink()

    async def until(
        self, is_so: Callable[[dict[str, RuntimeContainer]], bool]
    ) -> dict[str, RuntimeContainer]:
        """List and send CPUs until a condition holds, waiting for events of the runtime."""
        if not self.watching:
            sources = (self.source, self.runtime)
            self.watching = [asyncio.create_task(source.watch(self.changed.set)) for source in sources]
        async with asyncio.timeout(SECONDS):
            while True:
                self.changed.clear()
                found = {container.name: container for container in await self.runtime.containers()}
                if is_so(found):
                    return found
                await self._send(found)
                await self.changed.wait()

    async def until_seen(self, is_so: Callable[[], bool]) -> None:
        """Poll until a condition holds that has no event."""

        async def nudge() -> None:
            while True:
                self.changed.set()
                await asyncio.sleep(0.01)

        async with background(nudge()):
            await self.until(lambda _: is_so())

    async def emptied(self) -> None:
        """Remove the pod, and wait until none of its containers is left."""
        self.remove()
        await self.until(lambda found: not found)

    async def stop(self) -> None:
        """Stop the agent."""
        for task in self.watching:
            task.cancel()
        await asyncio.wait(self.watching)
        self.watching = []

    async def _send(self, found: dict[str, RuntimeContainer]) -> None:
        for container in found.values():
            if container.state is State.CREATED and self.sent:
                await self.runtime.update_cpus(container.id, self.sent, self.sent_mems)

    def log(self, container: str) -> str:
        """Return the log of a container."""
        return (self.folder / f"default_p_{container}.log").read_text()

    def cgroup(self, container: str) -> str:
        """Return the cgroup of a container."""
        return f"{self.root}/{UID}/{container}"

    def close(self) -> None:
        """Kill all processes that a test left."""
        for cgroup in self.cgroups.found():
            while self.cgroups.pids(cgroup):
                kill_all(lambda cgroup=cgroup: self.cgroups.pids(cgroup))  # type: ignore[misc]
                reap()
            self.cgroups.remove(cgroup)


def reap() -> None:
    """Reap ended children."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


@asynccontextmanager
async def agent_of(world: World) -> AsyncIterator[None]:
    """Run the block as one agent, which stops at its end."""
    yield
    await world.stop()


def running(*names: str) -> Callable[[dict[str, RuntimeContainer]], bool]:
    """Return a condition: exactly these containers run."""
    return lambda found: (
        {name for name, container in found.items() if container.state is State.RUNNING} == set(names)
    )


def app(name: str = "app", command: str = "exec sleep 1000", **more: Any) -> dict[str, Any]:
    """Return a container that runs a shell command."""
    return {"name": name, "command": ["sh", "-c", command], **more}
