"""CPUs of ResourceClaims and of the containers that name them, in one ledger with everything else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pinning.contract import QuotaPolicy
from pinning.dra.claims import ClaimGrant, SeenClaims
from pinning.errors import BadContract, IllegalTransition
from pinning.machine.cpuset import CPUSet
from pinning.planning.claim_grants import offer_of
from pinning.planning.invariants import problems
from pinning.planning.ledger import Ledger
from pinning.planning.ledger_json import ledger_from_dict, ledger_to_dict
from pinning.planning.node_config import NodeConfig
from pinning.planning.noise import quiet_cpus
from pinning.planning.observed import Observed, Owner, SeenPod
from pinning.planning.plan import plan
from pinning.planning.recover import recover
from pinning.planning.refusal import Reason, Refusal
from pinning.pods.claims import Origin
from tests.pinning.dra.claiming import ClaimWorld, claim, uid_of
from tests.pinning.nodes import smt_machine
from tests.pinning.world import EXCLUSIVE, Wish

A, B = Owner("a", "c0"), Owner("b", "c0")
LAUNCHER = Owner("a", "compute")


def world(cores: int = 4, **more: object) -> ClaimWorld:
    """Return a node of cores N, N + cores; the first is reserved."""
    return ClaimWorld(smt_machine(cores), **more)  # type: ignore[arg-type]


def granted(*counts: int) -> ClaimWorld:
    """Return a node on which claim x has CPUs, and pod a names it."""
    node = world()
    node.claims(claim("x", *counts))
    node.user("a", "x")
    node.plan()
    return node


def cpus(node: ClaimWorld, owner: Owner) -> str:
    """Return the CPUs of a container in the ledger."""
    held = node.ledger.of(owner)
    return str(held.cpus) if held else ""


def refusal(node: ClaimWorld, owner: Owner = A) -> Refusal:
    """Return why a container is refused."""
    return next(it for it in node.plan().refusals if it.owner == owner)


def test_claim_holds_whole_cores_and_its_container_runs_on_them() -> None:
    """A claim gets whole cores, an odd amount rounded up, and its container runs on all of them."""
    node = granted(3)
    assert (node.held("x"), cpus(node, A)) == ("1-2,5-6", "1-2,5-6")
    held = node.ledger.of(A)
    assert held
    assert (held.claim.origin, held.claim.must_fit, held.device_claims) == (Origin.DRA, True, (uid_of("x"),))
    assert str(node.plan().shared) == "0,3-4,7"


def test_claim_without_a_container_that_names_it_is_held() -> None:
    """A claim that no container names holds its CPUs, because the kubelet prepares and the scheduler counts it."""
    node = world()
    node.claims(claim("x", 2, pods=()))
    planned = node.plan()
    assert (node.held("x"), len(planned.ledger), bool(planned.ledger)) == ("1,5", 0, True)
    assert str(planned.shared) == "0,2-4,6-7"


def test_containers_of_several_pods_share_a_claim() -> None:
    """Containers of several pods that name a claim run on its CPUs, and no others do."""
    node = world()
    node.claims(claim("x", 2, pods=("a", "b")))
    node.user("a", "x")
    node.user("b", "x")
    node.add("c", [EXCLUSIVE])
    planned = node.plan()
    assert (cpus(node, A), cpus(node, B), cpus(node, Owner("c", "c0"))) == ("1,5", "1,5", "2,6")
    assert not planned.ledger.of(A).meets(planned.ledger.of(B))  # type: ignore[union-attr, arg-type]


def test_request_of_a_claim_has_its_own_cpus() -> None:
    """A container that names one request gets its CPUs, and one that names none gets all of the claim."""
    node = world()
    node.claims(claim("x", 2, 4, pods=("a", "b")))
    node.user("a", "x", request="r1")
    node.user("b", "x")
    node.plan()
    assert (cpus(node, A), cpus(node, B)) == ("2-3,6-7", "1-3,5-7")


def test_container_waits_until_all_its_claims_have_cpus() -> None:
    """If one of two claims has no CPUs the container does not start, with the numbers as the reason."""
    node = world()
    node.claims(claim("x", 4), claim("y", 4))
    node.user("a", "x", "y")
    planned = node.plan()
    found = refusal(node)
    assert cpus(node, A) == ""
    assert found.blocks_start
    assert found.reason is Reason.NOT_ENOUGH
    assert "request r0 wants 4 CPUs of cpudevnuma000, and 2 of 6 are on wholly free cores" in found.message
    assert list(planned.waiting_claims) == [uid_of("y")]


def test_claim_of_a_strange_device_is_refused() -> None:
    """A claim whose device is no longer in the slice is refused."""
    node = world()
    node.claims(claim("x", 2, device="cpudevnuma007"))
    assert "this node has no device cpudevnuma007" in node.plan().waiting_claims[uid_of("x")]


def test_claim_leaves_the_shared_set_a_core() -> None:
    """With a strict reserve the last core is not given away; a smaller claim has its CPUs."""
    config = NodeConfig(reserved=CPUSet([0, 4]), strict_reserved=True)
    node = world(config=config)
    node.claims(claim("x", 6, pods=()))
    assert "no CPU would be left for the shared set" in node.plan().waiting_claims[uid_of("x")]
    node.known.clear()
    node.claims(claim("y", 4, pods=()))
    node.plan()
    assert node.held("y") == "1-2,5-6"


def test_last_free_core_is_spared_for_the_shared_set() -> None:
    """Isolated cores come first, so that what other containers share is taken last."""
    topology = replace(smt_machine(4), isolated=CPUSet([3, 7]))
    config = NodeConfig(reserved=CPUSet([0, 4]), strict_reserved=True)
    node = ClaimWorld(topology, config)
    node.claims(claim("x", 2, pods=()), claim("y", 2, pods=()))
    node.plan()
    assert {node.held("x"), node.held("y")} == {"3,7", "1,5"}


def test_claims_of_the_kubelet_come_before_classic_asks_and_planned_ones() -> None:
    """Prepared claims get CPUs first, then the oldest pod's claim."""
    node = world()
    node.claims(claim("x", 2, pods=("a",)), claim("y", 2, pods=("b",)), prepared=False)
    node.claims(claim("z", 2, pods=("unknown",)))
    node.user("b", "y")
    node.user("a", "x")
    node.add("c", [EXCLUSIVE])
    node.plan()
    assert [node.held(name) for name in "zyx"] == ["1,5", "2,6", "3,7"]
    assert cpus(node, Owner("c", "c0")) == ""


