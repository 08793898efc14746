"""The plan for claims: edited policies as with Crane, claims that do not fit, resizes."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest

from pinning.machine.cpuset import CPUSet
from pinning.planning.plan import plan
from pinning.planning.refusal import Reason
from tests.pinning.nodes import smt_machine
from tests.pinning.world import EXCLUSIVE, Wish, edit, one_pod, reasons, world
from tests.tables import table

# Crane's transitions.


@pytest.mark.parametrize("first", ["none", "share", "exclusive"])
@pytest.mark.parametrize("then", ["none", "share", "exclusive"])
def test_cranes_transitions(first: str, then: str) -> None:
    """A change from exclusive to share and back keeps the CPUs, on which others run exactly while the policy is share."""
    node = one_pod(Wish("2", policy=first))
    bystander = node.start("n", "c0")
    before = node.holds("a")
    node.run_all()
    assert not edit(node, "a", Wish("2", policy=then)).refusals
    assert node.holds("a") == ("" if then == "none" else before or "1,9")
    bystander_cpus = str(node.containers[bystander].cpus)
    assert bystander_cpus == ("0,2-8,10-15" if then == "exclusive" else "0-15")


def test_freed_cpus_are_usable_in_the_same_pass() -> None:
    """In one plan CPUs that one pod releases are assigned to a waiting pod."""
    node = one_pod(Wish("6", policy="exclusive"), cores=4)
    node.add("b", [EXCLUSIVE])
    assert reasons(node.run_all()) == {"test/pod-b/c0": "NotEnoughCPUs"}
    assert not edit(node, "a", Wish("4", policy="exclusive")).refusals
    assert (node.holds("a"), node.holds("b")) == ("1-2,5-6", "3,7")


def test_a_plan_is_freed_without_the_garbage_collector() -> None:
    """A plan has no reference cycle, which would keep all claims in memory and make the garbage collector visit them."""
    node = one_pod(Wish("2", policy="exclusive"))
    node.run_all()
    gc.collect()
    gc.disable()
    try:
        node.plan()
        assert gc.collect() == 0
    finally:
        gc.enable()


# Refusals of claims that do not fit.


def test_a_plain_claim_that_does_not_fit_starts_in_the_shared_set() -> None:
    """As with Crane, a claim with only `exclusive` that does not fit is reported, and starts in the shared set."""
    node = one_pod(Wish("9", policy="exclusive"), cores=4)
    planned = node.plan()
    (refusal,) = planned.refusals
    assert refusal.reason is Reason.NOT_ENOUGH
    assert not refusal.blocks_start
    assert refusal.message.endswith("; until then it runs in the shared set")
    assert node.live()[0].cpus == node.topology.online


@table(
    "wish, remedy",
    {
        "fits when empty": (Wish("12", policy="exclusive"), "wait until a container frees some"),
        "CPUs": (Wish("15", policy="exclusive"), "this one has only 14"),
        "cores of isolate": (Wish("8", smt="isolate"), "this one has only 7"),
        "cores of CMK": (Wish(cores=8), "this one has only 7"),
        "one NUMA node": (Wish("9", smt="require", numa="single"), "this one has only 8"),
        "a whole one": (Wish("8", smt="require", numa="single"), "wait until a container frees some"),
    },
)
def test_waiting_is_advised_only_where_it_helps(wish: Wish, remedy: str) -> None:
    """A refusal suggests to wait only if the claim would fit on the node without other pods."""
    node = world(8, 2)
    for uid, cpu in (("far", "5"), ("near", "2")):
        node.add(uid, [Wish(cpu, policy="exclusive")])
    node.run_all()
    node.add("wants", [wish])
    (refusal,) = node.plan().refusals
    assert remedy in refusal.message


@table(
    "wish, advised",
    {
        "CPUs": (Wish("2", smt="isolate"), True),
        "cores of CMK": (Wish(cores=2, smt="isolate"), False),
    },
)
def test_prefer_is_advised_only_where_it_helps(wish: Wish, advised: bool) -> None:
    """A refusal of CMK's cores does not suggest `prefer`, under which they are whole cores too."""
    node = world(4)
    node.create("a", [Wish("3", policy="exclusive")])
    node.add("b", [wish])
    (refusal,) = node.plan().refusals
    assert "found 1, and 1 with busy siblings: ask for at most 1" in refusal.message
    assert ("choose smt-policy prefer" in refusal.message) is advised


