"""`device-policy: require`: CPUs beside each device, or none; held ones stay as they are until that fits."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from pinning.allocation.beside import Beside
from pinning.allocation.numa import Picker
from pinning.contract import DevicePolicy, NUMAPolicy, SMTPolicy
from pinning.errors import NotEnoughCPUs
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.near import Device, cpus_near, homes_of
from pinning.planning.allocator import Allocator, EffectivePolicies
from pinning.planning.node_config import DEFAULT, NodeConfig
from pinning.planning.node_sets import node_sets
from pinning.planning.observed import DEVICES_NOT_NAMED, Observed, Owner
from pinning.planning.plan import plan
from pinning.planning.refusal import Reason
from pinning.pods.claims import Claim, Origin
from pinning.pods.resources import Role
from tests.machines import NAMES
from tests.pinning.budgets import EXCLUSIVE, budgeted, pool, put
from tests.pinning.devices import GPU, WITH_DISTANCES, given_devices, machine, random_claim, room
from tests.pinning.nodes import SNC
from tests.pinning.world import Wish, World, edit, reasons
from tests.tables import table

if TYPE_CHECKING:
    from pinning.machine.topology import Topology
    from pinning.planning.plan import Plan
    from pinning.planning.refusal import Refusal

NIC = "example.com/nic"
OWNER = Owner("a", "c0")


def fits(topology: Topology, free: CPUSet, beside: Beside, claim: Claim, policies: EffectivePolicies) -> bool:
    """Return whether some CPUs are near each device, by counting."""
    if len(beside.homes) > 1 and policies.numa is NUMAPolicy.SINGLE:
        return False
    rooms = [room(topology, free & near, claim, policies) for near in beside.near(topology)]
    is_cores = claim.origin is Origin.CMK or policies.smt is not SMTPolicy.REQUIRE
    least = (1 if is_cores else topology.smt) * (len(rooms) - 1) + 1
    return all(rooms) and sum(rooms) >= claim.count >= least


@pytest.mark.parametrize("name", [*NAMES, *WITH_DISTANCES])
def test_cpus_are_beside_each_device_or_there_are_none(name: str) -> None:
    """A claim gets CPUs beside each device whenever enough are free, and otherwise none."""
    topology, random = machine(name), Random(name)  # noqa: S311 - the same claims in every run
    allocator = Allocator(node_sets(topology, topology.online, DEFAULT), DEFAULT)
    free, running = allocator.sets.allocatable, list[CPUSet]()
    for _ in range(60):
        while running and random.random() < 0.4:
            free |= running.pop(random.randrange(len(running)))
        claim, policies = random_claim(random)
        devices = tuple(given_devices(random, topology))
        beside = Beside(homes_of(topology, devices), DevicePolicy.REQUIRE, devices)
        if not beside.is_required:
            continue
        try:
            chosen = allocator.fresh(claim, policies, free, EMPTY, beside)
        except NotEnoughCPUs:
            assert not fits(topology, free, beside, claim, policies)
            continue
        assert fits(topology, free, beside, claim, policies)
        assert beside.is_met_by(topology, chosen.cpus)
        assert chosen.cpus <= cpus_near(topology, beside.nodes)
        assert all(not near.isdisjoint(chosen.cpus) for near in beside.near(topology))
        running.append(chosen.owned)
        free -= chosen.owned


def required(cpu: str = "2", **more: Any) -> Wish:
    """Return a container that requires CPUs beside its devices."""
    return Wish(cpu, **{"policy": "exclusive", "devices": "require", **more})


def world(wish: Wish | None, *nodes: int, config: NodeConfig | None = None, vm: bool = False) -> World:
    """Return a node of four NUMA nodes with one planned pod, and devices of its container on these."""
    node = World(SNC, config or NodeConfig(reserved=CPUSet([0])))
    resources = GPU, NIC
    owner = Owner("a", "compute") if vm else OWNER
    node.devices[owner] = tuple(
        Device(resource, CPUSet([number])) for resource, number in zip(resources, nodes, strict=False)
    )
    if wish:
        node.add("a", [wish], vm=vm)
        node.start("a", owner.container)
        node.run_all()
    return node


def taken(node: World, cpus: str) -> None:
    """Let another pod hold these CPUs."""
    other = World(SNC, node.config)
    other.create("z", [Wish("1", policy="exclusive")])
    held = other.ledger.of(Owner("z", "c0"))
    assert held
    node.add("z", [Wish(str(len(CPUSet.parse(cpus))), policy="exclusive")])
    claim = replace(held.claim, count=len(CPUSet.parse(cpus)))
    node.ledger = node.ledger.assign(replace(held, cpus=CPUSet.parse(cpus), claim=claim))


def refusal(planned: Plan) -> Refusal:
    """Return the only refusal."""
    (found,) = planned.refusals
    return found


@table(
    "wish, nodes, busy, text",
    {
        "others hold them": (
            required("4"),
            [2],
            "9-10",
            "NotNear: wanted 4 free CPUs beside nvidia.com/gpu on NUMA node 2, found 2: ask for at most 2,"
            " choose device-policy prefer or wait until a container frees some",
        ),
        "too few whatever others hold": (
            required("6"),
            [2],
            "",
            "NotNear: wanted 6 free CPUs beside nvidia.com/gpu on NUMA node 2, found 4: ask for at most 4,"
            " choose device-policy prefer or find a larger node, because this one has only 4 beside its devices",
        ),
        "prefer would not help": (
            required("14"),
            [2],
            "4",
            "NotNear: wanted 14 free CPUs beside nvidia.com/gpu on NUMA node 2, found 4: ask for at most 4"
            " or find a larger node, because this one has only 4 beside its devices",
        ),
        "cores": (
            required("2", smt="isolate"),
            [2],
            "9",
            "NotNear: wanted 2 wholly free cores beside nvidia.com/gpu on NUMA node 2, found 1, and 1 with"
            " busy siblings: ask for at most 1, choose smt-policy prefer, choose device-policy prefer"
            " or wait until a container frees some",
        ),
        "single, and two nodes": (
            required("4", numa="single"),
            [0, 2],
            "",
            "NotNear: wanted 4 CPUs on one NUMA node beside example.com/nic on NUMA node 2 and nvidia.com/gpu on"
            " NUMA node 0, and none is near all of these: choose numa-policy packed or choose device-policy prefer",
        ),
        "fewer CPUs than places": (
            required("1"),
            [1, 2],
            "",
            "NotNear: wanted 1 CPU beside example.com/nic on NUMA node 2 and nvidia.com/gpu on NUMA node 1,"
            " too few for 2 groups of devices: ask for at least 2 or choose device-policy prefer",
        ),
        "nothing beside one of two": (
            required("3"),
            [1, 2],
            "8-11",
            "NotNear: wanted 3 CPUs beside example.com/nic on NUMA node 2 and nvidia.com/gpu on NUMA node 1,"
            " found none on NUMA node 2: choose device-policy prefer or wait until a container frees some",
        ),
    },
)
def test_a_claim_that_does_not_fit_names_devices_and_remedies(
    wish: Wish, nodes: list[int], busy: str, text: str
) -> None:
    """A claim that does not fit beside its devices gets no CPUs, may not start, and names devices and remedies."""
    node = world(None, *nodes)
    if busy:
        taken(node, busy)
    node.add("a", [wish])
    found = refusal(node.run_all())
    assert found.text.startswith(f"{text}; until then it runs in the shared set, because corepin cannot hold")
    assert found.blocks_start
    assert node.holds("a") == ""


@table(
    "wish, nodes, cpus",
    {
        "the device's node": (required("2"), [2], "8-9"),
        "shared claims too": (required("2", policy="share"), [2], "8-9"),
        "memory alone: the nearest node": (required("2"), [4], "12-13"),
        "a core beside each": (required("4"), [1, 2], "4-5,8-9"),
        "a CPU beside each where there are no more": (required("2"), [1, 2], "4,8"),
        "the odd CPU": (required("7"), [1, 2], "4-7,8-10"),
        "distributed": (required("4", numa="distributed"), [1, 3], "4-5,12-13"),
        "a node that the machine lacks: as without": (required("2"), [77], "2-3"),
        "no devices": (required("2"), [], "2-3"),
    },
)
def test_a_claim_that_fits(wish: Wish, nodes: list[int], cpus: str) -> None:
    """A claim that fits gets CPUs beside each of its devices."""
    assert world(wish, *nodes).holds("a") == str(CPUSet.parse(cpus))


def test_a_full_home_leaves_the_rest_to_the_other() -> None:
    """If one device's NUMA node has too few free CPUs, the other device's node gives more."""
    node = world(None, 1, 2)
    taken(node, "8-10")
    node.create("a", [required("4")])
    assert node.holds("a") == "4-6,11"


def with_limits(node: World, *names: str) -> None:
    """Let the limits of these containers of pod `a` name a device."""
    spec = node.documents["a"]["spec"]
    for container in (*spec["initContainers"], *spec["containers"]):
        if container["name"] in names:
            container["resources"]["limits"][GPU] = 1


def test_cpus_wait_until_the_devices_are_known() -> None:
    """A claim that requires devices blocks the start until the kubelet has named all of the devices."""
    node = world(None)
    del node.devices[OWNER]
    node.add("a", [required()])
    with_limits(node, "c0")
    found = refusal(node.run_all())
    assert found.text == (
        f"DevicesUnknown: {DEVICES_NOT_NAMED}; until then it runs in the shared set,"
        " because corepin cannot hold it back"
    )
    assert (found.blocks_start, node.holds("a")) == (True, "")

    observed = replace(node.observe(), devices_unknown={OWNER: "the kubelet is silent"}, holds_starts=True)
    found = refusal(plan(observed, node.ledger, node.config))
    assert found.text == "DevicesUnknown: the kubelet is silent; until then it is not started"

    part = replace(observed, devices={OWNER: (Device(NIC, CPUSet([3])),)})
    found = refusal(plan(part, node.ledger, node.config))
    assert found.text == "DevicesUnknown: the kubelet is silent; until then it is not started"
    assert (part.final_devices, observed.final_devices) == ({}, observed.devices)

    node.devices[OWNER] = (Device(GPU, CPUSet([2])),)
    assert node.run_all().refusals == ()
    assert node.holds("a") == "8-9"


def test_an_init_container_waits_for_the_devices_of_its_pod() -> None:
    """An init container waits until the devices of all other containers of its pod are known."""
    node = world(None)
    node.devices = {Owner("a", "c1"): (Device(GPU, CPUSet([3])),)}
    node.add("a", [required(init=""), required(), required()])
    with_limits(node, "c1", "c2")
    assert reasons(node.run_all()) == {
        "test/pod-a/c0": "DevicesUnknown",
        "test/pod-a/c2": "DevicesUnknown",
    }
    node.devices[Owner("a", "c2")] = (Device(GPU, CPUSet([3])),)
    assert node.run_all().refusals == ()
    assert [node.holds("a", name) for name in ("c0", "c1", "c2")] == ["12-13", "12-13", "14-15"]


def test_the_nodes_default_requires_too_and_holds_nothing_back() -> None:
    """The node's default `require` blocks no start, as with the SMT policy, and `prefer` in a pod overrides it."""
    config = NodeConfig(reserved=CPUSet([0]), device_policy=DevicePolicy.REQUIRE)
    node = world(Wish("6", policy="exclusive"), 2, config=config)
    found = refusal(node.run_all())
    assert (found.reason, found.blocks_start, node.holds("a")) == ("NotNear", False, "")
    edit(node, "a", Wish("6", policy="exclusive", devices="prefer"))
    assert node.holds("a") == "8-13"


