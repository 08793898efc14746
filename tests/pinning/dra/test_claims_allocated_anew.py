"""ResourceClaims with a new allocation while the ledger still has the earlier one.

The kubelet gives a claim back before it is allocated anew, except where it lost its state.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from pinning.dra.claims import DeviceClaim
from pinning.planning.claim_grants import ALLOCATED_ANEW
from pinning.planning.observed import Owner
from pinning.planning.refusal import Reason
from tests.pinning.dra.claiming import ClaimWorld, claim, uid_of
from tests.pinning.nodes import smt_machine

UID = uid_of("x")
OTHER_SHARE = replace(claim("x", 2, pods=("b",)).parts[0], share="s-2")


def served() -> ClaimWorld:
    """Return a node with a running pod `a`, whose claim the kubelet has asked for."""
    node = ClaimWorld(smt_machine(4))
    node.claims(claim("x", 2))
    node.user("a", "x")
    node.start("a", "c0")
    node.run_all()
    assert node.held("x") == "1,5"
    return node


def end(node: ClaimWorld) -> None:
    """End the pod and its container."""
    del node.documents["a"]
    for container in node.live():
        node.stop(container.id)


@pytest.mark.parametrize(
    ("anew", "cpus"),
    [
        pytest.param(claim("x", 4, pods=("b",)), "1-2,5-6", id="other amount"),
        pytest.param(claim("x", 2, 2, pods=("b",)), "1-2,5-6", id="other requests"),
        pytest.param(replace(claim("x", pods=("b",)), parts=(OTHER_SHARE,)), "1,5", id="other share"),
    ],
)
def test_kubelet_that_lost_its_state_gets_the_present_allocation(anew: DeviceClaim, cpus: str) -> None:
    """Once its earlier pods are gone, a claim's old CPUs are released in the pass that grants the new allocation."""
    node = served()
    end(node)
    node.claims(anew)
    node.user("b", "x")
    node.run_all()
    held = node.ledger.of(Owner("b", "c0"))
    assert (node.held("x"), str(held.cpus) if held else "") == (cpus, cpus)
    assert node.ledger.claims[UID].claim.parts == anew.parts


def test_claim_allocated_anew_waits_for_the_pods_before() -> None:
    """While a container of the earlier pods runs, its CPUs stay held, and Prepare and the new pod are refused."""
    node = served()
    del node.documents["a"]  # deleted by force: its container runs on
    node.claims(claim("x", 4, pods=("b",)))
    node.user("b", "x")
    planned = node.plan()
    assert planned.waiting_claims == {UID: f"it {ALLOCATED_ANEW}"}
    (refusal,) = planned.refusals
    assert (refusal.owner.pod_uid, refusal.reason, refusal.blocks_start) == ("b", Reason.NOT_RESERVED, True)
    assert refusal.message == f"claim test/x {ALLOCATED_ANEW}"
    assert (node.held("x"), node.ledger.claims[UID].claim.pods) == ("1,5", frozenset({"a"}))


def test_read_of_a_claim_alone_takes_no_cpus() -> None:
    """A new allocation that was read changes nothing before Prepare, because the read may be older than the grant."""
    node = served()
    end(node)
    node.claims(claim("x", 4, pods=("b",)), prepared=False)
    node.prepared.clear()
    node.user("b", "x")
    planned = node.plan()
    assert (node.held("x"), dict(planned.waiting_claims)) == ("1,5", {})
    assert [it.message for it in planned.refusals] == [f"claim test/x {ALLOCATED_ANEW}"]