@table(
    "wish, vm",
    {
        "require": (Wish("9", smt="require"), False),
        "isolate": (Wish("4", smt="isolate"), False),
        "CMK cores": (Wish(cores=4), False),
        "launcher": (Wish("9"), True),
    },
)
def test_a_claim_that_must_fit_blocks_the_start(wish: Wish, vm: bool) -> None:
    """Containers with whole cores, CMK's resources or virtual machines do not start unpinned if their claim does not fit."""
    node = world(4)
    node.add("a", [wish], vm=vm)
    (refusal,) = node.plan().refusals
    assert refusal.blocks_start
    assert "until then it runs in the shared set, because corepin cannot hold it back" in refusal.message


def test_refusal_says_both_where_it_is_not_known_whether_starts_are_held_back() -> None:
    """A plan of files does not know whether the node has NRI."""
    node = world(4)
    node.add("a", [Wish("4", smt="isolate")])
    observed = replace(node.observe(), holds_starts=None)
    (refusal,) = plan(observed, node.ledger, node.config).refusals
    assert refusal.message.endswith(
        "; until then it is not started on a node with NRI; on one without, it runs in the shared set"
    )


def test_refusal_names_the_gate_until_the_container_runs() -> None:
    """The refusal mentions the gate until the container runs."""
    node = world(4)
    node.add("a", [Wish("4", smt="isolate")])
    node.documents["a"]["spec"]["initContainers"] = [{"name": "corepin-gate"}]
    (refusal,) = node.plan().refusals
    assert refusal.blocks_start
    assert refusal.message.endswith("; until then the pod waits in its init container corepin-gate")
    node.start("a", "c0")
    (refusal,) = node.plan().refusals
    assert refusal.message.endswith("runs in the shared set, because corepin cannot hold it back")


def test_refused_claims_are_retried_oldest_first() -> None:
    """Of the waiting claims the oldest one that fits gets free CPUs, whatever the order of the pod list."""
    node = one_pod(Wish("6", policy="exclusive"), cores=4)
    for uid, cpu in (("c", "5"), ("b", "4"), ("d", "2")):
        node.add(uid, [Wish(cpu, policy="exclusive")])
    assert len(node.run_all().refusals) == 3
    planned = edit(node, "a", Wish("1", policy="exclusive"))
    assert (node.holds("c"), node.holds("b"), node.holds("d")) == ("2-3,5-7", "", "")
    assert reasons(planned) == {"test/pod-b/c0": "NotEnoughCPUs", "test/pod-d/c0": "NotEnoughCPUs"}


def test_the_last_shared_cpu_is_never_given_out() -> None:
    """A claim that would take the last CPU of the shared set is refused."""
    node = world(4, isolated="0,4")
    node.add("a", [Wish("6", policy="exclusive")])
    assert reasons(node.plan()) == {"test/pod-a/c0": "SharedSetWouldBeEmpty"}
    del node.documents["a"]
    node.add("b", [Wish("6", policy="share")])
    assert not node.plan().refusals
    assert node.holds("b") == "1-3,5-7"
    planned = edit(node, "b", Wish("6", policy="exclusive"))
    assert reasons(planned)["test/pod-b/c0"] == "SharedSetWouldBeEmpty"
    assert "it stays share" in planned.refusals[-1].message
    assert node.sets.shared(node.ledger) == CPUSet.parse("1-3,5-7")


