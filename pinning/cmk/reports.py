"""Reports of `cmk describe`, `cmk node-report` and `cmk reconcile`, in Intel CMK's shapes.

Keys are sorted by name as in CMK; lists, sockets, cores and CPUs are sorted by number.
"""

from __future__ import annotations

import json
from itertools import combinations
from typing import TYPE_CHECKING, Any

from pinning.cmk.pools import EXCLUSIVE_POOLS, within_limit
from pinning.machine.cpuset import CPUSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pinning.cmk.pools import Lists, Reclaimed
    from pinning.machine.topology import Core, Topology

Report = dict[str, Any]


def report_text(report: Report) -> str:
    """Return a report as CMK printed it: JSON indented by two spaces."""
    return json.dumps(report, indent=2, ensure_ascii=False) + "\n"


def describe(pools: Mapping[str, Lists]) -> Report:
    """Return the pools with the CPU lists of all sockets, and the processes that hold them.

    `dropped` is the number of processes that are left out; CMK's report was unbounded.
    """
    kept, left_out = within_limit(pools)
    shown = {name: _pool(name, sockets) for name, sockets in kept.items()}
    return ({"dropped": left_out} if left_out else {}) | {"pools": shown}


def node_report(pools: Mapping[str, Lists], topology: Topology) -> Report:
    """Return the pools, the machine, and overlaps of CPU lists of which an exclusive one is held."""
    errors = list(_overlaps(pools))
    return {
        "checks": {"configDirectory": {"errors": errors, "ok": not errors}},
        "description": describe(pools),
        "topology": {"sockets": {str(socket): _socket(socket, topology) for socket in topology.packages}},
    }


def reconcile_report(reclaimed: Iterable[Reclaimed], dropped: int = 0) -> Report:
    """Return the CPU lists that were freed because their processes exited without releasing them.

    `dropped` is the number of older entries that were discarded; CMK's report was unbounded. `source` says how the
    exit is known; CMK did not report it.
    """
    lists = [
        {"cpus": entry.cpus, "pid": entry.pid, "pool": entry.pool}
        | ({"source": entry.source} if entry.source else {})
        for entry in sorted(reclaimed, key=lambda entry: entry.pid)
    ]
    return {"reclaimedCpuLists": lists} | ({"dropped": dropped} if dropped else {})


def _pool(name: str, sockets: Lists) -> Report:
    lists = {
        cpus: {"cpus": cpus, "tasks": tasks}
        for _, found in sorted(sockets.items())
        for cpus, tasks in found.items()
    }
    return {"cpuLists": lists, "exclusive": name in EXCLUSIVE_POOLS, "name": name}


def _socket(socket: int, topology: Topology) -> Report:
    cores = topology.cores_of(topology.packages[socket] & topology.online)
    return {"cores": [_core(core, topology) for core in cores], "id": socket}


def _core(core: Core, topology: Topology) -> Report:
    cpus = core.cpus & topology.online
    return {"cpus": [{"id": cpu, "isolated": cpu in topology.isolated} for cpu in cpus], "id": core.id}


def _overlaps(pools: Mapping[str, Lists]) -> Iterator[str]:
    """Yield a text for each overlap of two CPU lists if one of them is exclusive and held; others may overlap."""
    lists = [
        (name, cpus, CPUSet.parse(cpus), name in EXCLUSIVE_POOLS and bool(tasks))
        for name, sockets in pools.items()
        for found in sockets.values()
        for cpus, tasks in found.items()
    ]
    for (pool, cpus, one, held), (other_pool, other_cpus, other, other_held) in combinations(lists, 2):
        both = one & other
        if both and (held or other_held):
            where = f"{pool}:{cpus} and {other_pool}:{other_cpus}"
            yield f"CPU list overlap detected in {where} (in both: {', '.join(map(str, both))})"
