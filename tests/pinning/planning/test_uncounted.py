"""Claims whose cores the scheduler does not count, and the agent's treatment of them."""

from __future__ import annotations

from typing import Any

import pytest

from pinning.contract import SMTPolicy
from pinning.planning.node_config import UncountedClaims
from pinning.planning.observed import Owner
from pinning.planning.refusal import Reason
from tests.pinning.world import Wish, World, edit, world

ISOLATED, WHOLE = "corepin.io/isolated-cores", "corepin.io/whole-cores"
BOTH = frozenset({SMTPolicy.ISOLATE, SMTPolicy.REQUIRE})
TWO = Wish("2", smt="isolate")


def node_of(
    kinds: frozenset[SMTPolicy] = BOTH,
    *,
    refuse: bool = False,
    observe: bool = False,
    smt_policy: SMTPolicy = SMTPolicy.PREFER,
) -> World:
    """Return a node of 8 cores with two CPUs each, where `countedClaims` has these policies."""
    word = UncountedClaims.REFUSE if refuse else UncountedClaims.REPORT
    return world(counted_claims=kinds, uncounted_claims=word, observe=observe, smt_policy=smt_policy)


def count(node: World, uid: str, resource: str, amount: object, at: int = 0) -> None:
    """Let a container request an amount of a resource, added by the webhook or written by a user."""
    spec = node.documents[uid]["spec"]
    container: dict[str, Any] = [*spec["initContainers"], *spec["containers"]][at]
    for kind in ("limits", "requests"):
        container["resources"][kind] = {**container["resources"][kind], resource: amount}


@pytest.mark.parametrize(
    ("wish", "resource", "amount", "needed"),
    [
        pytest.param(TWO, ISOLATED, 0, 2, id="none"),
        pytest.param(Wish("6", smt="isolate"), ISOLATED, 1, 6, id="a lying count"),
        pytest.param(TWO, WHOLE, 2, 2, id="another resource"),
        pytest.param(TWO, ISOLATED, "1500m", 2, id="no whole number"),
        pytest.param(Wish("3", smt="require"), WHOLE, 1, 2, id="require"),
        pytest.param(Wish("2", smt="isolate", init=""), ISOLATED, 0, 2, id="init container"),
        pytest.param(Wish("2", smt="isolate", init="Always"), ISOLATED, 1, 2, id="sidecar"),
    ],
)
def test_claim_of_more_cores_than_are_requested_is_uncounted(
    wish: Wish, resource: str, amount: object, needed: int
) -> None:
    """A claim with too little of its resource is reported with both numbers, and the container gets its CPUs."""
    node = node_of()
    node.add("a", [wish])
    count(node, "a", resource, amount)
    planned = node.plan()
    assert f"takes {needed}: create the pod again" in planned.uncounted[Owner("a", "c0")]
    assert not planned.refusals
    assert node.holds("a")


@pytest.mark.parametrize(
    ("wish", "resource", "amount"),
    [
        pytest.param(TWO, ISOLATED, 2, id="as many"),
        pytest.param(TWO, ISOLATED, "3", id="more"),
        pytest.param(Wish("3", smt="require"), WHOLE, 2, id="require"),
        pytest.param(Wish("2", smt="prefer", policy="exclusive"), ISOLATED, 0, id="prefer"),
        pytest.param(Wish("2", smt="isolate", policy="share"), ISOLATED, 0, id="share"),
        pytest.param(Wish("2", policy="exclusive"), ISOLATED, 0, id="the node's default"),
        pytest.param(Wish(cores=2, smt="isolate"), ISOLATED, 0, id="CMK's resource"),
    ],
)
def test_other_claims_are_not_uncounted(wish: Wish, resource: str, amount: object) -> None:
    """A claim is not uncounted if its resource is requested, or if the webhook adds none for it."""
    node = node_of(refuse=True, smt_policy=SMTPolicy.ISOLATE)
    node.add("a", [wish])
    count(node, "a", resource, amount)
    planned = node.plan()
    assert (planned.uncounted, planned.refusals) == ({}, ())
    assert node.holds("a")


