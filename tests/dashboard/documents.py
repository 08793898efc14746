"""Nodes, pods and events with the annotations that agents write."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from pinning.contract import STATUS_CPUS, STATUS_POOLS, STATUS_TOPOLOGY
from pinning.machine.cpuset import EMPTY, CPUSet, union
from pinning.machine.topology import CPUFacts, Topology, assemble

TIME = "2026-11-22T10:00:00Z"
NOW = "2026-11-22T12:00:00Z"
Document = dict[str, Any]


@cache
def grid(sockets: int, nodes: int, caches: int, cores: int, threads: int = 2) -> Topology:
    """Return a machine; each number counts per unit of the level before it."""
    count = sockets * nodes * caches * cores
    facts = [
        CPUFacts(
            cpu=thread * count + core,
            core=core,
            package=core // (nodes * caches * cores),
            numa_node=core // (caches * cores),
            uncore_cache=core // cores,
        )
        for thread in range(threads)
        for core in range(count)
    ]
    return assemble(facts, CPUSet(range(count * threads)))


def owner(cpus: str, policy: str = "exclusive", smt: str = "prefer", idle: str = "") -> Document:
    """Return an owner as the node's annotation has it."""
    return {"policy": policy, "cpus": cpus, "smtPolicy": smt} | ({"idle": idle} if idle else {})


def pools(
    topology: Topology, owners: dict[str, Document] | None = None, reserved: str = "", **more: Any
) -> Document:
    """Return the pools of a node: CPUs without an owner are shared, and free where they are not reserved."""
    owners = owners or {}
    kept = CPUSet.parse(reserved) or topology.cores[0].cpus
    own = union(
        CPUSet.parse(it["cpus"]) | CPUSet.parse(it.get("idle", "")) if it["policy"] == "exclusive" else EMPTY
        for it in owners.values()
    )
    aside = CPUSet.parse(more.pop("setAside", ""))
    isolated = topology.isolated
    shared = topology.online - own - aside - isolated
    return {
        "version": 1,
        "observes": False,
        "universe": str(topology.online),
        "reserved": str(kept),
        "shared": str(shared),
        "setAside": str(aside),
        "isolated": str(isolated),
        "free": str(shared - kept),
        "owners": owners,
        "hidden": {"idleCPUs": 0, "sidecars": {"containers": 0, "cpu": "0m", "memory": "0"}},
        **more,
    }


def node(name: str, topology: Topology | None = None, sets: Document | None = None) -> Document:
    """Return a node; without a topology it has no agent."""
    annotations = {}
    if topology is not None:
        annotations[STATUS_TOPOLOGY] = json.dumps(topology.to_dict(), separators=(",", ":"))
        annotations[STATUS_POOLS] = json.dumps(sets or pools(topology), separators=(",", ":"))
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "annotations": annotations}}


def container(cpus: str, smt: str = "prefer", idle: str = "", **more: Any) -> Document:
    """Return the status of a container that runs on its CPUs."""
    return {
        "policy": "exclusive",
        "smtPolicy": smt,
        "numaPolicy": "packed",
        "cpus": cpus,
        "idle": idle,
        "numaNodes": [0],
        "pinned": True,
        "applied": {"cpus": cpus, "time": TIME, "path": "nri", "windowSeconds": 0.0},
        **more,
    }


def refused(message: str = "wanted 64 wholly free cores, found 2: ask for at most 2") -> Document:
    """Return the status of a container that was refused CPUs and must not start without them."""
    return {"pinned": False, "refusal": {"reason": "NotEnoughCPUs", "message": message, "blocksStart": True}}


def pod(
    name: str,
    containers: dict[str, Document] | None = None,
    namespace: str = "default",
    vm: Document | None = None,
    annotations: dict[str, str] | None = None,
) -> Document:
    """Return a pod with its annotation."""
    status: Document = {"version": 1, "containers": containers or {}} | ({"vm": vm} if vm else {})
    own = {STATUS_CPUS: json.dumps(status)} if containers or vm else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "annotations": {**own, **(annotations or {})}},
        "spec": {"containers": [{"name": "main", "image": "x"}]},
    }


def event(
    about: str,
    reason: str,
    message: str,
    *,
    on: str = "node-1",
    kind: str = "Normal",
    namespace: str = "default",
) -> Document:
    """Return an event of an agent about a pod."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{about}.{reason.lower()}", "namespace": namespace},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": about},
        "reason": reason,
        "message": message,
        "type": kind,
        "source": {"component": "corepin", "host": on},
        "firstTimestamp": TIME,
        "lastTimestamp": TIME,
        "count": 1,
    }
