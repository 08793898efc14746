"""The plugin's answers to creations and updates, without a socket."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.nri.plugin import KEPT_SECONDS, UNNAMED
from agent.nri.wire import CPUSET_CPUS, Event, Reject
from agent.nri.wire import nri_pb2 as pb
from pinning.contract import GUARDED
from pinning.machine.cpuset import CPUSet
from pinning.planning.start_table import NOT_SEEN
from tests.agent.nri.fake_runtime import container, known, known_pod, pod
from tests.agent.nri.planned_node import A, B, Node, node_with
from tests.pinning.world import EXCLUSIVE, Wish, one_pod, world

WHOLE = Wish("2", smt="require")


@pytest.fixture
def node() -> Node:
    """Return a node on which an exclusive container is to start."""
    return node_with(EXCLUSIVE)


def test_owner_is_created_with_its_cpus_and_environment(node: Node) -> None:
    """The adjustment of an exclusive container has its cpuset and CMK's variables, and nothing else."""
    answer = node.plugin.create_container(A, container("c0", "a"))
    assert answer.adjust.linux.resources.cpu == pb.LinuxCPU(cpus="1,5")
    assert {entry.key: entry.value for entry in answer.adjust.env} == {
        "CMK_CPUS_ASSIGNED": "1,5",
        "CMK_CPUS_ASSIGNED_MASK": "22",
        "CMK_CPUS_SHARED": "0,2,3,4,6,7",
        "CMK_CPUS_INFRA": "0,2,3,4,6,7",
    }
    assert not answer.update
    assert node.plugin.started["a-c0"].cpus == CPUSet.parse("1,5")


def test_system_containers_start_on_the_reserved_cpus(node: Node) -> None:
    """A container in a system namespace starts on the reserved CPUs, even if its pod is unknown, and updates keep them."""
    node.world.config = replace(node.world.config, system_namespaces=("kube-*",))
    node.publish()
    pod = pb.PodSandbox(uid="new", namespace="kube-system")
    answer = node.plugin.create_container(pod, container("c0", "new"))
    assert answer.adjust.linux.resources.cpu == pb.LinuxCPU(cpus="0,4")
    asked = pb.LinuxResources(cpu=pb.LinuxCPU(cpus="0-7"))
    (update,) = node.plugin.update_container(pod, container("c0", "new"), asked).update
    assert update.linux.resources.cpu.cpus == "0,4"


def test_container_of_an_unknown_claim_is_rejected(node: Node) -> None:
    """A container with the device of a claim is rejected if the claim has no CPUs; other devices are ignored."""
    uid = "00000000-0000-4000-8000-000000000001"
    claiming = container("c0", "b")
    claiming.CDI_devices.add(name="nvidia.com/gpu=0")
    assert node.plugin.create_container(B, claiming).adjust.linux.resources.cpu.cpus == "0,2-4,6-7"
    claiming.CDI_devices.add(name=f"corepin.io/cpu=claim-{uid}-cpu")
    with pytest.raises(Reject, match=f"claim {uid} holds no CPUs of this node: delete the pod"):
        node.plugin.create_container(B, claiming)


def test_other_containers_are_created_in_the_shared_set(node: Node) -> None:
    """A container without exclusive CPUs gets the shared set and none of CMK's variables."""
    answer = node.plugin.create_container(B, container("c0", "b"))
    assert answer.adjust.linux.resources.cpu.cpus == "0,2-4,6-7"
    assert not answer.adjust.env


def test_mixed_container_starts_on_its_own_cpus() -> None:
    """The cpuset of a mixed container includes the shared set, and its first process starts on its own CPUs."""
    node = node_with(replace(EXCLUSIVE, shared="true"))
    answer = node.plugin.create_container(A, container("c0", "a"))
    assert answer.adjust.linux.resources.cpu.cpus == "0-7"
    assert {entry.key: entry.value for entry in answer.adjust.env}["CMK_CPUS_ASSIGNED"] == "1,5"
    assert node.put == []

    node.begin(A, pid=42)
    assert node.put == [(42, "1,5")]


