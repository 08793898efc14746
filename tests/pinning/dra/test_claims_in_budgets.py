"""Pods with a budget of which containers name ResourceClaims: the claim's CPUs stand outside of the budget."""

from __future__ import annotations

from pinning.contract import CDI_KIND, SMTPolicy
from pinning.dra.claims import device_name
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import Owner
from pinning.planning.pod_pools import part_of
from pinning.planning.start_table import CLAIMS_UNREAD, Start, start_table
from tests.pinning.budgets import EXCLUSIVE, budgeted, pool, put, runs
from tests.pinning.dra.claiming import ClaimWorld, claim, uid_of, with_claim
from tests.pinning.nodes import smt_machine
from tests.pinning.world import Wish, reasons

REQUIRE = {"smt-policy.corepin.io/pod": "require"}
SOLVER, LOG = Owner("a", "solver"), Owner("a", "log")


def world() -> ClaimWorld:
    """Return a node of cores N, N + 8; the first is reserved."""
    return ClaimWorld(smt_machine(8))


def test_container_with_a_claim_is_not_in_the_pool_of_its_pod() -> None:
    """The container runs on the CPUs of its claim, the others on the whole budget, and nothing is refused."""
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
    """A CPU limit that repeats a claim is no slice: the claim holds these CPUs, and the pool the rest of the budget."""
    node = world()
    node.claims(claim("x", 4))
    put(node, with_claim(budgeted("a", 6, {"solver": 4, "log": None}), "solver"), "solver", "log")
    node.run_all()
    assert (node.held("x"), len(pool(node))) == (str(runs(node, "solver")), 2)
    assert len(node.ledger.held) == 6
    assert reasons(node.plan()) == {}


def test_slices_beside_a_claim_stay() -> None:
    """In one pod containers can run on a claim, on a slice and in the pool."""
    node = world()
    node.claims(claim("x", 2))
    document = with_claim(budgeted("a", 5, {"solver": None, "main": 2, "log": None}), "solver")
    put(node, document, "solver", "main", "log")
    node.run_all()
    assert [len(runs(node, name)) for name in ("solver", "main", "log")] == [2, 2, 3]
    assert len(node.ledger.held) == 7


def test_container_whose_claim_has_no_cpus_does_not_start_in_the_pool() -> None:
    """A container whose claim has no CPUs does not start in its pod's pool; containers without a claim do."""
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
    """A container enters its pod's pool only after its claims were read and turned out to be for other devices."""
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


def settled_then_unread(annotations: dict[str, str] | None = None) -> ClaimWorld:
    """Return a node whose container `solver` runs in the pool of its pod, and whose claims are to be read again."""
    node = world()
    document = budgeted("a", 4, {"solver": None, "log": None}, annotations=annotations)
    put(node, with_claim(document, "solver"), "solver", "log")
    node.run_all()
    node.unread = True
    return node


def test_running_container_stays_in_the_pool_while_its_claims_are_read_again() -> None:
    """After an agent's restart a running container stays in the pool until its claim is known to have CPUs."""
    node = settled_then_unread()
    before = pool(node)
    assert not node.plan().actions
    node.run_all()
    assert runs(node, "solver") == runs(node, "log") == pool(node) == before
    node.claims(claim("x", 2))
    node.run_all()
    assert str(runs(node, "solver")) == node.held("x")
    assert runs(node, "solver").isdisjoint(pool(node))


def test_container_of_a_pool_starts_again_there_while_its_claims_are_read_again() -> None:
    """While claims are read again a container of the pool restarts in the pool, also under `require`."""
    node = settled_then_unread(REQUIRE)
    table = start_table(node.plan(), node.observe())
    assert table.start(SOLVER, claims=True) == Start(pool(node))


def test_new_container_that_requires_cpus_waits_until_its_claims_are_read() -> None:
    """Under `require` it starts neither in the pool nor in the shared set; its neighbours start."""
    node = world()
    node.unread = True
    document = budgeted("a", 4, {"solver": None, "log": None}, annotations=REQUIRE)
    put(node, with_claim(document, "solver"))
    table = start_table(node.plan(), node.observe())
    assert table.start(SOLVER, claims=True) == CLAIMS_UNREAD
    assert table.start(LOG, claims=True) == Start(pool(node))
    node.unread = False
    table = start_table(node.plan(), node.observe())
    assert table.start(SOLVER, claims=True) == Start(pool(node))