def test_planned_claim_goes_with_its_pod_and_a_prepared_one_with_the_kubelet() -> None:
    """A planned claim is released with its pod, and a prepared one by the kubelet's Unprepare."""
    node = world()
    node.claims(claim("x", 2), prepared=False)
    node.claims(claim("y", 2, pods=("b",)))
    node.user("a", "x")
    node.user("b", "y")
    node.plan()
    assert (node.held("x"), node.held("y")) == ("2,6", "1,5")
    del node.documents["a"], node.documents["b"]
    node.known.clear()
    node.plan()
    assert (node.held("x"), node.held("y")) == ("", "1,5")
    node.unprepare(uid_of("y"))
    node.plan()
    assert node.held("y") == ""


def test_claim_keeps_its_cpus_over_a_reboot_until_the_kubelet_prepares_it_again() -> None:
    """After a restart a claim keeps its CPUs until claims have been read, while its pod exists."""
    node = granted(4)
    node.add("b", [EXCLUSIVE, EXCLUSIVE])
    node.plan()
    (grant,) = node.ledger.claims.values()
    node.ledger = node.ledger.grant(replace(grant, is_prepared=False))
    node.known.clear()
    node.prepared.clear()
    node.plan()
    assert node.held("x") == "1-2,5-6"
    node.claims(claim("x", 4))
    assert uid_of("x") not in node.plan().waiting_claims
    assert (node.held("x"), node.ledger.claims[uid_of("x")].is_prepared) == ("1-2,5-6", True)


