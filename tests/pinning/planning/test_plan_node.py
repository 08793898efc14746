"""The plan of a node: hotplug, deleted pods, virtual machines, pools and isolated CPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pinning.contract import NUMAPolicy, SMTPolicy
from pinning.machine.cpuset import CPUSet
from pinning.planning.node_config import StaticPools
from pinning.planning.observed import Observed, Owner, SeenPod, State
from pinning.planning.plan import plan
from pinning.planning.start_table import Start, start_table
from pinning.pods.identity import CONFIG_HASH
from tests.pinning.world import EXCLUSIVE, Wish, World, edit, one_pod, reasons, world

# CPUs that go offline and come online again.


def test_an_offline_cpu_is_replaced_at_once_by_the_nearest() -> None:
    """An offline CPU is replaced by a near one, other CPUs stay, and nothing changes when it comes online again."""
    node = one_pod(Wish("2", policy="exclusive"), sockets=2)
    assert not node.hotplug(CPUSet.parse("0-8,10-15")).refusals
    assert node.holds("a") == "1-2"
    node.set_online(CPUSet.parse("0-15"))
    assert not node.run_all().actions or node.holds("a") == "1-2"
    assert node.holds("a") == "1-2"


def test_a_sibling_that_comes_back_idles_for_the_owner_of_its_core() -> None:
    """When a sibling comes online it belongs to the owner of its core again, and a CMK container gets it too."""
    for wish, expected in ((Wish("2", smt="require"), "1-2 idle 9-10"), (Wish(cores=1), "1,9")):
        node = one_pod(wish)
        node.hotplug(CPUSet.parse("0-8,10-15"))
        assert not node.hotplug(CPUSet.parse("0-15")).refusals
        assert node.holds("a") == expected


def test_without_a_free_cpu_it_keeps_the_rest() -> None:
    """If no CPU is free to replace an offline one there is a refusal, until a CPU becomes free."""
    node = one_pod(Wish("6", policy="exclusive"), cores=4)
    planned = node.hotplug(CPUSet.parse("0-5,7"))
    assert (node.holds("a"), reasons(planned)) == ("1-3,5,7", {"test/pod-a/c0": "KeepsFewerCPUs"})
    assert not node.hotplug(CPUSet.parse("0-7")).refusals
    assert node.holds("a") == "1-3,5-7"


def test_with_nothing_left_it_goes_to_the_shared_set() -> None:
    """If all CPUs of a container are offline it runs in the shared set with a refusal, until CPUs are online again."""
    node = one_pod(EXCLUSIVE, cores=2)
    planned = node.hotplug(CPUSet.parse("0,2"))
    assert (node.holds("a"), reasons(planned)) == ("", {"test/pod-a/c0": "NotEnoughCPUs"})
    assert node.live()[0].cpus == CPUSet.parse("0,2")
    assert not node.hotplug(CPUSet.parse("0-3")).refusals
    assert node.holds("a") == "1,3"


def test_an_isolated_core_goes_on_with_its_other_thread() -> None:
    """If the CPU of an isolated container goes offline, it gets the idle sibling of that CPU."""
    node = one_pod(Wish("1", smt="isolate"), cores=2)
    assert not node.hotplug(CPUSet.parse("0,2-3")).refusals
    assert node.holds("a") == "3"


def test_owners_give_back_when_the_shared_set_goes_offline() -> None:
    """If all shared CPUs go offline, the most recently pinned container with only `exclusive` releases its CPUs."""
    node = world(4)
    node.add("v", [Wish("1")], vm=True)
    node.add("c", [Wish(cores=1)])
    node.add("b", [Wish("1", policy="exclusive")])
    node.add("a", [Wish("2", policy="exclusive")])
    node.start("v", "compute")
    node.run_all()
    assert [node.holds("v", "compute"), *map(node.holds, "cba")] == ["1", "2,6", "5", "3,7"]
    planned = node.hotplug(CPUSet.parse("1-3,5-7"))
    assert reasons(planned) == {"test/pod-a/c0": "SharedSetWouldBeEmpty"}
    assert [node.holds("v", "compute"), *map(node.holds, "cba")] == ["1", "2,6", "5", ""]


def test_the_last_cpu_beside_a_strict_reserve_stays_shared() -> None:
    """On four cores with a strict reserve of one, five CPUs can be owned and the sixth stays shared."""
    node = one_pod(Wish("5", policy="exclusive"), cores=4, strict_reserved=True)
    assert (node.holds("a"), str(node.plan().shared)) == ("1-3,5-6", "7")
    planned = edit(node, "a", Wish("6", policy="exclusive"))
    assert reasons(planned) == {"test/pod-a/c0": "KeepsFewerCPUs"}
    assert node.holds("a") == "1-3,5-6"


@pytest.mark.parametrize("is_strict", [False, True])
def test_system_containers_run_on_the_reserved_cpus(is_strict: bool) -> None:
    """System containers run only on the reserved CPUs unless they own CPUs; with a strict reserve no others run there."""
    node = world(4, strict_reserved=is_strict, system_namespaces=("kube-*",))
    for uid, namespace in (("a", "kube-system"), ("b", "test")):
        node.add(uid, [Wish(), EXCLUSIVE], namespace=namespace)
        for name in ("c0", "c1"):
            node.start(uid, name)
    node.run_all()
    shared = "3,7" if is_strict else "0,3-4,7"
    ran = {f"{it.owner.pod_uid} {it.owner.container}": str(it.cpus) for it in node.live()}
    assert ran == {"a c0": "0,4", "a c1": "1,5", "b c0": shared, "b c1": "2,6"}
    table = start_table(node.plan(), node.observe())
    unseen = Owner("new", "c0")
    assert table.start(unseen, claims=False, namespace="kube-system") == Start(CPUSet.parse("0,4"))
    assert table.start(unseen, claims=False, namespace="test") == Start(CPUSet.parse(shared))
    assert table.corrected(unseen, "new", "0-7", namespace="kube-public") == CPUSet.parse("0,4")

    node.config = replace(node.config, system_namespaces=())
    node.run_all()
    assert str(next(it.cpus for it in node.live() if it.owner == Owner("a", "c0"))) == shared


def test_a_refused_claim_of_a_system_container_names_the_reserved_cpus() -> None:
    """If the claim of a system container is refused it runs on the reserved CPUs, and the refusal says so."""
    node = world(4, system_namespaces=("kube-*",))
    node.add("a", [Wish("9", policy="exclusive")], namespace="kube-system")
    node.start("a", "c0")
    (refusal,) = node.run_all().refusals
    assert refusal.message.endswith("until then it runs on the reserved CPUs 0,4")
    assert node.live()[0].cpus == CPUSet.parse("0,4")


def test_system_containers_share_while_the_reserve_is_offline() -> None:
    """While the reserve is offline system containers run in the shared set, because a cpuset must not be empty."""
    node = world(4, system_namespaces=("test",))
    node.add("a", [Wish()])
    node.start("a", "c0")
    node.set_online(CPUSet.parse("1-3,5-7"))
    table = start_table(node.run_all(), node.observe())
    assert str(node.live()[0].cpus) == "1-3,5-7"
    assert table.start(Owner("new", "c0"), claims=False, namespace="test") == Start(CPUSet.parse("1-3,5-7"))


def test_a_reserve_that_becomes_strict_moves_an_owner_only_if_all_else_is_owned() -> None:
    """If a reserve becomes strict and all other CPUs are owned, the newest owner releases its CPUs; else all keep theirs."""
    full = one_pod(Wish("6", policy="exclusive"), cores=4)
    full.config = replace(full.config, strict_reserved=True)
    assert reasons(full.run_all()) == {"test/pod-a/c0": "SharedSetWouldBeEmpty"}
    assert full.live()[0].cpus == CPUSet.parse("1-3,5-7")

    roomy = one_pod(Wish("3", policy="exclusive"), cores=4)
    before = roomy.holds("a")
    roomy.config = replace(roomy.config, strict_reserved=True)
    assert not roomy.run_all().refusals
    assert roomy.holds("a") == before


# Deleted pods, and unknown ones.


@pytest.mark.parametrize(
    ("pods_complete", "runs", "freed"),
    [
        pytest.param(True, State.EXITED, True, id="gone everywhere"),
        pytest.param(True, State.RUNNING, False, id="force-deleted, still running"),
        pytest.param(True, State.CREATED, False, id="may start at any moment"),
        pytest.param(False, State.EXITED, False, id="the API is out of reach"),
    ],
)
def test_cpus_are_freed_when_the_pod_is_gone(pods_complete: bool, runs: State, freed: bool) -> None:
    """CPUs are freed if neither the API server nor the runtime has the pod, and the list of pods is complete."""
    node = one_pod(EXCLUSIVE)
    del node.documents["a"]
    node.api_answers = pods_complete
    number = next(iter(node.containers))
    node.containers[number] = replace(node.containers[number], state=runs)
    node.run_all()
    assert (node.holds("a") == "") is freed


def test_an_incomplete_container_list_frees_no_cpus() -> None:
    """CPUs are not freed while the runtime's list of containers is incomplete."""
    node = one_pod(EXCLUSIVE)
    seen = Observed(node.topology, node.topology.online, containers_complete=False)
    assert plan(seen, node.ledger, node.config).ledger == node.ledger