def test_an_invalid_annotation_is_a_refusal() -> None:
    """For an annotation that the webhook would refuse, the plan has a refusal; the pod's other claims are served."""
    node = world()
    node.add("a", [Wish("2", policy="exclusiv"), EXCLUSIVE])
    (refusal,) = node.plan().refusals
    assert (refusal.name, refusal.reason) == ("test/pod-a", Reason.INVALID)
    assert "'exclusiv' is not a policy" in refusal.message
    assert node.holds("a", "c1") == "1,9"


# Sizes and policies that change.


@table(
    "first, then, expected",
    {
        "grow": (Wish("2", policy="exclusive"), Wish("4", policy="exclusive"), "1-2,9-10"),
        "shrink": (Wish("4", policy="exclusive"), Wish("2", policy="exclusive"), "1,9"),
        "shrink and share": (Wish("4", policy="exclusive"), Wish("2", policy="share"), "1,9"),
        "grow onto its own idle": (Wish("3", smt="require"), Wish("4", smt="require"), "1-2,9-10"),
        "more isolated": (Wish("2", smt="isolate"), Wish("3", smt="isolate"), "1-3 idle 9-11"),
        "fewer isolated": (Wish("3", smt="isolate"), Wish("2", smt="isolate"), "1-2 idle 9-10"),
        "more CMK cores": (Wish(cores=1), Wish(cores=2), "1-2,9-10"),
        "fewer CMK cores": (Wish(cores=2), Wish(cores=1), "1,9"),
        "CMK cores, siblings idle": (Wish(cores=2), Wish(cores=2, smt="isolate"), "1-2 idle 9-10"),
        "CMK cores, siblings back": (Wish(cores=2, smt="isolate"), Wish(cores=2), "1-2,9-10"),
        "isolate to prefer": (Wish("2", smt="isolate"), Wish("2", smt="prefer", policy="exclusive"), "1-2"),
        "prefer to require": (Wish("3", policy="exclusive"), Wish("3", smt="require"), "1-2,9 idle 10"),
        "share to isolate": (Wish("2", policy="share"), Wish("2", smt="isolate"), "1-2 idle 9-10"),
        "packed to single": (
            Wish("2", policy="exclusive"),
            Wish("2", policy="exclusive", numa="single"),
            "1,9",
        ),
    },
)
def test_a_container_keeps_what_it_can(first: Wish, then: Wish, expected: str) -> None:
    """After a resize or an edited policy a container keeps as many of its CPUs as the new claim allows."""
    node = one_pod(first)
    assert not edit(node, "a", then).refusals
    assert node.holds("a") == expected


@pytest.mark.parametrize(("numa", "distribute"), [("distributed", False), ("packed", True)])
def test_growth_is_split_like_a_new_claim(numa: str, distribute: bool) -> None:
    """A claim that grows onto a second NUMA node has half of its CPUs on each, including its old ones."""
    node = one_pod(Wish("2", policy="exclusive", numa=numa), sockets=2, distribute=distribute)
    assert node.holds("a") == "4,12"
    assert not edit(node, "a", Wish("12", policy="exclusive", numa=numa)).refusals
    assert node.holds("a") == "1-6,9-14"


def test_growth_that_does_not_fit_keeps_what_there_is() -> None:
    """If too few CPUs are free to grow, the container keeps its CPUs with a refusal, and grows once they are free."""
    node = one_pod(Wish("4", policy="exclusive"), cores=4)
    node.create("b", [EXCLUSIVE])
    planned = edit(node, "a", Wish("6", policy="exclusive"))
    assert reasons(planned) == {"test/pod-a/c0": "KeepsFewerCPUs"}
    assert "it keeps CPUs 1-2,5-6" in planned.refusals[0].message
    del node.documents["b"]
    assert not node.run_all().refusals
    assert node.holds("a") == "1-3,5-7"


