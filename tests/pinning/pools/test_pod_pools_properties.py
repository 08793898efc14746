"""Whatever happens to pods with budgets, in whatever order: the rules of docs/architecture.md hold.

`COREPIN_SEQUENCES=455` runs 455 random sequences on each machine, together 10,000 on those of the test data.
"""

from __future__ import annotations

import os
from itertools import combinations
from random import Random
from typing import Any

import pytest

from pinning.machine.cpuset import CPUSet, union
from pinning.machine.topology import Topology
from pinning.planning.actions import Action
from pinning.planning.invariants import problems
from pinning.planning.ledger import Ledger
from pinning.planning.ledger_json import ledger_from_dict, ledger_to_dict
from pinning.planning.node_config import NodeConfig
from pinning.planning.observed import SeenContainer
from pinning.planning.plan import Plan, plan
from pinning.planning.pod_pools import part_of
from pinning.pods.resources import Role
from tests.machines import NAMES
from tests.pinning.budgets import pool, put, taken
from tests.pinning.random_pods import TOPOLOGIES, machine_called, seeded, some_pod
from tests.pinning.world import World

SEQUENCES = int(os.environ.get("COREPIN_SEQUENCES", "40"))  # per small machine
OF_CAPTURED = int(os.environ.get("COREPIN_SEQUENCES", "2"))  # per machine of the test data
EVENTS = 25


def resized(document: dict[str, Any], random: Random, most: int) -> dict[str, Any]:
    """Return the pod with another budget, other slices or other annotations."""
    uid = document["metadata"]["uid"]
    other = some_pod(uid, random, most=most)
    names = [it["name"] for it in document["spec"]["containers"]]
    spares = [it.get("resources") for it in other["spec"]["containers"]]
    containers = [
        {"name": name, **({"resources": spares[at]} if at < len(spares) and spares[at] else {})}
        for at, name in enumerate(names)
    ]
    new = {
        **document,
        "spec": {**document["spec"], "containers": containers, "resources": other["spec"]["resources"]},
    }
    if random.random() < 0.4:
        annotations = other["metadata"]["annotations"]
        annotations |= random.choice(
            [
                {},
                {"cpu-manager.corepin.io/container.c0": "none"},
                {"cpu-manager.corepin.io/container.c0": "share"},
                {"cpu-manager.corepin.io/pod": "none"},
            ]
        )
        new["metadata"] = {**document["metadata"], "annotations": annotations}
    return new