@pytest.mark.parametrize("word", ["none", "prefer"])
def test_an_edit_without_room_keeps_the_cpus(word: str) -> None:
    """An edit to `require` without room beside the device keeps the CPUs, and moves them once there is room."""
    node = world(None, 2)
    taken(node, "8-11")
    node.add("a", [Wish("2", policy="exclusive", devices=word)])
    node.start("a", "c0")
    node.run_all()
    before = node.holds("a")
    found = refusal(edit(node, "a", required()))
    assert (found.reason, found.blocks_start, node.holds("a")) == ("KeepsOldPolicy", False, before)
    assert found.message == (
        "wanted 2 free CPUs beside nvidia.com/gpu on NUMA node 2, found 0: choose device-policy prefer or wait until"
        " a container frees some; until smt-policy prefer with numa-policy packed and device-policy require fits,"
        f" it keeps CPUs {before} under prefer with packed"
    )
    assert node.run_all().actions == ()
    del node.documents["z"]
    assert node.run_all().refusals == ()
    assert node.holds("a") == "8-9"


def test_edits_through_all_words() -> None:
    """Each edited device policy applies at once: except under `none` all CPUs are beside the device."""
    node = world(Wish("2", policy="exclusive", devices="none"), 2)
    random = Random(7)  # noqa: S311 - the same edits in every run
    for _ in range(200):
        word = random.choice(["none", "prefer", "require"])
        count = random.choice(["1", "2", "4"])
        assert edit(node, "a", Wish(count, policy="exclusive", devices=word)).refusals == ()
        held = node.ledger.of(OWNER)
        assert held
        assert held.cpus <= CPUSet(range(8, 12)) or word == "none"