@pytest.mark.parametrize(
    ("runtime", "version", "cpus"),
    [
        ("cri-o", "1.35.2", "1,5"),
        ("cri-o", "unknown", "1,5"),
        ("cri-o", "1.36.0", "0-7"),
        ("containerd", "v2.4.2", "0-7"),
    ],
)
def test_mixed_container_without_pid_is_created_on_its_own_cpus(
    runtime: str, version: str, cpus: str
) -> None:
    """CRI-O before 1.36 reports no pid at the start, so the container gets the shared set in the next pass."""
    node = node_with(replace(EXCLUSIVE, shared="true"))
    node.plugin.configure(pb.ConfigureRequest(runtime_name=runtime, runtime_version=version))
    answer = node.plugin.create_container(A, container("c0", "a"))
    assert answer.adjust.linux.resources.cpu.cpus == cpus
    assert {entry.key: entry.value for entry in answer.adjust.env}["CMK_CPUS_INFRA"] == "0,2,3,4,6,7"
    assert (
        node.plugin.create_container(B, container("c0", "b")).adjust.linux.resources.cpu.cpus == "0,2-4,6-7"
    )


def test_start_of_a_sandbox_is_reported(node: Node) -> None:
    """When a sandbox starts, the plugin reports the uid of its pod; at other events it does not."""
    started: list[str] = []
    node.plugin.sandbox_started = started.append
    for event in (Event.RUN_POD_SANDBOX, Event.STOP_POD_SANDBOX):
        node.plugin.event(event, known_pod(A), pb.KnownContainer())
    assert started == [A.uid]


def test_sandboxes_that_started_unseen_are_reported(node: Node) -> None:
    """A sandbox whose start was missed is reported when the runtime lists it, or when its container is rejected."""
    started: list[str] = []
    node.plugin.sandbox_started = started.append
    node.plugin.synchronize([known_pod(A), known_pod(B)], [])
    assert started == [A.uid, B.uid]
    late = pod("late", annotations={"smt-policy.corepin.io/pod": "require"})
    with pytest.raises(Reject):
        node.cpus(late)
    node.cpus(A)
    assert started[2:] == [late.uid]


def test_first_process_is_known_from_the_start_until_the_removal(node: Node) -> None:
    """Pid and cgroup of a container are stored from its start to its removal; CRI-O before 1.36 reports no pid."""
    started, later = container("c0", "a"), container("c1", "a")
    started.pid, started.linux.cgroups_path = 42, "/kubepods/pod1/a-c0"
    later.CopyFrom(started)
    later.id = "a-c1"
    without = container("c2", "a")
    without.linux.cgroups_path = "/kubepods/pod1/a-c2"
    for each in (started, later, without):
        node.plugin.event(Event.START_CONTAINER, known_pod(A), known(each))
    shown = [node.plugin.first_process(each.id) for each in (started, later, without)]
    assert shown == [(42, "/kubepods/pod1/a-c0")] * 2 + [None]

    node.plugin.event(Event.REMOVE_CONTAINER, known_pod(A), known(started))
    assert (node.plugin.first_process(started.id), node.plugin.first_process(later.id)) == (None, shown[1])
    node.plugin.synchronize((), ())
    assert node.plugin.first_process(later.id) is None


def test_incomplete_move_of_a_first_process_is_recorded() -> None:
    """A container whose threads were not all moved is in `unsettled` until it is removed."""
    node = node_with(replace(EXCLUSIVE, shared="true"))
    node.is_settled = False
    node.begin(A, pid=42)
    assert node.plugin.unsettled == {"a-c0"}

    node.plugin.event(Event.REMOVE_CONTAINER, known_pod(A), known(container("c0", "a")))
    assert not node.plugin.unsettled


def test_only_mixed_containers_with_a_pid_are_moved_at_start(node: Node) -> None:
    """At its start a container is moved only if it has shared CPUs, a pid, and a cgroup on the host."""
    for of in (B, A):
        node.begin(of, pid=42)
    mixed = node_with(replace(EXCLUSIVE, shared="true"))
    for pid, mixed.is_on_host in ((0, True), (42, False)):  # 42: the pid of a virtual machine's VMM
        mixed.begin(A, pid=pid)
    assert node.put == mixed.put == []


