"""ResourceClaims with the name of an earlier claim that the kubelet has not released yet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pinning.planning.ledger_json import ledger_from_dict, ledger_to_dict
from pinning.planning.observed import Owner
from tests.pinning.dra.claiming import ClaimWorld, claim
from tests.pinning.nodes import smt_machine


@pytest.mark.parametrize("uids", [(1, 2), (2, 1)], ids=["older uid first", "newer uid first"])
def test_claims_of_one_name_serve_their_own_pods(uids: tuple[int, int]) -> None:
    """A new claim with the name of one that the kubelet still holds takes no CPUs from the earlier one's pod."""
    node = ClaimWorld(smt_machine(4))
    older, newer = (
        replace(claim("x", 2, pods=(pod,)), uid=f"00000000-0000-4000-8000-{number:012}")
        for pod, number in zip("ab", uids, strict=True)
    )
    node.claims(older)
    node.user("a", "x")
    node.start("a", "c0")
    node.run_all()
    node.claims(newer)
    node.user("b", "x")
    node.run_all()
    node.ledger = ledger_from_dict(ledger_to_dict(node.ledger))
    planned = node.plan()
    held = [node.ledger.of(Owner(pod, "c0")) for pod in "ab"]
    assert [str(it.cpus) if it else "" for it in held] == ["1,5", "2,6"]
    assert not planned.held_back
