"""Read what `agent.doctor` examines. Reads only, and survives whatever is missing."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from agent.doctor import AgentFacts, Facts, Strangers
from agent.hierarchy import find_hierarchy
from agent.kubelet import read_kubelet_policy
from agent.seams import AgentError
from agent.sysfs import read_topology
from pinning.cpuset import CPUSet, union
from pinning.errors import PinningError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pinning.topology import Topology

NRI_SOCKET: Final = Path("/var/run/nri/nri.sock")
WRITERS: Final = {  # by the name of the process, which the kernel cuts at 15 letters
    "koordlet": "koordlet",
    "tuned": "tuned",
    "crane-agent": "Crane's agent",
    "nri-resource-po": "an NRI resource policy",
    "dracpu": "dra-driver-cpu",
    "cpusetter": "CPU-Pooler",
    "cmk": "Intel CMK",
    "numad": "numad",
    "cset": "cset",
}
_KTHREAD: Final = 0x00200000  # PF_KTHREAD of the flags in proc_pid_stat(5)
_FLAGS, _PROCESSOR = 6, 36  # their places after the name in /proc/PID/stat


@dataclass(frozen=True, slots=True)
class Places:
    """Where to look."""

    root: Path = Path("/")
    cgroups: Path = Path("/sys/fs/cgroup")
    kubelet_state: Path = Path("/var/lib/kubelet/cpu_manager_state")
    runtime: Path | None = None  # None: the first of the usual sockets


def read_facts(places: Places, state: Mapping[str, Any] | None, seconds: float) -> Facts:
    """Return what is found; `state` is what the agent's socket says, threads are watched for some seconds."""
    missing: dict[str, str] = {}
    running = dict(_processes())
    version, writable = _cgroups(places.cgroups, missing)
    agent = agent_facts(state) if state is not None else None
    return Facts(
        kubelet=read_kubelet_policy(places.kubelet_state),
        kubelet_runs="kubelet" in running.values(),
        topology=_topology(places.root, missing),
        agent=agent,
        runtime=_runtime(places.runtime, missing) or (state or {}).get("runtime"),
        nri=NRI_SOCKET.exists(),
        cgroup_version=version,
        cgroup_writable=writable,
        writers=tuple(
            f"{WRITERS[name]} (pid {pid})" for pid, name in sorted(running.items()) if name in WRITERS
        ),
        strangers=_strangers(state, agent.exclusive, seconds) if state is not None and agent else None,
        missing=missing,
    )


def agent_facts(state: Mapping[str, Any]) -> AgentFacts:
    """Return what matters of the agent's state."""
    held = [one for one in state["ledger"]["assignments"] if one["policy"] == "exclusive"]
    footprints = [CPUSet.parse(one[name]) for one in held for name in ("cpus", "idle")]
    return AgentFacts(
        allocatable=CPUSet.parse(state["sets"]["allocatable"]),
        reserved=CPUSet.parse(state["sets"]["reserved"]),
        exclusive=union(footprints),
        fights=tuple(one["container"] for one in state["fights"]),
        failures=tuple(state["failures"]),
        refusals=tuple(f"{one['name']}: {one['message']}" for one in state["refusals"]),
    )


def _processes() -> Iterator[tuple[int, str]]:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            yield int(folder.name), (folder / "comm").read_text(encoding="utf-8", errors="replace").strip()


def _cgroups(root: Path, missing: dict[str, str]) -> tuple[int | None, bool]:
    try:
        hierarchy = find_hierarchy(root)
    except AgentError as error:
        missing["cgroup_version"] = str(error)
        return None, False
    return hierarchy.version, os.access(hierarchy.cpuset / "cgroup.procs", os.W_OK)


def _topology(root: Path, missing: dict[str, str]) -> Topology | None:
    try:
        return read_topology(root)
    except (PinningError, OSError) as error:
        missing["topology"] = str(error)
        return None


def _runtime(socket: Path | None, missing: dict[str, str]) -> str | None:
    from agent.cri_facts import find_socket

    socket = socket or find_socket()
    if socket is None:
        missing["runtime"] = "none of the usual CRI sockets is there"
        return None
    try:
        return asyncio.run(_identify(socket))
    except AgentError as error:
        missing["runtime"] = str(error)
        return None


async def _identify(socket: Path) -> str:
    from agent.cri import CRI

    runtime = CRI(socket, timeout_seconds=3.0)
    try:
        return await runtime.identify()
    finally:
        await runtime.close()


def _strangers(state: Mapping[str, Any], exclusive: CPUSet, seconds: float) -> Strangers:
    """Watch all threads for a while; return those that ran on exclusive CPUs and are not of the pods that own some.

    Threads of an owning pod count as the owner's: which of its containers they are of, only the runtime knows.
    """
    if not exclusive:
        return Strangers({})
    owners = {one["podUID"] for one in state["ledger"]["assignments"] if one["policy"] == "exclusive"}
    before = {task: ran for task, ran, _, _ in _threads(exclusive)}
    time.sleep(seconds)
    found: Counter[str] = Counter()
    kernel = 0
    for task, ran, is_kernel, cgroup in _threads(exclusive):
        if before.get(task) == ran or task == os.getpid():
            continue
        if is_kernel:
            kernel += 1
        elif not any(uid in cgroup or uid.replace("-", "_") in cgroup for uid in owners):
            found[cgroup] += 1
    return Strangers(dict(found), kernel)


def _threads(cpus: CPUSet) -> Iterator[tuple[int, str, bool, str]]:
    """Yield each thread that ran on one of the CPUs last: id, how often it ran, whether it is the kernel's, cgroup."""
    wanted = {str(cpu) for cpu in cpus}
    for task in Path("/proc").glob("[0-9]*/task/[0-9]*"):
        with suppress(OSError, IndexError):
            fields = (task / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            if fields[_PROCESSOR] in wanted:
                ran = (task / "schedstat").read_text(encoding="ascii").split()[2]
                yield int(task.name), ran, bool(int(fields[_FLAGS]) & _KTHREAD), _cgroup(task)


def _cgroup(task: Path) -> str:
    """Return the cgroup of a thread: that of cpuset on v1, else the one there is."""
    lines = [line.split(":", 2) for line in (task / "cgroup").read_text(encoding="utf-8").splitlines()]
    found = {controllers: path for _, controllers, path in lines}
    return next((path for names, path in found.items() if "cpuset" in names.split(",")), found.get("", "/"))
