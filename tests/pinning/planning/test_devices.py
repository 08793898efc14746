"""CPUs near devices: all CPUs are near if enough near ones are free, else the nearest; on all machines of the test data."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest

from pinning.allocation.beside import Beside
from pinning.contract import DevicePolicy, NUMAPolicy
from pinning.errors import NotEnoughCPUs
from pinning.machine.cpuset import EMPTY, CPUSet, union
from pinning.machine.near import Device, cpus_near, homes_of
from pinning.machine.topology import Topology
from pinning.planning.allocator import Allocator, EffectivePolicies
from pinning.planning.node_config import DEFAULT, NodeConfig
from pinning.planning.node_sets import node_sets
from pinning.planning.observed import Observed, Owner, SeenPod
from pinning.planning.plan import plan
from pinning.pods.claims import Claim, Origin
from pinning.pods.resources import DEVICES, MOST_DEVICES, is_foreign
from tests.machines import NAMES
from tests.pinning.devices import GPU, WITH_DISTANCES, given_devices, machine, random_claim, room
from tests.pinning.nodes import SNC
from tests.pinning.world import Wish, World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinning.allocation import Placement


def births(
    topology: Topology, number: int
) -> Iterator[tuple[CPUSet, CPUSet, Claim, EffectivePolicies, Placement]]:
    """Yield free CPUs, CPUs near the devices, the claim, its policies and the choice, while claims are made and released."""
    random = Random(number)  # noqa: S311 - the same claims in every run
    allocator = Allocator(node_sets(topology, topology.online, DEFAULT), DEFAULT)
    free, running = allocator.sets.allocatable, list[CPUSet]()
    for _ in range(number):
        while running and random.random() < 0.4:
            free |= running.pop(random.randrange(len(running)))
        claim, policies = random_claim(random)
        homes = homes_of(topology, given_devices(random, topology))
        try:
            chosen = allocator.fresh(claim, policies, free, EMPTY, Beside(homes))
        except NotEnoughCPUs:
            assert room(topology, free, claim, policies) < claim.count
            continue
        near = cpus_near(topology, union(home.nodes for home in homes)) if homes else topology.cpus
        yield free, near, claim, policies, chosen
        running.append(chosen.owned)
        free -= chosen.owned


@pytest.mark.parametrize("name", [*NAMES, *WITH_DISTANCES])
def test_cpus_are_near_whenever_enough_near_ones_are_free(name: str) -> None:
    """If enough CPUs near its devices are free a claim gets only these, else as many of them as its policies allow."""
    topology = machine(name)
    for free, near, claim, policies, chosen in births(topology, 60):
        possible = room(topology, free & near, claim, policies)
        assert chosen.owned <= free
        if possible >= claim.count:
            assert chosen.cpus <= near
        elif policies.numa is NUMAPolicy.PACKED:
            inside = chosen.cpus & near
            taken = len(topology.cores_of(inside)) if claim.origin is Origin.CMK else len(inside)
            assert taken >= possible


def world(*wishes: Wish, devices: tuple[str, ...], config: NodeConfig | None = None) -> World:
    """Return a node of four NUMA nodes with one planned pod for each claim, and the NUMA nodes of its devices."""
    node = World(SNC, config or NodeConfig(reserved=CPUSet([0])))
    for uid, wish, told in zip("abcdef", wishes, devices, strict=False):
        node.add(uid, [wish])
        node.devices[Owner(uid, "c0")] = tuple(Device(GPU, CPUSet([int(node)])) for node in told.split())
        node.start(uid, "c0")
    node.run_all()
    return node


def held(node: World, uid: str = "a") -> str:
    """Return the CPUs of a pod's container."""
    assignment = node.ledger.of(Owner(uid, "c0"))
    return str(assignment.cpus) if assignment else ""


