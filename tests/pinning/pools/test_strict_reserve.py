"""A strict reserve under random events: no container of another namespace ever runs on the reserved CPUs.

Containers of system namespaces run there alone, from their creation on. `COREPIN_SEQUENCES=46` runs 46 sequences on each
machine, more than 1,000 on those of the test data.
"""

from __future__ import annotations

import os
from random import Random
from typing import Any

import pytest

from pinning.machine.cpuset import CPUSet, union
from pinning.planning.node_config import NodeConfig
from pinning.planning.observed import Owner, SeenContainer
from pinning.planning.start_table import Start, start_table
from tests.machines import NAMES
from tests.pinning.budgets import put
from tests.pinning.random_pods import TOPOLOGIES, machine_called, seeded, some_pod
from tests.pinning.world import World

SEQUENCES = int(os.environ.get("COREPIN_SEQUENCES", "8"))  # per small machine
OF_CAPTURED = int(os.environ.get("COREPIN_SEQUENCES", "1"))  # per machine of the test data
EVENTS = 20
SYSTEM = "kube-system"


class Reserve:
    """A node with a strict reserve, whose containers start where the agent's table says."""

    def __init__(self, machine: str, random: Random) -> None:
        topology = machine_called(machine)
        self.random, self.count = random, 0
        self.node = World(topology, NodeConfig(strict_reserved=True, system_namespaces=(SYSTEM,)))
        self.most = max(3, len(topology.online) // 6)

    @property
    def reserved(self) -> CPUSet:
        """The reserved CPUs."""
        return self.node.sets.reserved

    def next(self) -> None:
        """Do one event, and a pass whose writes are checked one by one."""
        uids = list(self.node.documents)
        event = self.random.choice(["add", "add", "add", "edit", "end", "remove", "restart"])
        if event == "add" or not uids:
            self.count += 1
            self.create(f"u{self.count}", self.random.choice([SYSTEM, "test", "test"]))
        elif event == "edit":
            uid = self.random.choice(uids)
            put(self.node, self.document(uid, self.node.documents[uid]["metadata"]["namespace"]))
        elif event == "restart":
            self.start(self.random.choice(uids))
        elif event == "end" and self.node.live():
            self.node.stop(self.random.choice(self.node.live()).id)
        elif event == "remove":
            uid = self.random.choice(uids)
            del self.node.documents[uid]
            self.end(uid)
        self.act()

    def document(self, uid: str, namespace: str) -> dict[str, Any]:
        """Return a pod with a budget, or one without any annotation."""
        document = some_pod(uid, self.random, most=self.most)
        if self.random.random() < 0.4:
            document["metadata"]["annotations"] = {}
        document["metadata"]["namespace"] = namespace
        return document

    def create(self, uid: str, namespace: str) -> None:
        """Create a pod; half of them are started before the agent has seen them in the API."""
        put(self.node, self.document(uid, namespace))
        if self.random.random() < 0.5:
            self.node.plan()
        self.start(uid)

    def start(self, uid: str) -> None:
        """Start the lasting containers of a pod on the CPUs that the agent answers the runtime with."""
        self.end(uid)
        document = self.node.documents[uid]
        namespace = document["metadata"]["namespace"]
        planned = self.node.plan()
        table = start_table(planned, self.node.observe()).waiting_for(planned.actions)
        for listed in [
            *(it for it in document["spec"]["initContainers"] if it.get("restartPolicy")),
            *document["spec"]["containers"],
        ]:
            start = table.start(Owner(uid, listed["name"]), claims=True, namespace=namespace)
            if isinstance(start, Start):
                if namespace == SYSTEM and not start.own:
                    of_pod = union(part.cpus for part in planned.ledger.of_pod(uid))
                    assert start.cpus <= self.reserved | of_pod
                self.node.start(uid, listed["name"], cpus=start.cpus)
        self.check()

    def end(self, uid: str) -> None:
        """End the containers of a pod."""
        for seen in self.node.live():
            if seen.owner.pod_uid == uid:
                self.node.stop(seen.id)

    def act(self) -> None:
        """Plan, and write in an order that the plan allows."""
        planned = self.node.plan()
        done: set[int] = set()
        while len(done) < len(planned.actions):
            ready = [
                at for at, it in enumerate(planned.actions) if at not in done and set(it.waits_for) <= done
            ]
            at = self.random.choice(ready)
            self.node.write(planned.actions[at])
            done.add(at)
            self.check()
        for seen in self.node.live():
            if self.is_system(seen) and not planned.run_sets.part(seen.owner):
                assert seen.cpus == self.reserved

    def check(self) -> None:
        """Check that no container of another namespace runs on the reserve."""
        for seen in self.node.live():
            if not self.is_system(seen):
                assert seen.cpus.isdisjoint(self.reserved)

    @staticmethod
    def is_system(seen: SeenContainer) -> bool:
        """Return whether a container is of a system namespace."""
        return seen.namespace == SYSTEM


@pytest.mark.parametrize("machine", [*TOPOLOGIES, *NAMES])
def test_no_other_container_ever_runs_on_a_strict_reserve(machine: str) -> None:
    """Births, restarts, edits, ends: others are off the reserve from birth on, and at every write."""
    for seed in range(OF_CAPTURED if machine in NAMES else SEQUENCES):
        reserve = Reserve(machine, seeded(f"reserve {machine} {seed}"))
        if reserve.node.topology.online <= reserve.reserved:  # a machine of one core
            continue
        for _ in range(EVENTS):
            reserve.next()