def test_claim_allocated_anew_before_prepare_is_placed_anew() -> None:
    """A new allocation moves a claim before Prepare, and after it not while the claim's pods exist."""
    node = world()
    node.claims(claim("x", 2), prepared=False)
    node.plan()
    node.claims(claim("x", 4))
    node.user("a", "x")
    node.plan()
    assert node.held("x") == "1-2,5-6"
    node.claims(claim("x", 2, pods=("a", "b")))
    node.plan()
    assert (node.held("x"), node.ledger.claims[uid_of("x")].claim.pods) == ("1-2,5-6", frozenset({"a"}))


def test_released_claim_is_not_planned_again_while_its_pod_ends() -> None:
    """A released claim is not planned again while the API server still shows its pod."""
    node = granted(2)
    node.unprepare(uid_of("x"))
    node.plan()
    assert (node.held("x"), cpus(node, A)) == ("", "")


def test_launcher_with_a_claim_makes_no_second_demand() -> None:
    """A launcher with a claim has no claim by its CPU request, because KubeVirt mirrors the amount there."""
    node = world(8)
    node.user("a", "x", wish=Wish("4"), vm=True)
    node.plan()
    assert cpus(node, LAUNCHER) == "1-2,9-10"  # until the claim is read
    node.claims(claim("x", 6))
    planned = node.plan()
    assert cpus(node, LAUNCHER) == node.held("x")
    assert len(node.ledger.exclusive) == 6
    assert not planned.refusals


def test_annotation_beside_a_claim_is_invalid_and_the_claim_stands() -> None:
    """An annotation beside a ResourceClaim is a refusal in an event, and the claim stays."""
    node = world()
    node.claims(claim("x", 2))
    node.user("a", "x", wish=EXCLUSIVE)
    found = refusal(node)
    assert (found.reason, found.blocks_start) == (Reason.INVALID, False)
    assert "container c0 has the CPUs of claim x, and asks for others by an annotation" in found.message
    assert cpus(node, A) == "1,5"
    node.user("a", "x", wish=Wish(cores=1))
    assert "by cmk.intel.com/exclusive-cores" in refusal(node).message


def test_what_a_container_asks_besides_waits_until_its_claims_are_read() -> None:
    """A container's other CPU requests wait until its claims are read: a claim without CPUs lets them count."""
    node = world(unread=True)
    node.user("a", "gpu", wish=EXCLUSIVE)
    assert not node.plan().refusals
    assert cpus(node, A) == ""
    node.unread = False
    node.plan()
    assert cpus(node, A) == "1,5"
    node.unread = True  # its pod changed: what it holds it keeps
    node.plan()
    assert cpus(node, A) == "1,5"


def test_pod_that_is_not_reserved_for_gets_nothing_of_a_claim() -> None:
    """A pod gets no CPUs of a claim that is not reserved for it, whatever names it uses."""
    node = world()
    node.claims(claim("x", 2, pods=("b",)))
    node.user("a", "x")
    node.plan()
    assert (cpus(node, A), node.held("x")) == ("", "1,5")


def test_offline_cpus_come_back_to_the_claim() -> None:
    """While CPUs of a claim are offline its container runs on the rest, with a refusal; later it has all again."""
    node = granted(4)
    everything = node.topology
    node.topology = everything.with_online(everything.online - CPUSet([5]))
    found = refusal(node)
    assert (found.reason, cpus(node, A), node.held("x")) == (Reason.KEEPS_FEWER, "1-2,6", "1-2,5-6")
    assert "CPUs 5 of its claim cannot be used now" in found.message
    node.topology = everything.with_online(everything.online - CPUSet([1, 2, 5, 6]))
    assert refusal(node).message.endswith(
        "until they can, it runs in the shared set if it runs already, and is not started otherwise"
    )
    assert cpus(node, A) == ""
    node.topology = everything
    node.plan()
    assert cpus(node, A) == "1-2,5-6"