@pytest.mark.parametrize("kinds", [frozenset(), frozenset({SMTPolicy.REQUIRE})], ids=["none", "require"])
def test_only_listed_kinds_are_expected_to_be_counted(kinds: frozenset[SMTPolicy]) -> None:
    """A claim without its resource is uncounted only if its policy is in `countedClaims`."""
    node = node_of(kinds, refuse=True)
    node.add("a", [TWO])
    assert node.plan().uncounted == {}


def test_static_pods_and_launchers_are_never_uncounted() -> None:
    """Static pods, which no webhook sees, and VMs, whose CPUs KubeVirt counts, are never uncounted."""
    node = node_of(refuse=True)
    node.add("static", [TWO])
    node.documents["static"]["metadata"]["annotations"] |= {
        "kubernetes.io/config.mirror": "abc",
        "kubernetes.io/config.hash": "abc",
    }
    node.add("vm", [TWO], vm=True)
    planned = node.plan()
    assert (planned.uncounted, planned.refusals) == ({}, ())
    assert node.holds("abc")
    assert node.holds("vm", "compute")


def test_label_alone_makes_no_launcher() -> None:
    """A user may write KubeVirt's label on any pod, so a container that is not the machine's still counts as uncounted."""
    node = node_of(refuse=True)
    node.add("a", [TWO])
    node.documents["a"]["metadata"]["labels"] = {"kubevirt.io": "virt-launcher"}
    assert Owner("a", "c0") in node.plan().uncounted


def test_new_claim_is_refused_where_the_operator_says_so() -> None:
    """With `uncountedClaims: refuse` a new uncounted claim is refused, and served if the pod is created with the resource."""
    node = node_of(refuse=True)
    node.add("a", [TWO])
    (refusal,) = node.run_all().refusals
    assert (refusal.reason, refusal.blocks_start) == (Reason.UNCOUNTED, True)
    assert refusal.message.startswith(f"it requests 0 {ISOLATED}, and smt-policy isolate takes 2: create the")
    assert node.holds("a") == ""
    node.add("b", [TWO])
    count(node, "b", ISOLATED, 2)
    node.run_all()
    assert node.holds("b") == "1-2 idle 9-10"


def test_container_that_holds_cpus_keeps_them() -> None:
    """An uncounted container that already holds CPUs keeps them, and may be resized."""
    node = node_of()
    node.create("a", [TWO])
    node.config = node_of(refuse=True).config
    planned = node.run_all()
    assert (node.holds("a"), planned.refusals) == ("1-2 idle 9-10", ())
    assert Owner("a", "c0") in planned.uncounted
    assert not edit(node, "a", Wish("3", smt="isolate")).refusals
    assert node.holds("a") == "1-3 idle 9-11"


@pytest.mark.parametrize("before", ["exclusive", "share"])
def test_edit_to_isolate_takes_no_uncounted_cores(before: str) -> None:
    """After an edit to `isolate` without the resource the container keeps its CPUs."""
    node = node_of(refuse=True)
    node.add("a", [Wish("2", policy=before)])
    node.start("a", "c0")
    node.run_all()
    held = node.holds("a")
    (refusal,) = edit(node, "a", Wish("2", policy="exclusive", smt="isolate")).refusals
    assert (refusal.reason, refusal.blocks_start) == (Reason.UNCOUNTED, False)
    assert refusal.message.endswith("; until then it keeps CPUs 1,9 under prefer")
    assert node.holds("a") == held == "1,9"


def test_count_follows_no_resize() -> None:
    """A resized container keeps its claim, and is reported, because its counted request is still that of its creation."""
    node = node_of(refuse=True)
    node.add("a", [TWO])
    count(node, "a", ISOLATED, 2)
    node.run_all()
    node.documents["a"]["status"] = {
        "containerStatuses": [{"name": "c0", "allocatedResources": {"cpu": "4"}}]
    }
    planned = node.run_all()
    assert "requests 2 corepin.io/isolated-cores, and smt-policy isolate takes 4" in "".join(
        planned.uncounted.values()
    )
    assert (node.holds("a"), planned.refusals) == ("1-4 idle 9-12", ())


def test_observing_agent_counts_nothing() -> None:
    """In observe mode no claim is uncounted, because another program allocates the CPUs."""
    node = node_of(refuse=True, observe=True)
    node.add("a", [TWO])
    planned = node.plan()
    assert planned.uncounted == {}
    assert {refusal.reason for refusal in planned.refusals} == {Reason.OBSERVING}
