"""Invariants of containers that are created at any instant of a node's life."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinning.machine.cpuset import EMPTY
from pinning.planning.observed import Owner, SeenPod
from pinning.planning.start_table import Start, StartTable

if TYPE_CHECKING:
    from pinning.planning.ledger import Ledger
    from tests.pinning.world import World


def check_births(world: World, table: StartTable, before: Ledger) -> None:
    """Check that a container created now gets CPUs without another owner, or a refusal with the reason.

    What must fit gets its own CPUs or none; only claims that are unknown, or must fit, are held back.
    """
    shown = world.observe().known_uids
    for uid, document in world.documents.items():
        for claim in SeenPod.of(document).claims:  # type: ignore[arg-type]
            owner = Owner(uid, claim.container)
            held, namespace = table.ledger.of(owner), document["metadata"]["namespace"]
            start = table.start(owner, claims=True, namespace=namespace)
            # an edit may not be seen yet, or wait until a virtual machine stops
            in_force = held.claim if held else claim
            if isinstance(start, str):
                assert in_force.must_fit or uid not in table.known
                continue
            assert start.own == (held.cpus if held and start.own else EMPTY)
            assert start.own or not in_force.must_fit or uid not in shown
            _check_birth(world, owner, start, before)
    for namespace in ("test", "system"):
        stranger = table.start(Owner("stranger", "c0"), claims=False, namespace=namespace)
        assert isinstance(stranger, Start)
        _check_birth(world, Owner("stranger", "c0"), stranger, before)


def _check_birth(world: World, owner: Owner, start: Start, before: Ledger) -> None:
    now, shared = world.ledger, world.sets.shared(world.ledger)
    mine = now.of(owner) if start.own else None
    footprint = mine.footprint if mine else start.cpus
    assert start.cpus
    assert start.cpus <= world.topology.online
    for other in world.live():
        theirs, left = now.of(other.owner), before.of(other.owner)
        if other.owner == owner or (mine and theirs and not mine.meets(theirs)):
            continue
        if other.sandbox and other.owner.pod_uid == owner.pod_uid:  # one virtual machine runs them all
            continue
        if mine and mine.is_exclusive:
            assert footprint.isdisjoint(other.cpus)
        if theirs and theirs.is_exclusive:
            assert footprint.isdisjoint(theirs.footprint)
        if theirs and left and left.is_exclusive and not start.own and start.cpus != shared:
            assert start.cpus.isdisjoint((other.cpus & left.footprint) - theirs.cpus)