class Story:
    """A node with a sequence of events, each followed by a pass whose writes are done one by one."""

    def __init__(self, topology: Topology, random: Random) -> None:
        self.random, self.count = random, 0
        self.world = World(topology, NodeConfig(strict_reserved=random.random() < 0.2))
        self.all_cpus = topology.online
        self.most = max(7, len(topology.online) // 6)  # of a budget, so that pods compete on each machine

    def next(self) -> None:
        """Do one event, and a pass of the agent."""
        uids = list(self.world.documents)
        event = self.random.choice(
            ["add", "add", "edit", "edit", "start", "stop", "remove", "flip", "restart", "old agent", "kill"]
        )
        if event == "add" or not uids:
            self.count += 1
            document = some_pod(f"u{self.count}", self.random, most=self.most)
            document["metadata"]["creationTimestamp"] = f"2026-01-01T00:00:{self.count:02}Z"
            put(self.world, document)
        elif event == "edit":
            document = self.world.documents[self.random.choice(uids)]
            put(self.world, resized(document, self.random, self.most))
        elif event == "start":
            self.start(self.random.choice(uids))
        elif event == "remove":
            self.remove(self.random.choice(uids))
        elif event == "kill":
            put(self.world, resized(self.world.documents[self.random.choice(uids)], self.random, self.most))
            self.act(is_killed=True)
        else:
            self.to_machine_or_agent(event)
        self.act()

    def start(self, uid: str) -> None:
        """Start the containers of a pod up to one of them, as the kubelet does in their order."""
        spec = self.world.documents[uid]["spec"]
        self.world.renew(uid)
        inits = spec["initContainers"]
        if inits and self.random.random() < 0.5:
            for at in range(self.random.randint(1, len(inits))):
                if inits[at].get("restartPolicy") or at == len(inits) - 1:
                    self.world.start(uid, inits[at]["name"])
            return
        for listed in [*(it for it in inits if it.get("restartPolicy")), *spec["containers"]]:
            self.world.start(uid, listed["name"])

    def remove(self, uid: str) -> None:
        """Delete a pod with its containers."""
        del self.world.documents[uid]
        for seen in self.world.live():
            if seen.owner.pod_uid == uid:
                self.world.stop(seen.id)

    def to_machine_or_agent(self, event: str) -> None:
        """Take CPUs offline or back, end a container, or start the agent again."""
        live = self.world.live()
        if event == "stop" and live:
            self.world.stop(self.random.choice(live).id)
        elif event == "flip":
            most = min(2, len(self.all_cpus) - 1)
            count = self.random.choice([0, 0, *range(1, most + 1)])
            off = CPUSet(self.random.sample(sorted(self.all_cpus), count))
            self.world.set_online(self.all_cpus - off)
        elif event == "restart":
            self.world.ledger = ledger_from_dict(ledger_to_dict(self.world.ledger))
        elif event == "old agent":
            saved = ledger_to_dict(self.world.ledger)
            self.world.ledger = ledger_from_dict({key: saved[key] for key in ("version", "assignments")})

    def act(self, *, is_killed: bool = False) -> None:
        """Plan, check, and write in any order that the plan allows; a killed agent does a part and starts again."""
        before = self.world.ledger
        planned = self.world.plan()
        self.check(planned)
        done: set[int] = set()
        most = self.random.randint(0, len(planned.actions)) if is_killed else len(planned.actions)
        while len(done) < most:
            ready = [
                at for at, it in enumerate(planned.actions) if at not in done and set(it.waits_for) <= done
            ]
            at = self.random.choice(ready)
            self.check_write(planned.actions[at], planned, before)
            self.world.write(planned.actions[at])
            done.add(at)
        if is_killed:
            self.world.ledger = ledger_from_dict(ledger_to_dict(self.world.ledger))
            return
        again = self.world.plan()
        assert not again.actions
        assert (again.ledger, again.refusals) == (planned.ledger, planned.refusals)
        for seen in self.world.live():
            assert seen.cpus == planned.run_sets.of(seen.owner).cpus
        self.check_apart(planned)

    def check_apart(self, planned: Plan) -> None:
        """Check that after a pass only containers that may share CPUs run on the same ones."""
        for one, two in combinations(self.world.live(), 2):
            if planned.run_sets.part(one.owner) or planned.run_sets.part(two.owner):
                both = (one.cpus & two.cpus) - planned.ledger.share
                assert not both or self._share(one, two, planned.ledger)

    def check(self, planned: Plan) -> None:
        """Check the ledger: each pod has its budget or a refusal, and a second pass changes nothing."""
        world, ledger = self.world, planned.ledger
        assert problems(ledger, world.sets) == ()
        again = plan(world.observe(), ledger, world.config)
        assert (again.ledger, again.refusals) == (ledger, planned.refusals)
        refused = {refusal.owner.pod_uid for refusal in planned.refusals}
        for pod in world.observe().pods:
            if pod.budget:
                assert taken(world, pod.uid) == pod.budget.cpus or pod.uid in refused
            others = [ledger.pools[uid] for uid in ledger.pools if uid != pod.uid]
            assert all(pool(world, pod.uid).isdisjoint(other.footprint) for other in others)
        assert planned.shared.isdisjoint(ledger.exclusive)

    def check_write(self, action: Action, planned: Plan, before: Ledger) -> None:
        """Check that a write puts no container beside another pod's CPUs, or an init container beside its sidecars."""
        mover = next(seen for seen in self.world.live() if seen.id == action.container_id)
        gains = action.cpus - mover.cpus
        own = planned.run_sets.part(mover.owner)
        for other in self.world.live():
            if other.id == mover.id or self._share(mover, other, planned.ledger):
                continue
            theirs = planned.run_sets.part(other.owner)
            left = part_of(before, other.owner)
            if theirs:
                was = left.footprint if left else theirs.footprint
                assert gains.isdisjoint((other.cpus & (theirs.footprint | was)) - planned.ledger.share)
            if own and action.kind == "grant":
                assert (own.cpus - planned.ledger.share).isdisjoint(other.cpus)

    @staticmethod
    def _share(mover: SeenContainer, other: SeenContainer, ledger: Ledger) -> bool:
        """Return whether two containers of a pod may share CPUs: both without slices, or never at the same time.

        An init container may take all CPUs of its pod; a sidecar without a slice stays beside it then.
        """
        uid = mover.owner.pod_uid
        if uid != other.owner.pod_uid:
            return False
        one, two = ledger.of(mover.owner), ledger.of(other.owner)
        if one and two:
            return not one.meets(two)
        if not one and not two:
            return True
        held = one or two
        user = other if one else mover
        found = ledger.pools.get(uid)
        purpose = found.claim.pool if found else None
        placed = purpose.user(user.owner.container) if purpose else None
        if not held or not placed:
            return False
        first, _ = sorted([(held.start_index, held.claim.role), (placed.start_index, placed.role)])
        lasting = (part for part in ledger.of_pod(uid) if part.is_pool or part.is_lasting_slice)
        has_all = held.claim.role is Role.INIT and union(part.cpus for part in lasting) <= held.footprint
        return first[1] is Role.INIT or has_all


@pytest.mark.no_cover  # random, as what Hypothesis draws
@pytest.mark.parametrize("machine", [*TOPOLOGIES, *NAMES])
def test_any_sequence_of_events_keeps_every_rule(machine: str) -> None:
    """Births, ends, edits, resizes, hotplug, restarts, kills, downgrades: pools are disjoint, budgets whole or refused."""
    topology = machine_called(machine)
    for seed in range(OF_CAPTURED if machine in NAMES else SEQUENCES):
        story = Story(topology, seeded(f"{machine} {seed}"))
        for _ in range(EVENTS):
            story.next()