@pytest.mark.parametrize(
    ("wish", "told", "cpus"),
    [
        pytest.param(Wish("2", policy="exclusive"), "2", "8-9", id="the device's node"),
        pytest.param(Wish("2", policy="share"), "2", "8-9", id="shared claims too"),
        pytest.param(Wish(cores=1), "2", "8-9", id="cores of CMK"),
        pytest.param(Wish("2", policy="exclusive"), "4", "12-13", id="memory alone: the nearest node"),
        pytest.param(Wish("2", policy="exclusive"), "77", "2-3", id="unknown: as without"),
        pytest.param(Wish("2", policy="exclusive"), "", "2-3", id="no devices"),
        pytest.param(Wish("4", policy="exclusive"), "1 2", "4-5,8-9", id="whole cores in proportion"),
        pytest.param(Wish("4", policy="exclusive"), "1 1 1 2", "4-5,8-9", id="a core each at least"),
        pytest.param(Wish("6", policy="exclusive"), "2", "8-13", id="the rest by distance"),
        pytest.param(
            Wish("4", policy="exclusive", numa="single"), "1 2 2", "8-11", id="single: most devices"
        ),
        pytest.param(Wish("4", policy="exclusive", numa="single"), "0", "4-7", id="single: the next one"),
        pytest.param(Wish("4", policy="exclusive", numa="distributed"), "1 3", "4-5,12-13", id="distributed"),
        pytest.param(Wish("6", policy="exclusive"), "1 1 1 2", "4-9", id="a share that does not fit"),
        pytest.param(Wish("2", smt="isolate"), "3 1", "4,12", id="isolate: a core beside each"),
    ],
)
def test_a_new_container_is_beside_its_devices(wish: Wish, told: str, cpus: str) -> None:
    """A new container gets CPUs near its devices; each of four NUMA nodes has two cores, and CPU 0's core is reserved."""
    assert held(world(wish, devices=(told,))) == cpus


def test_the_nodes_option_spreads_over_the_devices_nodes() -> None:
    """The kubelet's option to distribute CPUs over NUMA nodes has the same effect as the policy `distributed`."""
    config = NodeConfig(reserved=CPUSet([0]), distribute=True)
    assert held(world(Wish("4", policy="exclusive"), devices=("1 3",), config=config)) == "4-5,12-13"


def test_a_container_grows_and_shrinks_near_first() -> None:
    """A container first grows by CPUs near its device, and first shrinks by CPUs far from it."""
    node = world(Wish("2", policy="exclusive"), devices=("2",))
    for cpu, cpus in (("4", "8-11"), ("6", "8-13"), ("4", "8-11"), ("1", "8")):
        node.create("a", [Wish(cpu, policy="exclusive")])
        assert held(node) == cpus


def test_a_lost_cpu_is_replaced_near() -> None:
    """A CPU that goes offline is replaced by one on the NUMA node of the container's device."""
    node = world(Wish("2", policy="exclusive"), devices=("2",))
    node.topology = node.topology.with_online(node.topology.online - CPUSet([9]))
    node.run_all()
    assert held(node) == "8,10"


def test_other_policies_keep_a_container_near() -> None:
    """A container that is placed again after an edit gets CPUs near its devices, and keeps as many CPUs as it can."""
    node = world(Wish("2", policy="exclusive"), devices=("2",))
    node.create("a", [Wish("2", policy="exclusive", smt="isolate")])
    assert held(node) == "8,10"


def known_later(*wishes: Wish, told: str = "2", vm: bool = False, config: NodeConfig | None = None) -> World:
    """Return a node with one planned pod, whose first container has a device that becomes known after it holds CPUs."""
    node = World(SNC, config or NodeConfig(reserved=CPUSet([0])))
    node.add("a", list(wishes), vm=vm)
    for container in ("compute",) if vm else [f"c{number}" for number in range(len(wishes))]:
        node.start("a", container)
    node.run_all()
    node.devices[Owner("a", "compute" if vm else "c0")] = (Device(GPU, CPUSet([int(told)])),)
    return node


def test_devices_known_later_move_a_container_once() -> None:
    """A container whose devices become known later is placed again once; the next plan changes nothing."""
    node = known_later(Wish("2", policy="exclusive"))
    assert held(node) == "2-3"
    node.run_all()
    assert held(node) == "8-9"
    assert node.run_all().actions == ()


def incomplete(node: World) -> Observed:
    """Return the node, where container c0 of pod a may have devices that are not known yet."""
    observed = node.observe()
    pods = tuple(replace(pod, device_kinds={"c0": 2}) for pod in observed.pods)
    return replace(observed, pods=pods, devices_unknown={Owner("a", "c0"): "more may follow"})


def test_first_devices_of_several_leave_a_running_container_where_it_is() -> None:
    """A running container moves once, when all of its devices are known, and not when only the first one is."""
    node = known_later(Wish("2", policy="exclusive"))
    part = incomplete(node)
    assert plan(part, node.ledger, node.config).ledger == node.ledger
    node.devices[Owner("a", "c0")] = (Device(GPU, CPUSet([3])), Device("example.com/nic", CPUSet([3])))
    node.run_all()
    assert held(node) == "12-13"