def test_an_edit_before_the_devices_are_known_keeps_the_cpus() -> None:
    """An edited claim whose devices are not known yet keeps its CPUs."""
    node = world(Wish("2", policy="exclusive", devices="none"))
    del node.devices[OWNER]
    node.add("a", [required("4")])
    with_limits(node, "c0")
    found = refusal(node.run_all())
    assert found.text == f"DevicesUnknown: {DEVICES_NOT_NAMED}; until then it keeps CPUs 2-3"
    assert not found.blocks_start
    node.devices[OWNER] = (Device(GPU, CPUSet([2])),)
    assert node.run_all().refusals == ()
    assert node.holds("a") == "8-11"


def test_known_once_is_enough() -> None:
    """A container that was placed beside its devices is not refused when the devices become unknown."""
    node = world(required(), 2)
    with_limits(node, "c0")
    del node.devices[OWNER]
    assert node.run_all().refusals == ()


def test_growth_is_near_or_refused() -> None:
    """A resize takes CPUs beside the device, and what does not fit is refused; shrinking always works."""
    node = world(required("2"), 2)
    edit(node, "a", required("4"))
    assert node.holds("a") == "8-11"
    found = refusal(edit(node, "a", required("6")))
    assert (found.reason, node.holds("a")) == ("KeepsFewerCPUs", "8-11")
    assert "beside nvidia.com/gpu on NUMA node 2" in found.message
    edit(node, "a", required("1"))
    assert node.holds("a") == "8"