def test_bound_memory_is_set_at_creation_only() -> None:
    """A creation sets the NUMA node for memory; an update of a running container does not."""
    node = world(8, sockets=2)
    node.add("uid-a", [Wish("2", policy="exclusive", numa="single", memory="bind")])
    bound = Node(node)
    answer = bound.plugin.create_container(A, container("c0", "a"))
    assert answer.adjust.linux.resources.cpu == pb.LinuxCPU(cpus="1,9", mems="0")

    asked = pb.LinuxResources(cpu=pb.LinuxCPU(cpus="0-15", mems="0-1"))
    (update,) = bound.plugin.update_container(A, container("c0", "a"), asked).update
    assert update.linux.resources.cpu == pb.LinuxCPU(cpus="1,9")


@pytest.mark.parametrize(
    "key",
    [
        GUARDED,
        "cpu-manager.corepin.io/pod",
        "smt-policy.corepin.io/container.c0",
        "numa-memory.corepin.io/pod",
        "qos.gocrane.io/cpu-manager",
        "cmk.intel.com/resources-injected",
    ],
)
def test_pod_with_a_request_is_rejected_until_it_is_known(node: Node, key: str) -> None:
    """A pod with the guard's mark, a policy or an injected resource is rejected until the plan contains it."""
    late = pod("late", annotations={key: "true"})
    with pytest.raises(Reject, match="has not seen it yet"):
        node.cpus(late)
    node.world.add("uid-late", [Wish(policy="none")])
    node.publish()
    assert node.cpus(late) == "0,2-4,6-7"


def test_virtual_machine_is_rejected_until_it_is_known(node: Node) -> None:
    """A KubeVirt pod is rejected until it is known; its label identifies it, because NRI does not report the spec."""
    late = pod("late")
    late.labels["kubevirt.io"] = "virt-launcher"
    with pytest.raises(Reject):
        node.cpus(late)


def test_static_pod_is_not_rejected(node: Node) -> None:
    """A static pod starts in the shared set, because its mirror appears later, and the next pass pins it."""
    annotations = {"kubernetes.io/config.source": "file", "cpu-manager.corepin.io/pod": "exclusive"}
    assert node.cpus(pod("static", annotations=annotations)) == "0,2-4,6-7"


def test_sandbox_annotations_grant_no_cpus(node: Node) -> None:
    """If the API shows a pod without a claim, annotations of its sandbox give it no CPUs."""
    node.world.add("uid-b", [Wish()])
    node.publish()
    assert node.cpus(pod("b", annotations={"cpu-manager.corepin.io/pod": "exclusive"})) == "0,2-4,6-7"


def test_claim_that_does_not_fit_is_rejected_with_its_refusal() -> None:
    """If a claim does not fit, the creation fails with the message of the refusal, which `kubectl describe pod` shows."""
    node = node_with(Wish(cores=9))
    (refusal,) = node.world.plan().refusals
    with pytest.raises(Reject) as rejected:
        node.cpus(A)
    assert rejected.value.message == refusal.text
    assert rejected.value.code == 9
    assert not node.plugin.started


def test_owner_waits_for_a_container_of_a_stale_table() -> None:
    """An owner is rejected while a container that was created with an older table may run on its CPUs."""
    node = Node(world(4))
    assert node.cpus(B) == "0-7"
    node.world.add("uid-a", [WHOLE])
    node.publish()
    with pytest.raises(Reject, match="other containers still run on its CPUs 1,5"):
        node.cpus(A)

    node.world.start("uid-b", "c0")
    seen = node.publish()
    node.plugin.table = replace(seen, seen={**seen.seen, "b-c0": CPUSet.parse("0,2-4,6-7")})
    assert node.cpus(A) == "1,5"