def test_a_pod_in_a_final_phase_gives_its_cpus_back() -> None:
    """A pod in a final phase holds no CPUs, even if the API server still has it."""
    node = one_pod(EXCLUSIVE)
    node.documents["a"]["status"] = {"phase": "Succeeded"}
    node.stop(next(iter(node.containers)))
    node.run_all()
    assert node.holds("a") == ""


def test_a_container_restart_keeps_its_cpus() -> None:
    """A restarted container has the same CPUs as before."""
    node = one_pod(EXCLUSIVE)
    node.stop(next(iter(node.containers)))
    assert node.run_all().ledger.of(Owner("a", "c0"))
    number = node.start("a", "c0", State.CREATED)
    node.run_all()
    assert node.containers[number].cpus == CPUSet.parse("1,9")


def test_an_unknown_container_is_put_into_the_shared_set() -> None:
    """An unknown container is moved to the shared set, and the plan lists its pod as one to look up."""
    node = one_pod(EXCLUSIVE)
    number = node.start("stranger", "x")
    node.run_all()
    assert node.containers[number].cpus == CPUSet.parse("0,2-8,10-15")
    assert node.observe().live_uids - node.observe().known_uids == {"stranger"}


def test_a_static_pod_is_known_by_its_manifest() -> None:
    """The runtime knows a static pod by its config hash; in a pod without the mirror annotation the hash is ignored."""
    annotations = {CONFIG_HASH: "abc", "kubernetes.io/config.mirror": "abc"}
    assert SeenPod.of({"metadata": {"uid": "u", "annotations": annotations}}).uid == "abc"
    assert SeenPod.of({"metadata": {"uid": "u", "annotations": {CONFIG_HASH: "abc"}}}).uid == "u"


