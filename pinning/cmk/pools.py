"""Pools of a node in Intel CMK's format: pool, socket, CPU list, and the processes that hold it.

An exclusive pool has one list per core, the other two pools have one per socket. A `cmk isolate` process is listed by
its pid on the host, as in CMK. A container that holds cores without such a process is listed by its first process, or
by pid 1 if that is unknown, because an empty list means a free core.
"""

from __future__ import annotations

from collections import defaultdict
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from pinning.contract import EXCLUSIVE_NON_ISOLCPUS_CORES
from pinning.machine.cpuset import CPUSet, union

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pinning.machine.topology import Core, Topology
    from pinning.planning.ledger import Ledger

EXCLUSIVE: Final = "exclusive"
NON_ISOLCPUS: Final = "exclusive-non-isolcpus"
INFRA: Final = "infra"
SHARED: Final = "shared"
EXCLUSIVE_POOLS: Final = (EXCLUSIVE, NON_ISOLCPUS)

# Processes in one report: containers may have 1024 wrappers each, and the API server refuses a ConfigMap above 1 MiB.
MOST_TASKS: Final = 10_000
INIT: Final = 1  # pid 1 always exists, and a tool that mistakes it for a task cannot kill it
Lists = dict[int, dict[str, list[int]]]  # by socket: host pids by the CPU list that they hold


class Task(NamedTuple):
    """A process that called `cmk isolate`, and its CPUs."""

    pid: int  # pid on the host
    container: str  # namespace/pod/container
    pool: str
    cpus: CPUSet  # whole cores of an exclusive pool; of another pool all CPUs that it runs on


class ExitSource(StrEnum):
    """How it is known that a process exited without releasing its CPUs."""

    KERNEL = "kernel: SIGKILL"
    RUNTIME = "runtime: exit code 137"  # SIGKILL, or a program that exits with 137 itself
    NO_AGENT = "no agent ran when it exited"


class Reclaimed(NamedTuple):
    """A CPU list that a process held when it exited without releasing it."""

    pid: int  # pid on the host
    container: str  # namespace/pod/container
    pool: str
    cpus: str  # one CPU list, as it stands in the pools
    source: str = ""  # text of an `ExitSource`; empty: an earlier agent recorded the entry without it


class CMKNode(NamedTuple):
    """Input of CMK's view of a node."""

    topology: Topology
    universe: CPUSet
    exclusive: CPUSet  # CPUs from which claims may take cores
    non_isolcpus: CPUSet
    set_aside: CPUSet  # cores of the shared pool; empty: the pool is all CPUs without an owner
    shared: CPUSet  # CPUs without an owner
    ledger: Ledger
    tasks: tuple[Task, ...] = ()
    pids: Mapping[str, int] = {}  # host pid of each container's first process, by namespace/pod/container
    # The configuration divides the CPUs into the pools, so that each CPU is in one of them.
    is_static: bool = False


def cmk_pools(node: CMKNode) -> dict[str, Lists]:
    """Return CMK's four pools.

    A free core of a dynamic node is in `exclusive` and in `infra`, because it may become either. Static pools are
    disjoint: if no cores are set aside for `shared`, that pool has no list, and `infra` also lists the processes that
    asked for `shared`.
    """
    listed, common = _exclusive_cores(node)
    holders = _holders(node)
    infra, shared = node.shared, node.set_aside or node.shared
    infra_of: tuple[str, ...] = (INFRA,)
    if node.is_static:
        infra -= node.exclusive | node.non_isolcpus | node.set_aside
        shared = node.set_aside
        infra_of = (INFRA,) if shared else (INFRA, SHARED)
    return {
        EXCLUSIVE: _by_core(node, common, holders),
        NON_ISOLCPUS: _by_core(node, listed, holders),
        INFRA: _whole(node, infra, infra_of),
        SHARED: _whole(node, shared, (SHARED,)),
    }


def cpu_lists(pool: str, cpus: CPUSet, topology: Topology) -> tuple[str, ...]:
    """Return the CPU lists of a pool that contain these CPUs: one per core of an exclusive pool, else one per socket."""
    if pool in EXCLUSIVE_POOLS:
        cores = sorted(topology.cores_of(cpus), key=lambda core: (core.package, core.cpus.lowest()))
        return tuple(_joined(core.cpus & cpus) for core in cores)
    return tuple(filter(None, (_core_by_core(topology, cpus & on) for on in topology.packages.values())))


