"""Claims that the kubelet gives back while containers of their pods run.

A kubelet that lost its state does so at the end of the pod that it prepared the claim for, beside earlier pods of the
claim. Any kubelet may do so for a pod that was deleted by force and whose containers have not stopped yet.
"""

from __future__ import annotations

from dataclasses import replace

from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import Owner, State
from tests.pinning.dra.claiming import ClaimWorld, claim, uid_of
from tests.pinning.nodes import smt_machine
from tests.pinning.world import Wish

UID = uid_of("x")
OWN = CPUSet.parse("1,5")


def shared_claim() -> tuple[ClaimWorld, str]:
    """Return a node on which only pod `a` of a claim of two pods still runs, and its container."""
    node = ClaimWorld(smt_machine(4))
    node.claims(claim("x", 2, pods=("a", "b")))
    for uid in ("a", "b"):
        node.user(uid, "x")
    first, second = node.start("a", "c0"), node.start("b", "c0")
    node.run_all()
    assert (node.held("x"), node.containers[first].cpus) == ("1,5", OWN)
    node.stop(second)
    del node.documents["b"]
    return node, first


def test_claim_keeps_its_cpus_while_a_container_of_its_pods_runs() -> None:
    """Nothing moves the container, no other gets its CPUs, and they are free once it has stopped."""
    node, first = shared_claim()
    node.unprepare(UID)
    node.add("c", [Wish("6", policy="exclusive")])
    assert node.plan().actions == ()
    assert (node.held("x"), node.containers[first].cpus, node.holds("a")) == ("1,5", OWN, "1,5")
    assert node.holds("c") == ""
    node.stop(first)
    node.run_all()
    assert node.held("x") == ""
    assert CPUSet.parse(node.holds("c")) >= OWN


def test_container_that_is_only_created_keeps_no_claim() -> None:
    """It never ran, and the kubelet may delete it a minute later than its pod."""
    node, first = shared_claim()
    node.containers[first] = replace(node.containers[first], state=State.CREATED)
    node.unprepare(UID)
    node.run_all()
    assert node.held("x") == ""


def test_claim_that_is_prepared_again_stays_without_containers() -> None:
    """The Unprepare before counts no longer."""
    node, first = shared_claim()
    node.unprepare(UID)
    node.run_all()
    node.released.clear()
    node.prepared.add(UID)
    node.stop(first)
    node.run_all()
    assert node.held("x") == "1,5"


def test_pod_that_joins_a_claim_in_use_gets_its_cpus() -> None:
    """As the kubelet asks for the claim only once its containers are about to be made."""
    node, _ = shared_claim()
    node.unprepare(UID)
    node.run_all()
    node.known[UID] = claim("x", 2, pods=("a", "d"))
    node.user("d", "x")
    node.run_all()
    held = node.ledger.of(Owner("d", "c0"))
    assert held
    assert held.cpus == OWN


def test_unread_claim_in_use_keeps_its_cpus() -> None:
    """The API server has no part in this: the runtime's list is what counts."""
    node, _ = shared_claim()
    node.known.clear()
    node.api_answers = False
    node.unprepare(UID)
    node.run_all()
    assert node.held("x") == "1,5"