@pytest.mark.parametrize("ends", ["removed", "late"])
def test_failed_creation_frees_its_cpus(ends: str) -> None:
    """After a container was removed, or was not listed for a minute, its CPUs are free again."""
    node = Node(world(4))
    node.cpus(B)
    if ends == "removed":
        node.plugin.event(Event.REMOVE_CONTAINER, known_pod(B), known(container("c0", "b")))
    node.now += KEPT_SECONDS + 1
    node.world.add("uid-a", [WHOLE])
    node.publish()
    assert node.cpus(A) == "1,5"
    assert node.plugin.started.keys() == {"a-c0"}


def test_seen_container_keeps_its_record_however_late() -> None:
    """A container whose CPUs a table contains only after a minute keeps its record."""
    node = Node(world(4))
    node.cpus(B)
    node.now += KEPT_SECONDS + 1
    node.world.add("uid-a", [WHOLE])
    seen = node.publish()
    node.plugin.table = replace(seen, seen={**seen.seen, "b-c0": CPUSet.parse("0,2-4,6-7")})
    assert node.cpus(A) == "1,5"
    assert node.plugin.started.keys() == {"a-c0", "b-c0"}


@pytest.mark.parametrize("ends", ["removed", "gone after a reconnect"])
def test_owner_starts_without_a_pass_when_its_cpus_are_free(ends: str) -> None:
    """When its CPUs become free by a removal event or a synchronization, the owner starts without a pass."""
    node = Node(world(4))
    node.cpus(B)
    node.world.add("uid-a", [WHOLE])
    node.publish()
    with pytest.raises(Reject):
        node.cpus(A)
    if ends == "removed":
        node.plugin.event(Event.REMOVE_CONTAINER, known_pod(B), known(container("c0", "b")))
    else:
        node.plugin.synchronize([known_pod(A), known_pod(B)], [])
    assert node.cpus(A) == "1,5"


@pytest.mark.parametrize("event", [Event.STOP_CONTAINER, Event.START_CONTAINER, Event.STOP_POD_SANDBOX])
def test_only_a_removal_ends_a_container(node: Node, event: Event) -> None:
    """A container that stops keeps its CPUs until it is removed, because it may start again."""
    node.cpus(A)
    node.plugin.event(event, known_pod(A), known(container("c0", "a")))
    assert "a-c0" in node.plugin.started


@pytest.mark.parametrize("way", ["observing", "virtual machine"])
def test_observed_and_vm_containers_are_not_changed(node: Node, way: str) -> None:
    """While the agent observes, and in virtual machines, creations and updates are not changed."""
    of = pod("a")
    if way == "observing":
        node.plugin.table = None
    else:
        of.runtime_handler = "kata-qemu"
    assert node.plugin.create_container(of, container("c0", "a")) == pb.CreateContainerResponse()
    assert not node.plugin.update_container(of, container("c0", "a"), pb.LinuxResources()).update
    assert not node.plugin.started


def test_virtual_machine_whose_claim_does_not_fit_is_rejected() -> None:
    """A container in a virtual machine is rejected like any other if its claim does not fit."""
    of = pod("a")
    of.runtime_handler = "kata"
    with pytest.raises(Reject):
        node_with(Wish(cores=9)).plugin.create_container(of, container("c0", "a"))


def test_containers_missing_after_a_reconnect_are_forgotten(node: Node) -> None:
    """After a synchronization the plugin keeps only the listed containers, and updates none."""
    node.cpus(A)
    node.cpus(B)
    assert node.plugin.synchronize([known_pod(A)], [known(container("c0", "a"))]) == ()
    assert node.plugin.started.keys() == {"a-c0"}


def test_state_does_not_grow_with_removed_containers(node: Node) -> None:
    """Removed containers and failed creations are not kept."""
    for number in range(200):
        made = pb.Container(id=f"made-{number}", name="c0")
        node.plugin.create_container(B, made)
        node.plugin.event(Event.REMOVE_CONTAINER, known_pod(B), known(made))
        node.plugin.create_container(B, pb.Container(id=f"failed-{number}", name="c0"))
        node.now += KEPT_SECONDS
        node.publish()
    assert len(node.plugin.started) <= 2


