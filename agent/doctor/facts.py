"""Read what `agent.doctor.checks` examines. Reads only, and survives whatever is missing."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agent.doctor.checks import AgentFacts, Facts, ForeignThreads
from agent.errors import AgentError
from agent.kernel.cgroup_names import pod_roots
from agent.kernel.cgroupfs import find_hierarchy
from agent.kernel.sysfs import read_topology
from agent.kubelet.policy import KubeletPolicy, read_kubelet_policy
from pinning.contract import KUBELET_STATE
from pinning.errors import PinningError
from pinning.machine.cpuset import CPUSet, union

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.kernel.cgroupfs import Hierarchy
    from pinning.machine.topology import Topology

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
_FLAGS, _TIMES, _PROCESSOR = 6, slice(11, 13), 36  # their places after the name in /proc/PID/stat


@dataclass(frozen=True, slots=True)
class Places:
    """Where to look."""

    root: Path = Path("/")
    cgroups: Path = Path("/sys/fs/cgroup")
    pod_roots: tuple[str, ...] = pod_roots()
    kubelet_state: Path = Path(KUBELET_STATE)
    runtime: Path | None = None  # None: the first of the usual sockets
    nri: Path = NRI_SOCKET


def read_facts(places: Places, state: Mapping[str, Any] | None, seconds: float) -> Facts:
    """Return what is found; `state` is what the agent's socket says, threads are watched for some seconds."""
    missing: dict[str, str] = {}
    proc = places.root / "proc"
    running = dict(_processes(proc))
    hierarchy = _hierarchy(places.cgroups, missing)
    agent = agent_facts(state) if state is not None else None
    return Facts(
        kubelet=read_kubelet_policy(places.kubelet_state),
        kubelet_runs="kubelet" in running.values(),
        topology=_topology(places.root, missing),
        agent=agent,
        runtime=_runtime(places.runtime, missing),
        nri=_is_there(places.nri),
        cgroup_version=hierarchy.version if hierarchy else None,
        cgroup_writable=_is_writable(hierarchy, is_root=os.geteuid() == 0),
        pod_roots=places.pod_roots,
        pod_root=_first_there(places.pod_roots, hierarchy),
        writers=tuple(
            f"{WRITERS[name]} (pid {pid})" for pid, name in sorted(running.items()) if name in WRITERS
        ),
        foreign_threads=_foreign_threads(proc, state, agent.exclusive, seconds)
        if state is not None and agent
        else None,
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
        runtime=state["runtime"],
        kubelet=KubeletPolicy(state["kubelet"]),
        observes=state["observes"],
        pods_complete=state["podsComplete"],
        containers_complete=state["containersComplete"],
        fights=tuple(one["container"] for one in state["fights"]),
        failures=tuple(state["failures"]),
        refusals=tuple(f"{one['name']}: {one['message']}" for one in state["refusals"]),
    )


def _processes(proc: Path) -> Iterator[tuple[int, str]]:
    for folder in proc.glob("[0-9]*"):
        with suppress(OSError):
            yield int(folder.name), (folder / "comm").read_text(encoding="utf-8", errors="replace").strip()


def _hierarchy(root: Path, missing: dict[str, str]) -> Hierarchy | None:
    try:
        return find_hierarchy(root)
    except AgentError as error:
        missing["cgroup_version"] = str(error)
        return None


def _is_writable(hierarchy: Hierarchy | None, *, is_root: bool) -> bool | None:
    """Say whether cgroups can be written; root finds them so unless they are mounted read-only."""
    if hierarchy is not None and os.access(hierarchy.cpuset / "cgroup.procs", os.W_OK):
        return True
    return False if is_root else None


def _first_there(pod_roots: tuple[str, ...], hierarchy: Hierarchy | None) -> str | None:
    there = (root for root in pod_roots if hierarchy and hierarchy.folder(root).is_dir())
    return next(there, None)


def _is_there(path: Path) -> bool:
    with suppress(OSError):  # no right to look into its folder
        return path.exists()
    return False


def _topology(root: Path, missing: dict[str, str]) -> Topology | None:
    try:
        return read_topology(root)
    except (PinningError, OSError) as error:
        missing["topology"] = str(error)
        return None