def test_of_two_pods_with_one_uid_the_older_counts() -> None:
    """If two pods have the same uid, the older one keeps its CPUs."""
    node = one_pod(EXCLUSIVE)
    young = SeenPod.of(node.documents["a"])  # type: ignore[arg-type]
    young = replace(young, claims=(), created="2027-01-01T00:00:00Z")
    seen = replace(node.observe(), pods=(young, *node.observe().pods))
    assert plan(seen, node.ledger, node.config).ledger == node.ledger


# Virtual machines.


def running_vm(cpu: str = "2") -> World:
    """Return a node with a KubeVirt VM that runs."""
    node = world()
    node.add("v", [Wish(cpu)], vm=True)
    node.start("v", "compute")
    node.run_all()
    return node


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        pytest.param(Wish("2", smt="isolate"), {"test/pod-v/compute": "RunningVM"}, id="another policy"),
        pytest.param(Wish("1"), {"test/pod-v/compute": "RunningVM"}, id="fewer CPUs"),
        pytest.param(Wish("2", policy="none"), {"test/pod-v/compute": "RunningVM"}, id="none"),
        pytest.param(Wish("2", policy="share"), {"test/pod-v/compute": "RunningVM"}, id="share"),
    ],
)
def test_a_running_vm_never_moves(wish: Wish, expected: dict[str, str]) -> None:
    """A running VM keeps its CPUs, because libvirt has pinned its vCPUs; edits take effect after it stops."""
    node = running_vm()
    assert reasons(edit(node, "v", wish, vm=True)) == expected
    assert node.holds("v", "compute") == "1,9"
    node.stop(next(iter(node.containers)))
    assert not node.run_all().refusals
    assert node.holds("v", "compute") != "1,9" or wish.policy == "share"


def test_a_running_vm_grows_and_loses_offline_cpus() -> None:
    """If a running VM grows its CPUs do not move, and an offline CPU is replaced."""
    node = running_vm()
    assert not edit(node, "v", Wish("4"), vm=True).refusals
    assert node.holds("v", "compute") == "1-2,9-10"
    assert not node.hotplug(CPUSet.parse("0-8,10-15")).refusals
    assert node.holds("v", "compute") == "1-3,10"


# Pools and isolated CPUs.


def test_claims_come_from_their_pools() -> None:
    """Claims by annotation and by exclusive cores use the exclusive pool, and the other resource uses its own list."""
    pools = StaticPools(exclusive_cores=2, shared_cores=1, exclusive_non_isolcpus=CPUSet([6]))
    node = world(pools=pools)
    node.add("a", [EXCLUSIVE])
    node.add("b", [Wish(cores=1)])
    node.add("c", [Wish("1", policy="exclusive")])
    node.add("d", [Wish(cores=1)])
    limits = {"cmk.intel.com/exclusive-non-isolcpus-cores": 1}
    node.documents["d"]["spec"]["containers"][0]["resources"] = {"limits": limits, "requests": limits}
    assert reasons(node.run_all()) == {"test/pod-c/c0": "NotEnoughCPUs"}
    assert [*map(node.holds, "abd")] == ["1,9", "2,10", "6,14"]
    assert str(node.sets.shared(node.ledger)) == "0,4-5,7-8,12-13,15"


