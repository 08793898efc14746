"""Upgrade from an agent that knew no pools, downgrade, and upgrade again: exclusive CPUs stay where they are.

`tests/data/checkpoints/before-pod-pools.json` has a random node for each machine of the test data, with the checkpoint
and the cpusets that the code of the older agent (commit ef6be22) made of it. `COREPIN_SEQUENCES=46` plans 46 nodes of
each machine besides, more than 1,000 on those of the test data, whose older agent is imitated.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pinning.contract import ReserveSource
from pinning.machine.cpuset import CPUSet, union
from pinning.machine.topology import Topology
from pinning.planning.ledger import Ledger
from pinning.planning.ledger_json import ledger_from_dict, ledger_to_dict
from pinning.planning.node_config import NodeConfig
from pinning.planning.node_sets import lowest_core
from pinning.planning.observed import Owner
from pinning.pods.resources import Role
from tests.machines import NAMES
from tests.pinning.budgets import put
from tests.pinning.random_pods import TOPOLOGIES, machine_called, seeded, some_pod
from tests.pinning.world import World

NODES = json.loads(Path("tests/data/checkpoints/before-pod-pools.json").read_text())
RANDOM_NODES = int(os.environ.get("COREPIN_SEQUENCES", "8"))  # per small machine
OF_CAPTURED = int(os.environ.get("COREPIN_SEQUENCES", "1"))  # per machine of the test data
Held = dict[Owner, CPUSet]


def defaults(topology: Topology) -> NodeConfig:
    """Return the configuration of an upgraded agent: the defaults, and the reserve of the older agent."""
    reserved = lowest_core(topology, topology.cpus)
    return NodeConfig(reserved=reserved, reserve_source=ReserveSource.KEPT)


def older_defaults(topology: Topology) -> NodeConfig:
    """Return the defaults of the older agent."""
    return replace(defaults(topology), align_uncore=False)


def names_of(document: dict[str, Any]) -> list[str]:
    """Return the containers of a pod that run as long as it does."""
    inits = document["spec"].get("initContainers", ())
    lasting = (it for it in inits if it.get("restartPolicy"))
    return [it["name"] for it in (*lasting, *document["spec"]["containers"])]


def held(ledger: Ledger) -> Held:
    """Return the CPUs of each container that owns some."""
    return {it.owner: it.footprint for it in ledger}


def inits(node: World, uid: str) -> list[CPUSet]:
    """Return the CPUs of a pod's ordinary init containers, which share them with what starts later."""
    return [it.footprint for it in node.ledger.pods.get(uid, ()) if it.claim.role is Role.INIT]


def settled(node: World, owned: Held, *, of_pools: bool) -> None:
    """Run the agent, and check that only containers of the shared set moved: into their pools, or within what is left.

    An agent without pools gives the CPUs of pools to all of them.
    """
    before = {seen.owner: seen.cpus for seen in node.live()}
    shared = node.sets.shared(node.ledger)
    node.run_all()
    assert {owner: cpus for owner, cpus in held(node.ledger).items() if owner in owned} == owned
    for seen in node.live():
        pool = node.ledger.pools.get(seen.owner.pod_uid)
        holder = node.ledger.of(seen.owner)
        if seen.owner in owned or holder:
            assert holder
            assert seen.cpus == holder.cpus
        elif of_pools and pool and pool.cpus:
            assert seen.cpus == pool.cpus
            assert seen.cpus <= shared | union(inits(node, seen.owner.pod_uid))
        elif of_pools:
            assert seen.cpus == node.sets.shared(node.ledger)
            assert seen.cpus <= before[seen.owner]


def move_back_and_forth(node: World, older: NodeConfig, newer: NodeConfig) -> int:
    """Upgrade, downgrade and upgrade again; return how many pools the pods have in the end."""
    owned = held(node.ledger)
    for _ in range(2):
        node.config = newer
        node.ledger = ledger_from_dict(ledger_to_dict(node.ledger))
        settled(node, owned, of_pools=True)
        saved = ledger_to_dict(node.ledger)
        pools = len(node.ledger.pools)
        documents = node.documents
        node.config = older
        node.documents = {uid: without_budget(it) for uid, it in documents.items()}
        node.ledger = ledger_from_dict({key: saved[key] for key in ("version", "assignments")})
        settled(node, owned, of_pools=False)
        node.documents = documents
    return pools


def without_budget(document: dict[str, Any]) -> dict[str, Any]:
    """Return a pod as an agent reads it that does not look at pod-level resources."""
    spec = {key: value for key, value in document["spec"].items() if key != "resources"}
    return {**document, "spec": spec}


@pytest.mark.parametrize("saved", NODES, ids=lambda it: it["machine"])
def test_what_an_older_agent_gave_out_stays(saved: dict[str, Any]) -> None:
    """The upgrade reads the older agent's own checkpoint, and moves nothing that it assigned."""
    topology = machine_called(saved["machine"])
    node = World(topology, defaults(topology), ledger_from_dict(saved["checkpoint"]))
    for document in saved["pods"]:
        put(node, document)
        for name in names_of(document):
            cpus = CPUSet.parse(saved["cpus"][f"{document['metadata']['uid']}/{name}"])
            node.start(document["metadata"]["uid"], name, cpus=cpus)
    move_back_and_forth(node, older_defaults(topology), defaults(topology))


@pytest.mark.parametrize("machine", [*TOPOLOGIES, *NAMES])
def test_upgrade_downgrade_and_upgrade_move_no_exclusive_cpu(machine: str) -> None:
    """On random nodes only pools come and go, with every new default."""
    topology = machine_called(machine)
    pools = 0
    for seed in range(OF_CAPTURED if machine in NAMES else RANDOM_NODES):
        random = seeded(f"upgrade {machine} {seed}")
        node = World(topology, older_defaults(topology))
        documents = [
            some_pod(f"u{at}", random, is_plain=True, most=max(3, len(topology.online) // 6))
            for at in range(4)
        ]
        for at, document in enumerate(documents):
            document["metadata"]["creationTimestamp"] = f"2026-01-01T00:00:{at:02}Z"
            put(node, without_budget(document), *names_of(document))
        node.run_all()
        node.documents = {document["metadata"]["uid"]: document for document in documents}
        pools += move_back_and_forth(node, older_defaults(topology), defaults(topology))
    assert pools or len(topology.online) < 4