def validation(owner: str, *connected: str) -> pb.ValidateContainerAdjustmentRequest:
    """Return the validation request for a container whose CPUs this plugin has set."""
    request = pb.ValidateContainerAdjustmentRequest(pod=A, container=container("c0", "a"))
    for plugin in connected:
        index, name = plugin.split("-")
        request.plugins.add(index=index, name=name)
    request.owners.owners["a-c0"].simple[CPUSET_CPUS] = owner
    return request


def test_other_plugins_that_set_cpusets_are_reported() -> None:
    """If a validation names another plugin as the one that set the cpuset, that plugin is reported until a disconnect."""
    node = Node(one_pod(EXCLUSIVE))
    connected = ("10-corepin", "50-other")
    for owner in connected:
        assert node.plugin.validate(validation(owner, *connected)) == ""
    assert node.plugin.validate(validation("10-corepin", *connected)) == ""
    assert node.plugin.other_plugins == {"50-other"}
    node.plugin.validate(validation("10-corepin", "10-corepin"))
    assert node.plugin.other_plugins == set()


def test_other_plugin_is_not_reported_while_observing() -> None:
    """While the agent observes another plugin may set CPUs, so it is not reported."""
    node = Node(one_pod(EXCLUSIVE))
    request = validation("50-other", "50-other")
    node.plugin.validate(request)
    node.plugin.table = None
    assert node.plugin.validate(request) == ""
    assert node.plugin.other_plugins == set()


VALIDATION = pb.ValidateContainerAdjustmentRequest(pod=A, container=container("c0", "a"))


@pytest.mark.parametrize(("validates", "others"), [(True, {UNNAMED}), (False, set())])
def test_creations_without_validation_hint_at_another_plugin(
    node: Node, validates: bool, others: set[str]
) -> None:
    """If creations of two pods are never validated on a runtime with validators, another plugin is reported."""
    node.plugin.validates = validates
    node.cpus(A)
    node.plugin.validate(VALIDATION)
    node.cpus(A)
    node.cpus(B)
    assert node.plugin.other_plugins == set()
    node.cpus(A)
    assert node.plugin.other_plugins == others
    node.plugin.validate(VALIDATION)
    assert node.plugin.other_plugins == set()


def test_pod_that_another_plugin_refuses_hints_at_no_plugin(node: Node) -> None:
    """Another plugin may refuse a pod after this plugin's answer, whose creation is tried again and again."""
    node.plugin.validates = True
    for _ in range(3):
        node.cpus(A)
    node.cpus(B)
    node.plugin.validate(VALIDATION)
    node.cpus(A)
    node.cpus(B)
    assert node.plugin.other_plugins == set()


def test_interrupted_creations_hint_at_no_plugin(node: Node) -> None:
    """Creations that a disconnect interrupted do not count as failed because of another plugin."""
    node.plugin.validates = True
    for which in (A, B, A):
        node.cpus(which)
        node.plugin.disconnected()
    assert node.plugin.other_plugins == set()


def test_last_answer_is_discarded_when_the_connection_ends(node: Node) -> None:
    """When the connection ends the last answer is discarded, because the runtime may not have used it; others are kept."""
    node.cpus(A)
    node.cpus(B)
    node.plugin.disconnected()
    assert node.plugin.started.keys() == {"a-c0"}


@pytest.mark.parametrize("sign", ["validated", "started", "seen"])
def test_confirmed_answer_is_not_discarded(node: Node, sign: str) -> None:
    """An answer is kept if the container was validated, started or seen by a pass."""
    node.cpus(A)
    if sign == "validated":
        node.plugin.validate(validation("10-corepin"))
    elif sign == "started":
        node.plugin.event(Event.START_CONTAINER, known_pod(A), known(container("c0", "a")))
    else:
        table = node.publish()
        node.plugin.table = replace(table, seen={"a-c0": CPUSet.parse("1,5")})
    node.plugin.disconnected()
    assert node.plugin.started.keys() == {"a-c0"}


def test_message_for_unknown_pods_names_no_pod(node: Node) -> None:
    """The message is the same for every pod, so that its events are counted together."""
    with pytest.raises(Reject) as rejected:
        node.cpus(pod("late", annotations={GUARDED: "true"}))
    assert rejected.value.message == NOT_SEEN