def test_claims_are_released_last_when_nothing_else_is_left() -> None:
    """Claims lose CPUs last, when the shared set would be empty otherwise."""
    node = world()
    node.claims(claim("x", 4, pods=()))
    node.plan()
    node.topology = node.topology.with_online(CPUSet([1, 2]))
    node.known.clear()
    planned = node.plan()
    assert (node.held("x"), str(planned.shared)) == ("", "1-2")


def test_containers_of_unknown_pods_keep_their_claims() -> None:
    """While the API server is unreachable containers of unknown pods keep their claims."""
    node = granted(2)
    node.api_answers = False
    node.known.clear()
    node.plan()
    assert (cpus(node, A), node.held("x")) == ("1,5", "1,5")


def test_pod_that_names_its_claim_no_more_is_unpinned() -> None:
    """A pod that is shown without its claim is unpinned."""
    node = granted(2)
    node.add("a", [Wish()])
    node.plan()
    assert (cpus(node, A), node.held("x")) == ("", "1,5")


def test_agent_without_the_driver_keeps_claims_until_their_pods_are_gone() -> None:
    """Without the component claims in the ledger stay until their pods are gone."""
    node = granted(2)
    node.drives = False
    node.plan()
    assert (cpus(node, A), node.held("x")) == ("1,5", "1,5")
    del node.documents["a"]
    node.plan()
    assert node.held("x") == ""


def test_shared_cpus_widen_a_container_of_a_claim() -> None:
    """With shared CPUs a claim's container starts on its own CPUs, and may use the shared ones."""
    node = world()
    node.claims(claim("x", 2))
    node.user("a", "x", wish=Wish(shared="true", quota="keep"))
    planned = node.plan()
    assert (planned.run_sets.of(A).own, planned.run_sets.of(A).others) == (
        CPUSet([1, 5]),
        CPUSet.parse("0,2-4,6-7"),
    )
    assert planned.ledger.of(A).claim.quota is QuotaPolicy.KEEP  # type: ignore[union-attr]


def test_container_of_a_claim_is_quiet() -> None:
    """A container with a claim and `noise-policy: quiet` has interrupts kept off the claim's CPUs."""
    node = world()
    node.claims(claim("x", 2))
    node.user("a", "x")
    annotations = node.documents["a"]["metadata"].setdefault("annotations", {})
    annotations["noise-policy.corepin.io/pod"] = "quiet"
    assert quiet_cpus(node.plan().ledger) == CPUSet([1, 5])


def test_ledger_refuses_what_would_break_it() -> None:
    """The ledger refuses to change a claim's CPUs, to grant CPUs twice, and to run a claim's container elsewhere."""
    grant = ClaimGrant(claim("x", 2), (CPUSet([1, 5]),))
    ledger = Ledger().grant(grant)
    with pytest.raises(IllegalTransition, match="keeps its CPUs until it is unprepared"):
        ledger.grant(replace(grant, cpus=(CPUSet([2, 6]),)))
    with pytest.raises(IllegalTransition, match="CPUs 5 are held by others"):
        ledger.grant(ClaimGrant(claim("y", 1), (CPUSet([5]),)))
    with pytest.raises(IllegalTransition, match="a part of the claim has no CPUs"):
        ledger.grant(ClaimGrant(claim("y", 1), (CPUSet(),)))
    with pytest.raises(IllegalTransition, match="holds no CPUs"):
        ledger.release_claim(uid_of("y"))
    node = granted(2)
    held = node.ledger.of(A)
    assert held
    with pytest.raises(IllegalTransition, match="CPUs 2 are held by others"):
        node.ledger.change(replace(held, cpus=CPUSet([1, 2])))
    assert node.ledger.release_claim(uid_of("x")) == Ledger()


