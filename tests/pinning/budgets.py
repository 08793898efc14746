"""Pods with a budget for table tests and property tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinning.machine.cpuset import EMPTY, CPUSet, union
from pinning.planning.observed import Owner
from pinning.planning.plan import Plan
from tests.pinning.world import World, world

EXCLUSIVE = {"cpu-manager.corepin.io/pod": "exclusive"}
SIDECAR = "Always"  # restart policy of an init container


def budgeted(
    uid: str,
    budget: str | int | None,
    containers: Mapping[str, str | int | None],
    inits: Mapping[str, tuple[str | int | None, str]] | None = None,
    annotations: dict[str, str] | None = None,
    created: int = 0,
    **spec: Any,
) -> dict[str, Any]:
    """Return a pod of the API: CPU limits of containers by name, None: no amounts; of init containers with policy."""

    def listed(name: str, cpu: str | int | None, **more: Any) -> dict[str, Any]:
        resources = {} if cpu is None else {"resources": {"limits": {"cpu": str(cpu)}}}
        return {"name": name, **resources, **more}

    limits = (
        {}
        if budget is None
        else {"resources": {"limits": {"cpu": str(budget)}, "requests": {"cpu": str(budget)}}}
    )
    return {
        "metadata": {
            "name": f"pod-{uid}",
            "uid": uid,
            "namespace": "test",
            "creationTimestamp": f"2026-01-01T00:{created // 60:02}:{created % 60:02}Z",
            "annotations": dict(EXCLUSIVE if annotations is None else annotations),
            "labels": {},
        },
        "spec": {
            "containers": [listed(name, cpu) for name, cpu in containers.items()],
            "initContainers": [
                listed(name, cpu, **({"restartPolicy": policy} if policy else {}))
                for name, (cpu, policy) in (inits or {}).items()
            ],
            **limits,
            **spec,
        },
    }


def put(node: World, document: dict[str, Any], *running: str) -> None:
    """Create or replace a pod in the API, and start containers of it that do not run."""
    uid = document["metadata"]["uid"]
    node.documents[uid] = document
    live = {seen.owner for seen in node.live()}
    for name in running:
        if Owner(uid, name) not in live:
            node.start(uid, name)


def updated(node: World, document: dict[str, Any], *running: str) -> Plan:
    """Put a pod and plan."""
    put(node, document, *running)
    return node.run_all()


def started(document: dict[str, Any], *names: str, node: World | None = None) -> World:
    """Return a node on which a pod runs with these containers."""
    node = node or world()
    updated(node, document, *names)
    return node


def pool(node: World, uid: str = "a") -> CPUSet:
    """Return the CPUs of a pod's pool."""
    held = node.ledger.pools.get(uid)
    return held.cpus if held else EMPTY


def runs(node: World, name: str, uid: str = "a") -> CPUSet:
    """Return the CPUs of a container in the kernel."""
    return union(seen.cpus for seen in node.live() if seen.owner == Owner(uid, name))


def taken(node: World, uid: str = "a") -> int:
    """Return the number of CPUs of a pod's slices and pool."""
    slices = (held for held in node.ledger.pods.get(uid, ()) if held.is_lasting_slice)
    return len(pool(node, uid)) + sum(len(held.cpus) for held in slices)