def _runtime(socket: Path | None, missing: dict[str, str]) -> str | None:
    from agent.cri.container_info import find_socket

    try:
        socket = socket or find_socket()
        if socket is None:
            missing["runtime"] = "none of the usual CRI sockets is there"
        elif not socket.exists():
            missing["runtime"] = f"{socket} is not there"
        else:
            return asyncio.run(_identify(socket))
    except AgentError as error:
        missing["runtime"] = str(error)
    except OSError as error:  # no right to look into its folder
        missing["runtime"] = f"{socket}: {error.strerror}"
    return None


async def _identify(socket: Path) -> str:
    from agent.cri.runtime import CRI

    runtime = CRI(socket, timeout_seconds=3.0)
    try:
        return await runtime.identify()
    finally:
        await runtime.close()


def _foreign_threads(
    proc: Path, state: Mapping[str, Any], exclusive: CPUSet, seconds: float
) -> ForeignThreads:
    """Watch all threads for a while; return those that ran on exclusive CPUs and are not of the pods that own some.

    Threads of an owning pod count as the owner's: which of its containers they are of, only the runtime knows.
    """
    if not exclusive:
        return ForeignThreads({})
    owners = {one["podUID"] for one in state["ledger"]["assignments"] if one["policy"] == "exclusive"}
    before = {one.id: one.ran for one in _threads(proc, exclusive)}
    time.sleep(seconds)
    by_cgroup: dict[str, Counter[str]] = {}
    kernel = 0
    for one in _threads(proc, exclusive):
        if before.get(one.id) == one.ran:
            continue
        if one.is_kernel:
            kernel += 1
        elif not any(uid in one.cgroup or uid.replace("-", "_") in one.cgroup for uid in owners):
            by_cgroup.setdefault(one.cgroup, Counter())[one.name] += 1
    return ForeignThreads(by_cgroup, kernel)


class _Thread(NamedTuple):
    """A thread, with what tells whether it ran since it was seen before."""

    id: int
    name: str
    ran: tuple[str, ...]  # for how long
    is_kernel: bool
    cgroup: str


def _threads(proc: Path, cpus: CPUSet) -> Iterator[_Thread]:
    """Yield each thread of other processes that ran on one of the CPUs last."""
    wanted = {str(cpu) for cpu in cpus}
    for pid, _ in _processes(proc):
        for task in _tasks(proc / str(pid)):
            with suppress(OSError, IndexError):  # it ended
                if thread := _read_thread(task, wanted):
                    yield thread


def _tasks(process: Path) -> list[Path]:
    if process.name == str(os.getpid()):
        return []
    try:
        return list((process / "task").iterdir())
    except OSError:  # it ended
        return []


def _read_thread(task: Path, cpus: set[str]) -> _Thread | None:
    """Return a thread if it ran on one of the CPUs last; raise OSError or IndexError for one that ended."""
    named, _, told = (task / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
    fields = told.split()
    if fields[_PROCESSOR] not in cpus:
        return None
    return _Thread(
        id=int(task.name),
        name=named.partition("(")[2],
        ran=_ran(task, fields),
        is_kernel=bool(int(fields[_FLAGS]) & _KTHREAD),
        cgroup=_cgroup(task),
    )


def _ran(task: Path, fields: list[str]) -> tuple[str, ...]:
    """Return how long a thread ran: exactly, or in hundredths of a second where the kernel counts no better."""
    try:
        return ((task / "schedstat").read_text(encoding="ascii").split()[0],)
    except FileNotFoundError:
        return tuple(fields[_TIMES])


def _cgroup(task: Path) -> str:
    """Return the cgroup of a thread: that of cpuset on v1, else the one there is.

    Seen from a pod with a cgroup namespace of its own it begins with /.. for each step up, which tells nobody anything.
    """
    lines = [
        line.split(":", 2)
        for line in (task / "cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    ]
    found = {controllers: path for _, controllers, path in lines}
    path = next((path for names, path in found.items() if "cpuset" in names.split(",")), found.get("", "/"))
    return re.sub(r"^(/\.\.)+", "", path) or "/"