def test_broken_ledgers_are_seen() -> None:
    """Each broken rule about claims is reported."""
    node = granted(2)
    grant, held = node.ledger.claims[uid_of("x")], node.ledger.of(A)
    assert held
    other = replace(grant, claim=claim("y", 2))
    moved = replace(held, cpus=CPUSet([2, 6]))
    classic = replace(held, device_claims=())
    ledgers = {
        "claims test/x and test/y both hold CPUs 1,5": Ledger(
            {}, CPUSet([1, 5]), claims={"x": grant, "y": other}
        ),
        "claim test/x: CPUs 1,5 are not charged": Ledger({}, claims={"x": grant}),
        "claim test/x: a part of the claim has no CPUs": Ledger({}, claims={"x": replace(grant, cpus=())}),
        "claim test/x: CPUs 5 are siblings of its cores": Ledger(
            {}, CPUSet([1]), claims={"x": replace(grant, cpus=(CPUSet([1]),))}
        ),
        "CPUs 2,6 do not belong to its claims": Ledger(
            {"a": (moved,)}, CPUSet([1, 5]), claims={uid_of("x"): grant}
        ),
        "test/pod-a/c0: CPUs 1,5 belong to claims": Ledger(
            {"a": (classic,)}, CPUSet([1, 5]), claims={"x": grant}
        ),
    }
    for text, ledger in ledgers.items():
        assert any(text in problem for problem in problems(ledger, node.sets)), text


def test_ledger_survives_a_restart() -> None:
    """Claims are in the checkpoint with all that Prepare answers."""
    node = granted(2, 4)
    saved = ledger_to_dict(node.ledger)
    assert ledger_from_dict(saved) == node.ledger
    assert "claims" not in ledger_to_dict(Ledger())
    saved["claims"][0]["parts"][0]["count"] = "2"
    with pytest.raises(BadContract, match="damaged"):
        ledger_from_dict(saved)


def test_claims_of_a_lost_checkpoint_are_found_in_their_files() -> None:
    """A lost checkpoint's claims are recovered from their files, unless they overlap or do not fit the node."""
    node = world()
    node.found = (
        ClaimGrant(claim("x", 2), (CPUSet([2, 6]),), is_prepared=True),
        ClaimGrant(claim("y", 2), (CPUSet([2, 6]),), is_prepared=True),
        ClaimGrant(claim("z", 2), (CPUSet([0, 4]),), is_prepared=True),
        ClaimGrant(claim("half", 1), (CPUSet([3]),), is_prepared=True),
    )
    node.user("a", "x")
    ledger = recover(node.observe(), node.config)
    assert list(ledger.claims) == [uid_of("x")]
    node.ledger = ledger
    node.plan()
    assert cpus(node, A) == "2,6"
    node.drives = False
    assert not recover(node.observe(), node.config)


def test_claims_are_offered_beside_classic_holders() -> None:
    """The published devices follow the ledger of claims and classic containers."""
    node = world()
    node.claims(claim("x", 2, pods=()))
    node.add("c", [EXCLUSIVE])
    node.plan()
    found = offer_of(node.sets, node.ledger)
    assert (str(found.claimed), str(found.classic), str(found.usable)) == ("1,5", "2,6", "1-3,5-7")


def test_observing_agent_grants_no_claims() -> None:
    """In observe mode the agent grants no claims; earlier ones are released by Unprepare."""
    observed = Observed(
        smt_machine(4),
        CPUSet(range(8)),
        (SeenPod.of(claiming_pod()),),
        claims=SeenClaims(known={uid_of("x"): claim("x", 2)}),
    )
    assert not plan(observed, Ledger(), NodeConfig(observe=True)).ledger


def claiming_pod() -> Any:
    """Return a pod that names the claim x."""
    node = world()
    node.user("a", "x")
    return node.documents["a"]


def test_agent_without_the_driver_defers_nothing() -> None:
    """Without the component `dra` a container's other CPU requests count at once."""
    node = world(drives=False)
    node.user("a", "gpu", wish=EXCLUSIVE)
    node.plan()
    assert cpus(node, A) == "1,5"


def test_other_containers_stay_when_a_claim_is_given_back() -> None:
    """A released claim's containers lose their CPUs, and no others do."""
    node = world()
    node.claims(claim("x", 2))
    node.user("a", "x")
    node.add("c", [EXCLUSIVE])
    node.plan()
    left = node.ledger.release_claim(uid_of("x"))
    assert ([held.owner for held in left], left.exclusive) == ([Owner("c", "c0")], CPUSet([2, 6]))