def test_a_new_container_follows_each_of_its_devices() -> None:
    """A container that has not started is placed again each time that another of its devices becomes known."""
    node = World(SNC, NodeConfig(reserved=CPUSet([0])))
    node.add("a", [Wish("4", policy="exclusive")])
    owner, first = Owner("a", "c0"), Device(GPU, CPUSet([2]))
    node.devices[owner] = (first,)
    part = incomplete(node)
    node.ledger = plan(part, node.ledger, node.config).ledger
    assert held(node) == "8-11"
    assert plan(part, node.ledger, node.config).ledger == node.ledger
    node.devices[owner] = (first, *[Device("example.com/nic", CPUSet([3]))] * 2)
    node.run_all()
    assert held(node) == "8-9,12-13"
    assert node.run_all().actions == ()


@pytest.mark.parametrize(
    ("others", "cpus"),
    [pytest.param(4, "12-13", id="nothing nearer is free"), pytest.param(3, "11-12", id="one CPU is nearer")],
)
def test_a_container_moves_only_nearer(others: int, cpus: str) -> None:
    """A container moves once to the free CPUs nearest to its device, and not again if nearer ones are freed later."""
    node = World(SNC, NodeConfig(reserved=CPUSet([0])))
    node.devices[Owner("b", "c0")] = (Device(GPU, CPUSet([2])),)
    node.add("b", [Wish(str(others), policy="exclusive")])
    node.add("a", [Wish("2", policy="exclusive")])
    node.start("a", "c0")
    node.run_all()
    assert held(node) == "12-13"
    node.devices[Owner("a", "c0")] = (Device(GPU, CPUSet([2])),)
    node.run_all()
    assert held(node) == cpus
    del node.documents["b"]
    node.run_all()
    assert held(node) == cpus


def test_a_running_machine_is_not_moved() -> None:
    """A running virtual machine keeps its CPUs, and is placed again after it has stopped."""
    node = known_later(Wish("2"), vm=True)
    before = node.holds("a", "compute")
    node.run_all()
    assert node.holds("a", "compute") == before != "8-9"
    for container in node.live():
        node.stop(container.id)
    node.run_all()
    assert node.holds("a", "compute") == "8-9"


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(NodeConfig(reserved=CPUSet([0]), device_policy=DevicePolicy.NONE), id="none"),
        pytest.param(
            NodeConfig(reserved=CPUSet([0]), near_ignore=("example.com/*", "nvidia.com/*")), id="ignored"
        ),
    ],
)
def test_the_operator_may_leave_devices_out(config: NodeConfig) -> None:
    """With `devicePolicy: none` all devices are ignored, and with `nearIgnore` the devices of these resources."""
    node = known_later(Wish("2", policy="exclusive"), config=config)
    node.run_all()
    assert held(node) == "2-3"


@pytest.mark.parametrize(
    ("default", "word", "cpus"),
    [
        pytest.param("prefer", None, "8-9", id="as the node says"),
        pytest.param("prefer", "none", "2-3", id="not beside its device"),
        pytest.param("none", None, "2-3", id="as the node says not"),
        pytest.param("none", "prefer", "8-9", id="beside its device"),
    ],
)
def test_a_pods_device_policy_overrules_the_nodes(default: str, word: str | None, cpus: str) -> None:
    """The pod's annotation overrides the node's policy, and the plan has the devices by which a container was placed."""
    config = NodeConfig(reserved=CPUSet([0]), device_policy=DevicePolicy(default))
    node = world(Wish("2", policy="exclusive", devices=word), devices=("2",), config=config)
    assert held(node) == cpus
    beside = {Owner("a", "c0"): node.devices[Owner("a", "c0")]}
    assert node.run_all().devices == (beside if cpus == "8-9" else {})


@pytest.mark.parametrize("policy", ["exclusive", "share"])
def test_an_edited_device_policy_moves_a_container_nearer(policy: str) -> None:
    """Editing to `prefer` moves a container near its device each time; `none` lets it grow anywhere and does not move it."""
    node = world(Wish("2", policy=policy, devices="none"), devices=("2",))
    assert held(node) == "2-3"
    for cpu, word, cpus in (
        ("2", "prefer", "8-9"),
        ("2", "none", "8-9"),
        ("2", "prefer", "8-9"),
        ("4", "prefer", "8-11"),
    ):
        node.create("a", [Wish(cpu, policy=policy, devices=word)])
        assert held(node) == cpus
        assert node.run_all().actions == ()