def cmk_yaml(pools: Mapping[str, Lists]) -> str:
    """Return the pools in the YAML of CMK's tools: sockets as numbers, lists comma-joined and quoted, tasks quoted.

    A comment says how many processes are left out.
    """
    kept, left_out = within_limit(pools)
    lines = [f"# {left_out} processes are left out: at most {MOST_TASKS} are listed"] if left_out else []
    for pool, sockets in kept.items():
        lines.append(f"{pool}:")
        for socket, lists in sockets.items():
            lines.append(f"  {socket}:{'' if lists else ' {}'}")
            lines += [
                f"    '{cpus}': [{', '.join(map(repr, map(str, tasks)))}]" for cpus, tasks in lists.items()
            ]
    return "\n".join(lines) + "\n"


def within_limit(pools: Mapping[str, Lists]) -> tuple[Mapping[str, Lists], int]:
    """Return the pools with at most MOST_TASKS processes, and the number of those left out.

    Each list is cut to the same maximum length, of at least one process, because an empty list means a free core.
    """
    counts = [
        len(tasks) for sockets in pools.values() for lists in sockets.values() for tasks in lists.values()
    ]
    if sum(counts) <= MOST_TASKS:
        return pools, 0
    share = max(MOST_TASKS // sum(count > 0 for count in counts), 1)
    kept = {
        pool: {
            socket: {cpus: tasks[:share] for cpus, tasks in lists.items()}
            for socket, lists in sockets.items()
        }
        for pool, sockets in pools.items()
    }
    return kept, sum(max(count - share, 0) for count in counts)


def _exclusive_cores(node: CMKNode) -> tuple[list[Core], list[Core]]:
    """Return the cores of `exclusive-non-isolcpus`, and those of `exclusive`; no core is in both.

    Without static pools, a core is in `exclusive-non-isolcpus` only while a claim of that pool's resource holds it.
    """
    cores = node.topology.cores_of((node.exclusive | node.non_isolcpus) & node.universe)
    held = union(
        assignment.footprint
        for assignment in node.ledger
        if assignment.claim.resource == EXCLUSIVE_NON_ISOLCPUS_CORES
    )
    listed = node.non_isolcpus if node.non_isolcpus.isdisjoint(node.exclusive) else held
    return [core for core in cores if core.cpus & listed], [core for core in cores if not core.cpus & listed]


def _by_core(node: CMKNode, cores: Iterable[Core], holders: Mapping[int, list[int]]) -> Lists:
    lists: Lists = {package: {} for package in node.topology.packages}
    for core in cores:
        lists[core.package][_joined(core.cpus)] = holders.get(core.id, [])
    return lists


def _holders(node: CMKNode) -> Mapping[int, list[int]]:
    """Return the processes that hold CPUs of each core, by core id."""
    holders: defaultdict[int, set[int]] = defaultdict(set)
    tasks: defaultdict[str, list[Task]] = defaultdict(list)
    for task in node.tasks:
        if task.pool in EXCLUSIVE_POOLS:
            tasks[task.container].append(task)
    for assignment in node.ledger:
        if assignment.is_exclusive:
            own = tasks.get(assignment.name, [])
            first = node.pids.get(assignment.name) or INIT
            for core in {node.topology.core_of(cpu).id for cpu in assignment.footprint}:
                holders[core].update(_on(node.topology.siblings(core), own, EXCLUSIVE_POOLS) or [first])
    return {core: sorted(found) for core, found in holders.items()}


def _on(cpus: CPUSet, tasks: Iterable[Task], pools: Iterable[str]) -> list[int]:
    return sorted(task.pid for task in tasks if task.pool in pools and task.cpus & cpus)


def _whole(node: CMKNode, cpus: CPUSet, asked: Iterable[str]) -> Lists:
    """Return one list per socket, core by core, as in CMK's pools that are not exclusive."""
    lists: Lists = {package: {} for package in node.topology.packages}
    for package, members in node.topology.packages.items():
        if inside := members & cpus:
            lists[package][_core_by_core(node.topology, inside)] = _on(inside, node.tasks, asked)
    return lists


def _core_by_core(topology: Topology, cpus: CPUSet) -> str:
    return ",".join(_joined(core.cpus & cpus) for core in topology.cores_of(cpus))


def _joined(cpus: CPUSet) -> str:
    return ",".join(map(str, cpus))