def test_a_shrunk_container_stays_beside_each_device() -> None:
    """A container that shrinks keeps CPUs beside each of its devices."""
    node = world(required("4"), 1, 2)
    edit(node, "a", required("2"))
    held = node.ledger.of(OWNER)
    assert held
    assert [len(held.cpus & SNC.numa_nodes[number]) for number in (1, 2)] == [1, 1]


def test_a_lost_cpu_is_replaced_near_or_not_at_all() -> None:
    """A lost CPU is replaced only by one beside the device, and not while the devices are unknown."""
    node = world(required("2"), 2)
    node.topology = SNC.with_online(SNC.online - CPUSet([9]))
    assert node.run_all().refusals == ()
    assert node.holds("a") == "8,10"
    node.topology = SNC.with_online(SNC.online - CPUSet([9, 10, 11]))
    assert refusal(node.run_all()).reason == "KeepsFewerCPUs"
    assert node.holds("a") == "8"

    node = world(required("2"), 2)
    with_limits(node, "c0")
    del node.devices[OWNER]
    node.topology = SNC.with_online(SNC.online - CPUSet([9]))
    assert refusal(node.run_all()).reason == "DevicesUnknown"
    assert node.holds("a") == "8"


def test_a_running_machine_is_not_moved() -> None:
    """An edit waits until the virtual machine has stopped."""
    node = world(Wish("2", devices="none"), 2, vm=True)
    before = node.holds("a", "compute")
    found = refusal(edit(node, "a", Wish("2", devices="require"), vm=True))
    assert (found.reason, node.holds("a", "compute")) == ("RunningVM", before)
    assert "asks for CPUs beside its devices" in found.message
    for container in node.live():
        node.stop(container.id)
    assert node.run_all().refusals == ()
    assert node.holds("a", "compute") == "8-9"


