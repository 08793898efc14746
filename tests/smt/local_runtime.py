"""Inside the guest: the runtime `local` on cgroup v2, with the cpusets that an agent would send."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.kernel.cgroupfs import find_hierarchy
from agent.local.pods_dir import PodsDir
from agent.local.runtime import LocalRuntime, open_local
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import State
from tests.environments.guest.inside import report
from tests.environments.guest.polling import ANSWER_SECONDS

if TYPE_CHECKING:
    from agent.interfaces import RuntimeContainer

FOLDER: Final = Path("/tmp/local")
CGROUPS: Final = Path("/sys/fs/cgroup")
BORN, MOVED = CPUSet([1]), CPUSet([2, 3])
COMMAND: Final = "grep Cpus_allowed_list /proc/self/status; sleep 1000000 & echo waiting; wait"
POD: Final = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p"},
    "spec": {
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "app", "command": ["sh", "-c", COMMAND]}],
    },
}


def local_runtime() -> None:
    """Start a pod on one CPU, move it to others, remove it, and report the kernel's masks after each step."""
    asyncio.run(_steps())


async def _steps() -> None:
    file, log = FOLDER / "pods/p.json", FOLDER / "logs/default_p_app.log"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(POD))
    source = PodsDir(file.parent)
    source.look()
    runtime, cgroups = open_local(source, CGROUPS, FOLDER)
    async with asyncio.timeout(ANSWER_SECONDS):
        container = await _running(runtime)
        while not log.read_text().endswith("waiting\n"):  # then the two that stay are there, and grep is gone
            await asyncio.sleep(0.01)
        await runtime.update_cpus(container.id, MOVED)
        folder = find_hierarchy(CGROUPS).folder(str(container.cgroup))
        pids = [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
        facts = {
            "runtime": runtime.name,
            "first": log.read_text().split()[-2],
            "cpuset": str(cgroups.cpusets.read(str(container.cgroup))),
            "processes": [str(CPUSet(os.sched_getaffinity(pid))) for pid in pids],
        }
        file.unlink()
        source.look()
        while await runtime.containers():
            await asyncio.sleep(0.01)
    report("local", **facts, left=[str(path) for path in CGROUPS.glob("corepin-local*")])


async def _running(runtime: LocalRuntime) -> RuntimeContainer:
    """Send the CPUs to the container once it is created, and return it when it runs."""
    while True:
        for container in await runtime.containers():
            if container.state is State.CREATED:
                await runtime.update_cpus(container.id, BORN)
            elif container.state is State.RUNNING:
                return container
        await asyncio.sleep(0.01)
