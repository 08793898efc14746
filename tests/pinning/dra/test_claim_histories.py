"""Random histories of a node with claims, against a small scheduler that allocates from what is published."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import pytest

from pinning.dra.claims import ClaimPart, DeviceClaim
from pinning.dra.groups import device_groups, published_cpus
from pinning.machine.cpuset import CPUSet, union
from pinning.planning.claim_grants import claimable, offer_of
from pinning.planning.invariants import problems
from pinning.planning.ledger_json import ledger_from_dict, ledger_to_dict
from pinning.planning.node_config import NodeConfig
from pinning.planning.plan import plan
from tests.pinning.dra.claiming import ClaimWorld, uid_of
from tests.pinning.nodes import smt_machine
from tests.pinning.world import Wish

HISTORIES, PER_CASE, STEPS = 1000, 50, 12
CORES, SOCKETS = 8, 2
CLASSIC = (
    Wish("1", policy="exclusive"),
    Wish("2", policy="exclusive"),
    Wish("3", smt="require"),
    Wish("2", smt="isolate"),
    Wish("2", policy="share"),
)


@dataclass
class Scheduler:
    """Allocates claims from the slices that it has seen last, first fit, rounded up to the step."""

    seen: dict[str, int] = field(default_factory=dict)  # published CPUs by device
    consumed: dict[str, dict[str, int]] = field(default_factory=dict)  # by claim uid and device

    def allocate(self, uid: str, count: int, step: int) -> str:
        """Return the device for a claim; empty: the pod stays Pending."""
        whole = -(-count // step) * step
        for device, value in self.seen.items():
            taken = sum(of.get(device, 0) for of in self.consumed.values())
            if value - taken >= whole:
                self.consumed[uid] = {device: whole}
                return device
        return ""


class History:
    """One node, its scheduler, and what may happen to them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - repeatable, not secret
        reserve = NodeConfig(reserved=CPUSet([0]), strict_reserved=bool(seed % 2))
        self.node = ClaimWorld(smt_machine(CORES, SOCKETS), reserve)
        self.everything = self.node.topology.online
        self.scheduler = Scheduler()
        self.made = 0
        self.granted = 0  # claims that held CPUs, once for each pass
        self.renew()

    def renew(self) -> None:
        """Run a pass, check what it left behind, and publish."""
        self.node.run_all()
        self.granted += len(self.node.ledger.claims)
        self.check()
        self.scheduler.seen = self.published()

    def published(self) -> dict[str, int]:
        """Return the CPUs that are published of each device; one without any is left out."""
        given = offer_of(self.node.sets, self.node.ledger)
        groups = device_groups(given.topology, given.usable)
        return {device: value for device, value in published_cpus(groups, given).items() if value}

    def check(self) -> None:
        """Check that no CPU is owned twice or lost, and that the books of agent and scheduler agree."""
        ledger, sets = self.node.ledger, self.node.sets
        assert problems(ledger, sets) == ()
        claimed = ledger.claimed(ledger.claims)
        classic = union(held.footprint for held in ledger.parts if not held.device_claims)
        assert claimed | classic == ledger.held
        assert not claimed & classic
        assert ledger.held | sets.shared(ledger) | sets.system >= sets.allocatable
        given = offer_of(sets, ledger)
        groups = device_groups(given.topology, given.usable)
        values = published_cpus(groups, given)
        cores = given.topology.siblings_of
        spared = 0
        for group in groups:
            others = cores(group.cpus & classic) & group.cpus
            left = len(group.cpus) - len(others) - values[group.device]
            assert left in (0, group.threads)
            spared += left
        assert spared in (0, 2)
        self.check_room(values)

    def check_room(self, values: Mapping[str, int]) -> None:
        """Check that a claim of all that the scheduler may still allocate is granted in the next pass."""
        ledger = self.node.ledger
        held: dict[str, int] = {}
        for grant in ledger.claims.values():
            for part, cpus in zip(grant.claim.parts, grant.cpus, strict=True):
                usable = cpus & claimable(self.node.sets)
                held[part.device] = held.get(part.device, 0) + len(usable)
        parts = tuple(
            ClaimPart(f"r{at}", device, "", value - held.get(device, 0))
            for at, (device, value) in enumerate(sorted(values.items()))
            if value > held.get(device, 0)
        )
        if not parts:
            return
        whole = DeviceClaim(uid_of("all"), "test", "all", frozenset(["none"]), parts)
        observed = self.node.observe()
        assert observed.claims is not None
        known = {**observed.claims.known, whole.uid: whole}
        seen = replace(observed.claims, known=known, prepared=observed.claims.prepared | {whole.uid})
        planned = plan(replace(observed, claims=seen), ledger, self.node.config)
        assert whole.uid in planned.ledger.claims, planned.waiting_claims

    def happen(self) -> None:
        """Let one thing happen."""
        choices = (self.claim, self.claim, self.unprepare, self.give_back, self.classic, self.edit, self.end)
        more = (self.kill, self.wipe, self.offline, self.online, self.pods_unknown)
        doubts = (self.containers_unknown, self.give_back_unlisted, self.drop)
        self.random.choice((*choices, *more, *doubts))()

    def claim(self) -> None:
        """Schedule a pod with a claim; the kubelet asks for it now or not yet."""
        self.made += 1
        name = f"k{self.made}"
        uid = uid_of(name)
        count = self.random.randint(1, 6)
        device = self.scheduler.allocate(uid, count, 2)
        if not device:
            return
        part = ClaimPart("cpu", device, "", self.scheduler.consumed[uid][device])
        self.node.claims(
            DeviceClaim(uid, "test", name, frozenset([f"p{name}"]), (part,)),
            prepared=self.random.random() < 0.8,
        )
        self.node.user(f"p{name}", name)
        if self.random.random() < 0.7:
            self.node.start(f"p{name}", "c0")

    def unprepare(self) -> None:
        """End a pod with a claim: first the kubelet, then the API forgets it."""
        if not self.scheduler.consumed:
            return
        uid = self.random.choice(sorted(self.scheduler.consumed))
        name = self.node.known[uid].name
        for container in self.node.live():
            if container.owner.pod_uid == f"p{name}":
                self.node.stop(container.id)
        self.node.unprepare(uid)
        self.renew()
        del self.scheduler.consumed[uid], self.node.known[uid]
        self.node.documents.pop(f"p{name}", None)
        assert uid not in self.node.ledger.claims

    def give_back(self) -> None:
        """Let a kubelet that lost its state give a claim back: its CPUs stay while its container runs."""
        if not self.scheduler.consumed:
            return
        self.renew()
        uid = self.random.choice(sorted(self.scheduler.consumed))
        owner, had = f"p{self.node.known[uid].name}", self.node.ledger.claims.get(uid)
        running = {it.id: it.cpus for it in self.node.live() if it.owner.pod_uid == owner}
        self.node.unprepare(uid)
        self.renew()
        assert self.node.ledger.claims.get(uid) == (had if running else None)
        assert running == self.cpus_of(running)

    def give_back_unlisted(self) -> None:
        """Let the kubelet give a claim back while the runtime does not answer: its CPUs stay."""
        if not self.scheduler.consumed:
            return
        self.renew()
        uid = self.random.choice(sorted(self.scheduler.consumed))
        had = self.node.ledger.claims.get(uid)
        self.node.unprepare(uid)
        self.containers_unknown()
        assert self.node.ledger.claims.get(uid) == had

    def drop(self) -> None:
        """Reserve a claim for another pod alone: containers of the pod before keep its CPUs while they run."""
        if not self.scheduler.consumed:
            return
        self.renew()
        uid = self.random.choice(sorted(self.scheduler.consumed))
        before = self.node.known[uid]
        self.node.known[uid] = replace(before, pods=frozenset([f"q{before.name}"]))
        owner, had = f"p{before.name}", self.node.ledger.claims.get(uid)
        running = {it.id: it.cpus for it in self.node.live() if it.owner.pod_uid == owner}
        self.renew()
        assert running == self.cpus_of(running)
        kept = self.node.ledger.claims.get(uid)
        assert (kept and kept.cpus) == (had and had.cpus)

    def cpus_of(self, ids: Collection[str]) -> dict[str, CPUSet]:
        """Return the CPUs of these live containers."""
        return {it.id: it.cpus for it in self.node.live() if it.id in ids}

    def classic(self) -> None:
        """Start a container that asks without a claim."""
        self.made += 1
        self.node.add(f"c{self.made}", [self.random.choice(CLASSIC)])
        self.node.start(f"c{self.made}", "c0")

    def edit(self) -> None:
        """Let one of these containers ask for something else."""
        uids = [uid for uid in sorted(self.node.documents) if uid.startswith("c")]
        if uids:
            self.node.add(self.random.choice(uids), [self.random.choice(CLASSIC)])

    def end(self) -> None:
        """Delete one of these pods."""
        uids = [uid for uid in sorted(self.node.documents) if uid.startswith("c")]
        if uids:
            uid = self.random.choice(uids)
            del self.node.documents[uid]
            for container in self.node.live():
                if container.owner.pod_uid == uid:
                    self.node.stop(container.id)

    def kill(self) -> None:
        """Kill the agent: the next one reads the checkpoint, and knows no claim that was given back."""
        self.node.ledger = ledger_from_dict(ledger_to_dict(self.node.ledger))
        self.node.released.clear()

    def wipe(self) -> None:
        """Delete the slices, as the kubelet does: nothing is allocated until they are published again."""
        self.scheduler.seen = {}

    def offline(self) -> None:
        """Take a CPU offline."""
        left = self.node.topology.online - CPUSet([self.random.randrange(1, 2 * CORES)])
        if len(left) > CORES:
            self.node.set_online(left)

    def online(self) -> None:
        """Bring all CPUs back."""
        self.node.set_online(self.everything)

    def pods_unknown(self) -> None:
        """Run a pass that sees no pods, because the API server does not answer."""
        self.node.api_answers = False
        self.node.run_all()
        assert problems(self.node.ledger, self.node.sets) == ()
        self.node.api_answers = True

    def containers_unknown(self) -> None:
        """Run a pass that sees no containers, because the runtime does not answer: no claim loses its CPUs."""
        before = {uid: grant.cpus for uid, grant in self.node.ledger.claims.items()}
        self.node.runtime_answers = False
        self.node.run_all()
        assert problems(self.node.ledger, self.node.sets) == ()
        self.node.runtime_answers = True
        after = {uid: grant.cpus for uid, grant in self.node.ledger.claims.items()}
        assert before.items() <= after.items()


@pytest.mark.no_cover  # random, as what Hypothesis draws
@pytest.mark.parametrize("first", range(0, HISTORIES, PER_CASE))
def test_no_history_breaks_the_books(first: int) -> None:
    """After each pass of a random history no CPU is owned twice or lost, and published CPUs can be prepared."""
    granted = 0
    for seed in range(first, first + PER_CASE):
        history = History(seed)
        for _ in range(STEPS):
            history.happen()
            if history.random.random() < 0.7:
                history.renew()
        history.renew()
        granted += history.granted
    assert granted > 5 * PER_CASE