def test_another_policy_is_near_or_refused() -> None:
    """An edited SMT policy keeps the container beside its device."""
    node = world(required("2"), 2)
    edit(node, "a", required("2", smt="isolate"))
    assert node.holds("a") == "8,10 idle 9,11"
    edit(node, "a", required("2"))
    taken(node, "9")
    found = refusal(edit(node, "a", required("2", smt="isolate")))
    assert found.reason == "KeepsOldPolicy"


def test_equal_claims_that_do_not_fit_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eighty claims that never fit cost one search in a plan, and each has its refusal."""
    searches = []
    search = Allocator._search

    def counted(self: Allocator, *args: Any) -> Any:
        searches.append(args)
        return search(self, *args)

    monkeypatch.setattr(Allocator, "_search", counted)
    node = world(None)
    for number in range(80):
        node.add(f"p{number}", [required("6")])
        node.devices[Owner(f"p{number}", "c0")] = (Device(GPU, CPUSet([2])),)
    planned = node.run_all()
    assert len(planned.refusals) == 80
    assert len({refused.message for refused in planned.refusals}) == 1
    assert len(searches) == 1


def test_no_cpus_are_chosen_for_claims_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims that do not fit cost a count of free CPUs each, and no search, even if `prefer` is suggested."""
    chosen = []
    pick = Picker.pick

    def counted(self: Picker, *args: Any) -> int:
        chosen.append(args)
        return pick(self, *args)

    monkeypatch.setattr(Picker, "pick", counted)
    node = world(None)
    for number, (count, numa) in enumerate(product(range(9, 13), ("packed", "distributed"))):
        node.add(f"p{number}", [required(str(count), numa=numa)])
        node.devices[Owner(f"p{number}", "c0")] = (Device(GPU, CPUSet([2])), Device(NIC, CPUSet([3])))
    planned = node.run_all()
    assert len(planned.refusals) == 8
    assert all("choose device-policy prefer" in refused.message for refused in planned.refusals)
    assert not chosen


def test_a_pool_waits_until_the_devices_of_its_containers_are_named() -> None:
    """A pool under `require` waits until its containers' devices are known, otherwise it would be moved later."""
    node = world(None)
    words = {**EXCLUSIVE, "device-policy.corepin.io/pod": "require"}
    pod = budgeted("a", 2, {"c0": None, "log": None}, annotations=words)
    pod["spec"]["containers"][0]["resources"] = {"limits": {GPU: "1"}}
    put(node, pod)
    del node.devices[OWNER]
    refused = refusal(node.run_all())
    assert (refused.reason, refused.blocks_start) == (Reason.DEVICES_UNKNOWN, True)
    assert pool(node) == EMPTY
    node.devices[OWNER] = (Device(GPU, CPUSet([2])),)
    assert node.run_all().refusals == ()
    assert pool(node) == CPUSet.parse("8-9")


def test_devices_of_a_pod_that_is_not_shown_are_known_if_named() -> None:
    """For a pod that the API server has not shown, only devices that the kubelet named are known."""
    node = world(None)
    observed = Observed(SNC, SNC.online, devices=node.devices)
    assert observed.why_unknown(OWNER, Role.MAIN) == ""
    assert observed.why_unknown(Owner("b", "c0"), Role.MAIN) == DEVICES_NOT_NAMED