def test_new_container_waits_for_its_claims_under_any_policy() -> None:
    """A new container does not start until its claims have been read; without CPUs from them it starts in the pool."""
    node = world()
    node.unread = True
    put(node, with_claim(budgeted("a", 4, {"solver": None, "log": None}), "solver"))
    assert start_table(node.plan(), node.observe()).start(SOLVER, claims=True) == CLAIMS_UNREAD
    node.unread = False
    assert start_table(node.plan(), node.observe()).start(SOLVER, claims=True) == Start(pool(node))


def test_container_without_other_requests_waits_for_its_claims() -> None:
    """A container starts in the shared set only after its claims were read and are not for CPUs."""
    node = world()
    node.unread = True
    node.user("a", "gpu")
    owner = Owner("a", "c0")
    assert start_table(node.plan(), node.observe()).start(owner, claims=False) == CLAIMS_UNREAD
    node.unread = False
    planned = node.plan()
    assert start_table(planned, node.observe()).start(owner, claims=False) == Start(planned.shared)


def test_container_waits_while_a_claim_with_cpus_is_not_reserved_for_its_pod() -> None:
    """A container does not start while the claim that it names holds CPUs and is not reserved for its pod."""
    node = world()
    node.claims(claim("x", 2, pods=("first",)))
    node.user("late", "x")
    reason = start_table(node.plan(), node.observe()).start(Owner("late", "c0"), claims=False)
    assert "claim test/x holds CPUs, and is not reserved for this pod" in str(reason)


def test_pod_that_joins_a_claim_is_not_put_into_its_pool_before_the_claim_is_read_again() -> None:
    """A pod that joins a claim is not put into its pool before the claim was read again, with its reservation."""
    node = world()
    node.claims(claim("x", 2, pods=("first",)))
    node.user("first", "x")
    node.run_all()
    node.unread = True
    put(node, with_claim(budgeted("a", 4, {"solver": None, "log": None}, annotations=REQUIRE), "solver"))
    table = start_table(node.plan(), node.observe())
    assert table.start(SOLVER, claims=True) == CLAIMS_UNREAD
    node.claims(claim("x", 2, pods=("a", "first")))
    node.run_all()
    assert str(node.ledger.cpus_of(SOLVER, CPUSet([]))) == node.held("x")


def test_pod_of_claims_alone_has_an_empty_pool_and_is_not_reported() -> None:
    """If every container of a pod has a claim, its pool holds no CPUs and is not reported as empty."""
    node = world()
    node.claims(claim("x", 4))
    put(node, with_claim(budgeted("a", 4, {"solver": 4}), "solver"), "solver")
    node.run_all()
    assert node.ledger.held == runs(node, "solver") == CPUSet.parse(node.held("x"))
    assert reasons(node.plan()) == {}


def test_claim_given_back_leaves_the_budget_as_it_is() -> None:
    """A released claim's CPUs are free, and the pool of its pod keeps its own."""
    node = world()
    node.claims(claim("x", 4))
    put(node, with_claim(budgeted("a", 4, {"solver": None, "log": None}), "solver"), "solver", "log")
    node.run_all()
    before = pool(node)
    for container in node.live():  # the kubelet gives claims back after them
        node.stop(container.id)
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


def test_container_without_a_budget_that_requires_cores_waits_until_its_claims_are_read() -> None:
    """A container that requires whole cores does not start until its claims were read, and then starts on its cores."""
    node = world()
    node.unread = True
    node.user("a", "gpu", wish=Wish("2", smt="require"))
    owner, own = Owner("a", "c0"), CPUSet([1, 9])
    assert start_table(node.plan(), node.observe()).start(owner, claims=True) == CLAIMS_UNREAD
    node.unread = False
    assert start_table(node.plan(), node.observe()).start(owner, claims=True) == Start(own, own)


def test_container_does_not_start_while_all_cpus_of_its_claim_are_offline() -> None:
    """A container does not start while all CPUs of its claim are offline, and the reason names them."""
    node = world()
    node.claims(claim("x", 2))
    node.user("a", "x")
    node.run_all()
    held = CPUSet.parse(node.held("x"))
    node.topology = node.topology.with_online(node.topology.online - held)
    table = start_table(node.plan(), node.observe())
    devices = [f"{CDI_KIND}={device_name(uid_of('x'), 'r0')}"]
    reason = table.start(Owner("a", "c0"), claims=True, cdi_devices=devices)
    assert isinstance(reason, str)
    assert f"CPUs {held} of its claim cannot be used now" in reason