def test_a_container_that_grew_elsewhere_comes_back() -> None:
    """CPUs that a container got far from its device are exchanged for near ones when the policy is set to `prefer` again."""
    node = world(Wish("2", policy="exclusive"), devices=("2",))
    node.add("b", [Wish("2", policy="exclusive", devices="none")])
    held_by_a = node.ledger.of(Owner("a", "c0"))
    assert held_by_a
    node.ledger = node.ledger.assign(replace(held_by_a, owner=Owner("b", "c0"), cpus=CPUSet([10, 11])))
    node.create("a", [Wish("4", policy="exclusive", devices="none")])
    assert held(node) not in {"8-9", "8-11"}
    del node.documents["b"]
    node.run_all()
    node.create("a", [Wish("4", policy="exclusive", devices="prefer")])
    assert held(node) == "8-11"


def test_an_edit_without_room_keeps_the_cpus() -> None:
    """`prefer` changes nothing if no CPU near the device is free, and this is not a refusal."""
    node = world(
        Wish("4", policy="exclusive"), Wish("2", policy="exclusive", devices="none"), devices=("2", "2")
    )
    before = node.holds("b", "c0")
    plan = node.create("b", [Wish("2", policy="exclusive", devices="prefer")])
    assert (node.holds("b", "c0"), plan.refusals) == (before, ())


def test_an_init_container_is_beside_the_devices_of_its_pod() -> None:
    """An ordinary init container is placed by the devices of its pod's other containers, because the kubelet reports none."""
    node = World(SNC, NodeConfig(reserved=CPUSet([0])))
    node.add("a", [Wish("2", policy="exclusive", init=""), Wish("2", policy="exclusive")])
    node.devices[Owner("a", "c1")] = (Device(GPU, CPUSet([3])),)
    node.run_all()
    assert (node.holds("a", "c0"), node.holds("a", "c1")) == ("12-13", "12-13")


@pytest.mark.parametrize(
    ("resource", "is_device"),
    [
        pytest.param("nvidia.com/gpu", True, id="of a device plugin"),
        pytest.param("devices.kubevirt.io/kvm", True, id="domain that ends alike"),
        pytest.param("notcorepin.io/gpu", True, id="domain that ends like ours"),
        pytest.param("cpu", False, id="compute"),
        pytest.param("hugepages-2Mi", False, id="no domain"),
        pytest.param("kubernetes.io/x", False, id="native"),
        pytest.param("my-kubernetes.io/x", False, id="native for the API server"),
        pytest.param("corepin.io/whole-cores", False, id="ours"),
        pytest.param("near.corepin.io/x", False, id="subdomain of ours"),
        pytest.param("cmk.intel.com/exclusive-cores", False, id="CMK's"),
    ],
)
def test_devices_are_extended_resources_of_others(resource: str, is_device: bool) -> None:
    """Native resources, corepin's and CMK's are not devices; all other extended resources are."""
    assert is_foreign(resource) is is_device


def test_the_containers_that_name_devices() -> None:
    """The containers with devices are those that request extended resources of other programs.

    Native resources, corepin's and CMK's are not devices, nor is a resource with the amount zero. Ordinary
    init containers have no devices. One resource may stand for several devices.
    """
    limits = [
        {"nvidia.com/gpu": 1, "example.com/nic": "2"},
        {"cpu": 1, "memory": "1Gi", "hugepages-2Mi": "2Mi", "ephemeral-storage": 1},
        {"cmk.intel.com/exclusive-cores": 1, "corepin.io/whole-cores": 1, "kubernetes.io/x": 1},
        None,
        {"a.b/c": "0", "a.b/d": None, "a.b/e": "junk"},
        {DEVICES: 3},
        {DEVICES: "junk", "a.b/c": 1},
        {f"a.b/{at}": 1 for at in range(2 * MOST_DEVICES)},
    ]
    containers = [{"name": f"c{at}", "resources": {"limits": each}} for at, each in enumerate(limits)]
    inits = [
        {"name": "init", "resources": {"limits": {"a.b/c": 1}}},
        {"name": "sidecar", "restartPolicy": "Always", "resources": {"limits": {"a.b/c": 1}}},
    ]
    document = {"metadata": {"uid": "a"}, "spec": {"containers": containers, "initContainers": inits}}
    pod = SeenPod.of(document)  # type: ignore[arg-type]
    assert pod.device_kinds == {"sidecar": 1, "c0": 2, "c5": 3, "c6": 1, "c7": MOST_DEVICES}
    assert pod.device_containers == pod.device_kinds.keys()