def test_shared_work_stays_off_idle_cores_of_static_pools() -> None:
    """With static pools claims do not change the shared set, and no other container uses a core that is claimed by half."""
    node = world(pools=StaticPools(exclusive_cores=2, shared_cores=1))
    number = node.start("stranger", "x")
    node.run_all()
    assert str(node.containers[number].cpus) == "0,4-8,12-15"
    node.add("a", [Wish("1", policy="exclusive")])
    assert not node.run_all().actions
    assert node.holds("a") == "1"
    assert str(node.containers[number].cpus) == "0,4-8,12-15"


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        pytest.param(Wish(cores=1), "5,13", id="CMK cores"),
        pytest.param(Wish("2", smt="require"), "5,13", id="require"),
        pytest.param(Wish("1", smt="isolate"), "5 idle 13", id="isolate"),
        pytest.param(Wish("2", policy="exclusive"), "1,9", id="plain exclusive: balanced CPUs first"),
        pytest.param(Wish("14", policy="exclusive"), "1-7,9-15", id="plain exclusive: isolated ones at last"),
        pytest.param(Wish("2", policy="share"), "1,9", id="share: never isolated"),
    ],
)
def test_isolated_cores(wish: Wish, expected: str) -> None:
    """Claims of whole cores get isolated cores first, and all other claims CPUs that the kernel balances."""
    node = one_pod(wish, isolated="5,13")
    assert node.holds("a") == expected
    assert str(node.sets.common) == "0-4,6-12,14-15"


@pytest.mark.parametrize("first", [0, 1, 4])
@pytest.mark.parametrize("more", range(1, 14))
def test_isolated_cpus_do_where_the_shared_set_has_no_reserved_one(first: int, more: int) -> None:
    """If the reserved core is in isolcpus a claim gets isolated CPUs instead of the shared set's last CPU."""
    node = world(isolated="0,5,8,13")
    wishes = {"a": Wish(str(first), policy="exclusive"), "b": Wish(str(more), policy="exclusive")}
    for name, wish in wishes.items():
        if wish.cpu != "0":
            node.add(name, [wish])
            node.start(name, "c0")
    planned = node.run_all()
    fits = first + more < len(node.sets.allocatable)
    assert reasons(planned) == ({} if fits else {"test/pod-b/c0": str(planned.refusals[0].reason)})
    assert node.sets.shared(node.ledger)


def test_a_claim_that_grows_leaves_the_shared_set_its_last_cpu_too() -> None:
    """A claim that grows gets isolated CPUs instead of the shared set's last CPU, like a new claim."""
    node = one_pod(Wish("2", policy="exclusive"), isolated="0,5,8,13")
    assert not edit(node, "a", Wish("12", policy="exclusive")).refusals
    assert node.holds("a") == "1-6,9-14"


@pytest.mark.parametrize(
    ("numa", "sort", "expected"),
    [
        pytest.param(None, "packed", "1-2,9-10", id="packed"),
        pytest.param(None, "spread", "1,4,9,12", id="spread over sockets, as CMK's mode"),
        pytest.param("distributed", "packed", "1,4,9,12", id="distributed"),
        pytest.param("single", "packed", "1-2,9-10", id="single: the first node that fits"),
    ],
)
def test_where_cmk_cores_lie(numa: str | None, sort: str, expected: str) -> None:
    """CMK's modes and corepin's NUMA policies choose among whole cores."""
    assert one_pod(Wish(cores=2, numa=numa), sockets=2, sort=sort).holds("a") == expected


def test_cmk_cores_on_one_node_or_not_at_all() -> None:
    """Under `single` CMK's cores are on the NUMA node that has enough; if none has, the claim is refused."""
    node = one_pod(Wish(cores=4, numa="single"), sockets=2)
    assert node.holds("a") == "4-7,12-15"
    planned = edit(node, "a", Wish(cores=5, numa="single"))
    assert reasons(planned) == {"test/pod-a/c0": "KeepsFewerCPUs"}


def test_defaults_of_the_node_fill_in() -> None:
    """The node's SMT and NUMA policies apply to claims without policies of their own."""
    node = one_pod(EXCLUSIVE, smt_policy=SMTPolicy.ISOLATE, numa_policy=NUMAPolicy.SINGLE)
    (held,) = node.ledger
    assert node.holds("a") == "1-2 idle 9-10"
    assert (held.smt, held.numa, held.claim.smt) == (SMTPolicy.ISOLATE, NUMAPolicy.SINGLE, None)
