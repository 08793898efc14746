"""Claims that the kubelet gives back while containers of their pods run.

A kubelet that lost its state does so at the end of the pod that it prepared the claim for, beside earlier pods of the
claim. Any kubelet may do so for a pod that was deleted by force and whose containers have not stopped yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import Owner, State
from pinning.planning.plan import plan
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
    """A released claim keeps its CPUs for a running container, and frees them once the container has stopped."""
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
    """A container that was only created keeps no CPUs of a released claim, because it never ran."""
    node, first = shared_claim()
    node.containers[first] = replace(node.containers[first], state=State.CREATED)
    node.unprepare(UID)
    node.run_all()
    assert node.held("x") == ""


def test_claim_that_is_prepared_again_stays_without_containers() -> None:
    """A claim that is prepared again after Unprepare keeps its CPUs, also without containers."""
    node, first = shared_claim()
    node.unprepare(UID)
    node.run_all()
    node.released.clear()
    node.prepared.add(UID)
    node.stop(first)
    node.run_all()
    assert node.held("x") == "1,5"


def test_pod_that_joins_a_claim_in_use_gets_its_cpus() -> None:
    """A pod that joins a released claim which another pod's container still uses gets the claim's CPUs."""
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
    """While the API server is unreachable a released claim keeps its CPUs if the runtime lists a container of it."""
    node, _ = shared_claim()
    node.known.clear()
    node.api_answers = False
    node.unprepare(UID)
    node.run_all()
    assert node.held("x") == "1,5"


def test_claim_given_back_while_the_runtime_does_not_answer_keeps_its_cpus() -> None:
    """A claim released while the runtime does not answer keeps its CPUs, because its containers may still run."""
    node, first = shared_claim()
    node.runtime_answers = False
    node.unprepare(UID)
    node.create("c", [Wish("6", policy="exclusive")])
    assert (node.held("x"), node.holds("a"), node.holds("c")) == ("1,5", "1,5", "")
    node.runtime_answers = True
    node.stop(first)
    node.run_all()
    assert node.held("x") == ""


def dropped_pod() -> tuple[ClaimWorld, str]:
    """Return a node on which a claim is reserved for pod `d` alone, while a container of pod `a` runs on it."""
    node, first = shared_claim()
    node.known[UID] = claim("x", 2, pods=("d",))
    node.run_all()
    return node, first


def test_container_of_a_pod_that_the_claim_is_no_longer_reserved_for_keeps_its_cpus() -> None:
    """A running container keeps its claim's CPUs after its pod lost the reservation, until it exits."""
    node, first = dropped_pod()
    assert (node.containers[first].cpus, node.holds("a")) == (OWN, "1,5")
    node.stop(first)
    node.run_all()
    assert node.holds("a") == ""
    assert node.ledger.claims[UID].claim.pods == {"d"}


def test_claim_that_is_given_back_stays_for_a_pod_that_it_is_no_longer_reserved_for() -> None:
    """A released claim keeps its CPUs until the container of a pod without a reservation has exited."""
    node, first = dropped_pod()
    node.unprepare(UID)
    node.create("c", [Wish("6", policy="exclusive")])
    assert (node.held("x"), node.containers[first].cpus, node.holds("c")) == ("1,5", OWN, "")
    node.stop(first)
    node.run_all()
    assert node.held("x") == ""


def test_reservation_is_kept_while_the_runtime_does_not_answer() -> None:
    """A pod that lost its reservation keeps the claim's CPUs while the runtime does not answer."""
    node, first = shared_claim()
    node.runtime_answers = False
    node.known[UID] = claim("x", 2, pods=("d",))
    node.run_all()
    assert node.holds("a") == "1,5"
    node.runtime_answers = True
    node.stop(first)
    node.run_all()
    assert node.holds("a") == ""


def test_claim_allocated_anew_waits_for_a_pod_that_it_is_no_longer_reserved_for() -> None:
    """A claim with a new allocation gets it once the container of the pod that lost its reservation has exited."""
    node, first = dropped_pod()
    node.known[UID] = claim("x", 4, pods=("d",))
    node.run_all()
    assert (node.held("x"), node.containers[first].cpus) == ("1,5", OWN)
    node.stop(first)
    del node.documents["a"]
    node.run_all()
    assert len(node.ledger.claims[UID].footprint) == 4


class Watched(frozenset[Owner]):
    """Running containers, and how often all of them were read."""

    reads = 0

    def __iter__(self) -> Iterator[Owner]:
        """Yield them."""
        Watched.reads += 1
        return super().__iter__()


def test_running_containers_are_read_once_for_all_claims() -> None:
    """A thousand claims that are given back beside ten thousand containers would take half a second."""
    node = ClaimWorld(smt_machine(8))
    for name in "xyz":
        node.claims(claim(name, 2, pods=(f"p{name}",)))
        node.user(f"p{name}", name)
        node.start(f"p{name}", "c0")
    node.run_all()
    for name in "xyz":
        node.unprepare(uid_of(name))
    observed = node.observe()
    observed.__dict__["running"] = Watched(observed.running)
    Watched.reads = 0
    assert plan(observed, node.ledger, node.config).ledger.claims.keys() == set(map(uid_of, "xyz"))
    assert Watched.reads == 1
