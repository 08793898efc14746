"""ResourceClaims with the API's maximum of results, and with more CPUs than their device has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pinning.planning.observed import Owner
from tests.pinning.dra.claiming import ClaimWorld, claim, uid_of
from tests.pinning.nodes import smt_machine


def owned(node: ClaimWorld, pod: str) -> str:
    """Return the CPUs of a pod's container in the ledger; core N of the machine has CPUs N and N + its cores."""
    held = node.ledger.of(Owner(pod, "c0"))
    return str(held.cpus) if held else ""


def test_claim_of_more_than_its_device_has_is_not_advised_to_wait() -> None:
    """A claim above its device's CPUs is refused with the advice to delete the pod, not to wait."""
    node = ClaimWorld(smt_machine(4))
    node.claims(claim("x", 8), claim("y", 6, pods=("b",)))
    node.user("a", "x")
    node.user("b", "y")
    waiting = node.plan().waiting_claims
    assert waiting == {
        uid_of("x"): "request r0 wants 8 CPUs of cpudevnuma000, and 6 of 6 are on wholly free cores:"
        " delete the pod, so that it is scheduled anew"
    }
    refusal = next(it for it in node.plan().refusals if it.owner == Owner("a", "c0"))
    assert refusal.blocks_start
    assert owned(node, "b") == node.held("y") == "1-3,5-7"


def test_claim_of_thirty_two_results_has_cpus_for_each_or_none_at_all() -> None:
    """A claim with 32 results, the API's maximum, gets CPUs for each of them or none at all."""
    node = ClaimWorld(smt_machine(34))
    node.claims(claim("x", *[2] * 32), claim("y", *[2] * 32, pods=("b",)))
    node.user("a", "x")
    node.user("b", "y")
    planned = node.plan()
    assert (node.held("x"), owned(node, "a")) == ("1-32,35-66", "1-32,35-66")
    assert list(planned.waiting_claims) == [uid_of("y")]
    node.unprepare(uid_of("x"))
    node.plan()
    assert (node.held("x"), node.held("y")) == ("", "1-32,35-66")


class Reserved(frozenset[str]):
    """Uids of the pods that a claim is reserved for, which may be 256 for each claim."""

    walks = 0

    def __iter__(self) -> Iterator[str]:
        """Count the walk through all of them."""
        Reserved.walks += 1
        return super().__iter__()


def test_pods_of_a_claim_are_looked_up_and_hardly_walked_through() -> None:
    """A plan iterates once over a claim's pods: 200 claims of 256 pods took 29 ms with more passes, and take 9."""
    node = ClaimWorld(smt_machine(4))
    node.claims(replace(claim("x", 2), pods=Reserved(["a", *(f"other-{number}" for number in range(255))])))
    node.user("a", "x")
    node.run_all()
    Reserved.walks = 0
    node.run_all()
    assert Reserved.walks == 1
    assert node.held("x") == "1,5"
