"""Pods with a budget of which containers name ResourceClaims: the claim's CPUs stand outside of the budget."""

from __future__ import annotations

from typing import Any

from pinning.contract import SMTPolicy
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import Owner
from pinning.planning.pod_pools import part_of
from pinning.planning.start_table import start_table
from tests.pinning.budgets import EXCLUSIVE, budgeted, pool, put, runs
from tests.pinning.dra.claiming import ClaimWorld, claim, uid_of
from tests.pinning.nodes import smt_machine
from tests.pinning.world import reasons

SOLVER, LOG = Owner("a", "solver"), Owner("a", "log")


def world() -> ClaimWorld:
    """Return a node of cores N, N + 8; the first is reserved."""
    return ClaimWorld(smt_machine(8))


def with_claim(document: dict[str, Any], *containers: str) -> dict[str, Any]:
    """Let containers of a pod name the claim `x`."""
    document["spec"]["resourceClaims"] = [{"name": "x", "resourceClaimName": "x"}]
    for container in document["spec"]["containers"]:
        if container["name"] in containers:
            container.setdefault("resources", {})["claims"] = [{"name": "x"}]
    return document


def test_container_with_a_claim_is_not_in_the_pool_of_its_pod() -> None:
    """It runs on its claim, the others on the whole budget, and nothing is refused."""
    node = world()
    node.claims(claim("x", 4))
    put(node, with_claim(budgeted("a", 4, {"solver": None, "log": None}), "solver"), "solver", "log")
    node.run_all()
    assert node.held("x") == str(runs(node, "solver"))
    assert len(pool(node)) == 4
    assert runs(node, "log") == pool(node)
    assert pool(node).isdisjoint(runs(node, "solver"))
    purpose = node.ledger.pools["a"].claim.pool
    assert purpose is not None
    assert [user.container for user in purpose.users] == ["log"]
    assert reasons(node.plan()) == {}


def test_mirrored_limit_of_a_claim_is_no_slice() -> None:
    """The amount of the pod covers it, so that the pool has the rest; the claim holds the CPUs, once."""
    node = world()
    node.claims(claim("x", 4))
    put(node, with_claim(budgeted("a", 6, {"solver": 4, "log": None}), "solver"), "solver", "log")
    node.run_all()
    assert (node.held("x"), len(pool(node))) == (str(runs(node, "solver")), 2)
    assert len(node.ledger.held) == 6
    assert reasons(node.plan()) == {}


def test_slices_beside_a_claim_stay() -> None:
    """Each container has what it asks for: a claim, a slice, or the pool."""
    node = world()
    node.claims(claim("x", 2))
    document = with_claim(budgeted("a", 5, {"solver": None, "main": 2, "log": None}), "solver")
    put(node, document, "solver", "main", "log")
    node.run_all()
    assert [len(runs(node, name)) for name in ("solver", "main", "log")] == [2, 2, 3]
    assert len(node.ledger.held) == 7


def test_container_whose_claim_has_no_cpus_does_not_start_in_the_pool() -> None:
    """It waits for its claim, as one without a budget does; the pool is there for the others."""
    node = world()
    node.user("b", "y")
    node.claims(claim("y", 8, pods=("b",)))
    node.run_all()
    node.claims(claim("x", 8))
    put(node, with_claim(budgeted("a", 4, {"solver": None, "log": None}), "solver"))
    node.run_all()
    assert not node.held("x")
    table = start_table(node.plan(), node.observe())
    reason = table.start(SOLVER, claims=False)
    assert isinstance(reason, str)
    assert "claim test/x" in reason
    log = table.start(LOG, claims=False)
    assert not isinstance(log, str)
    assert log.cpus == pool(node)
    assert part_of(node.ledger, SOLVER) is None


def test_unread_claim_keeps_a_container_out_of_the_pool_until_it_is_read() -> None:
    """A claim of another driver gives no CPUs: its container runs in the pool then."""
    node = world()
    node.unread = True
    put(node, with_claim(budgeted("a", 4, {"solver": None, "log": None}), "solver"), "log")
    node.run_all()
    assert part_of(node.ledger, SOLVER) is None
    assert runs(node, "log") == pool(node)
    node.unread = False
    node.run_all()
    part = part_of(node.ledger, SOLVER)
    assert part is not None
    assert part.cpus == pool(node)


def test_pod_of_claims_alone_has_an_empty_pool_and_is_not_reported() -> None:
    """No container runs in it, so that its CPUs are not held."""
    node = world()
    node.claims(claim("x", 4))
    put(node, with_claim(budgeted("a", 4, {"solver": 4}), "solver"), "solver")
    node.run_all()
    assert node.ledger.held == runs(node, "solver") == CPUSet.parse(node.held("x"))
    assert reasons(node.plan()) == {}


def test_claim_given_back_leaves_the_budget_as_it_is() -> None:
    """The pool keeps its CPUs; those of the claim are free."""
    node = world()
    node.claims(claim("x", 4))
    put(node, with_claim(budgeted("a", 4, {"solver": None, "log": None}), "solver"), "solver", "log")
    node.run_all()
    before = pool(node)
    node.unprepare(uid_of("x"))
    node.run_all()
    assert node.ledger.held == pool(node) == before


def test_pool_of_whole_cores_keeps_its_cores_beside_a_claim() -> None:
    """Under `require` neither shares a core with the other."""
    node = world()
    node.claims(claim("x", 2))
    annotations = {**EXCLUSIVE, "smt-policy.corepin.io/pod": "require"}
    document = budgeted("a", 3, {"solver": None, "log": None}, annotations=annotations)
    put(node, with_claim(document, "solver"), "solver", "log")
    node.run_all()
    assert node.ledger.pools["a"].smt is SMTPolicy.REQUIRE
    cores = node.topology.siblings_of(runs(node, "solver"))
    assert cores.isdisjoint(node.topology.siblings_of(pool(node)))