def test_an_isolated_container_grows_by_free_cores() -> None:
    """An isolated container resized from 2 to 3 gets the third core once it is free, with a refusal until then."""
    node = one_pod(Wish("2", smt="isolate"), cores=4)
    node.create("b", [Wish("1", policy="exclusive")])
    planned = edit(node, "a", Wish("3", smt="isolate"))
    assert node.holds("a") == "1-2 idle 5-6"
    (refusal,) = planned.refusals
    assert refusal.reason is Reason.KEEPS_FEWER
    assert not refusal.blocks_start
    assert refusal.message.startswith("wanted 3 wholly free cores, found 2")
    assert "wait until a container frees some; until then it keeps CPUs 1-2" in refusal.message
    del node.documents["b"]
    assert not node.run_all().refusals
    assert node.holds("a") == "1-3 idle 5-7"


def test_prefer_takes_cpus_that_the_kernel_balances_first() -> None:
    """An exclusive claim gets CPUs in `isolcpus`, which the kernel does not balance, only if too few others are free."""
    assert one_pod(EXCLUSIVE, cores=4, isolated="1,5").holds("a") == "2,6"
    assert one_pod(Wish("6", policy="exclusive"), cores=5, isolated="1,6").holds("a") == "2-4,7-9"
    assert one_pod(Wish("6", policy="exclusive"), cores=5, isolated="1,2,6,7").holds("a") == "1-3,6-8"


def test_growth_never_takes_the_last_shared_cpu() -> None:
    """A claim whose growth would empty the shared set keeps its CPUs."""
    node = one_pod(Wish("4", policy="exclusive"), cores=4, isolated="0,4")
    planned = edit(node, "a", Wish("6", policy="exclusive"))
    assert reasons(planned) == {"test/pod-a/c0": "KeepsFewerCPUs"}
    assert node.holds("a") == "1-2,5-6"


@table(
    "isolated, cpu, message",
    {
        "no free cores": ("", "4", "wanted 4"),
        "the shared set would be empty": ("0,4", "3", "no CPU would be left"),
    },
)
def test_a_policy_that_does_not_fit_leaves_the_old_set(isolated: str, cpu: str, message: str) -> None:
    """If an edited SMT policy cannot be satisfied the container keeps its CPUs, and gets a refusal."""
    node = one_pod(Wish(cpu, policy="exclusive"), cores=4, isolated=isolated)
    held = node.holds("a")
    planned = edit(node, "a", Wish(cpu, smt="isolate"))
    assert node.holds("a") == held
    assert reasons(planned) == {"test/pod-a/c0": "KeepsOldPolicy"}
    assert message in planned.refusals[0].message
    assert f"it keeps CPUs {held} under prefer" in planned.refusals[0].message


def test_shrinking_on_another_machine_than_before_keeps_all() -> None:
    """If the machine has changed so that no policy would give a container its CPUs, a resize to fewer CPUs keeps them all."""
    node = one_pod(Wish("4", policy="exclusive", numa="single"), cores=8, sockets=1)
    node.topology = smt_machine(8, sockets=8)
    planned = edit(node, "a", Wish("3", policy="exclusive", numa="single"))
    assert node.holds("a") == "1-2,9-10"
    assert reasons(planned) == {"test/pod-a/c0": "KeepsOldPolicy"}


def test_a_claim_that_turns_into_cores_leaves_shared_cores() -> None:
    """A claim that is edited to whole cores releases CPUs on cores that other containers use."""
    node = world(4)
    node.add("a", [Wish("1", policy="exclusive")])
    node.create("b", [Wish("1", policy="exclusive")])
    assert (node.holds("a"), node.holds("b")) == ("1", "5")
    assert not edit(node, "b", Wish(cores=1)).refusals
    assert node.holds("b") == "2,6"


# Init containers.


def test_init_containers_lend_their_cpus_and_sidecars_do_not() -> None:
    """Containers that start after an ordinary init container use its CPUs again; CPUs of a sidecar are not reused."""
    node = world()
    node.add(
        "a",
        [
            Wish("2", policy="exclusive", init="Always"),
            Wish("2", policy="exclusive", init=""),
            Wish("4", policy="exclusive"),
        ],
    )
    assert not node.run_all().refusals
    assert [node.holds("a", name) for name in ("c0", "c1", "c2")] == ["1,9", "2,10", "2-3,10-11"]
