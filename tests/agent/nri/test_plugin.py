"""What the runtime is answered when it makes or changes a container: values in, values out, no socket."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from agent.nri.plugin import KEPT_SECONDS, Plugin
from agent.nri.wire import CPUSET_CPUS, Event, Reject
from agent.nri.wire import nri_pb2 as pb
from pinning.contract import GUARDED
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import Owner
from pinning.planning.start_table import NOT_SEEN, StartTable, start_table
from tests.agent.nri.fake_runtime import container, known, known_pod, pod
from tests.pinning.world import EXCLUSIVE, Wish, World, one_pod, world

WHOLE = Wish("2", smt="require")
A, B = pod("a"), pod("b")


@dataclass
class Node:
    """A planned node with its plugin; pod `a` is `uid-a` for the API and the runtime."""

    world: World
    now: float = 0.0
    put: list[tuple[int, str]] = field(default_factory=list)  # processes, and where their threads were put
    is_settled: bool = True  # threads are moved faster than they are started
    plugin: Plugin = field(init=False)

    def __post_init__(self) -> None:
        self.plugin = Plugin(
            lambda handler: "kata" in handler,
            lambda: self.now,
            self.move,
        )
        self.publish()

    def move(self, pid: int, cpus: CPUSet) -> bool:
        """Note where the threads of a process are put."""
        self.put.append((pid, str(cpus)))
        return self.is_settled

    def publish(self, *, settled: bool = True) -> StartTable:
        """Plan, and answer by what is planned; settled: everything that it takes was written."""
        if settled:
            self.world.run_all()
        planned = self.world.plan()
        table = start_table(planned, self.world.observe())
        self.plugin.table = table
        return table

    def cpus(self, of: pb.PodSandbox, name: str = "c0") -> str:
        """Create a container, and return its cpuset."""
        answer = self.plugin.create_container(of, container(name, of.name))
        return answer.adjust.linux.resources.cpu.cpus


def node_with(wish: Wish) -> Node:
    """Return a node of 4 cores on which pod `a` holds the core 1,5."""
    node = world(4)
    node.add("uid-a", [wish])
    return Node(node)


@pytest.fixture
def node() -> Node:
    """Return a node on which an exclusive container is to start."""
    return node_with(EXCLUSIVE)


def test_owner_is_made_on_its_cpus_and_told_of_them(node: Node) -> None:
    """The adjustment has the cpuset and CMK's environment, and nothing else."""
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


def test_system_containers_are_made_on_the_reserved_cpus(node: Node) -> None:
    """Their sandbox names the namespace, so that even an unseen pod starts there, and stays there."""
    node.world.config = replace(node.world.config, system_namespaces=("kube-*",))
    node.publish()
    pod = pb.PodSandbox(uid="new", namespace="kube-system")
    answer = node.plugin.create_container(pod, container("c0", "new"))
    assert answer.adjust.linux.resources.cpu == pb.LinuxCPU(cpus="0,4")
    asked = pb.LinuxResources(cpu=pb.LinuxCPU(cpus="0-7"))
    (update,) = node.plugin.update_container(pod, container("c0", "new"), asked).update
    assert update.linux.resources.cpu.cpus == "0,4"


def test_container_of_a_claim_that_no_ledger_holds_is_not_made(node: Node) -> None:
    """Its claim was released, or never prepared: also on a node where no claim holds CPUs; other devices count for nothing."""
    uid = "00000000-0000-4000-8000-000000000001"
    claiming = container("c0", "b")
    claiming.CDI_devices.add(name="nvidia.com/gpu=0")
    assert node.plugin.create_container(B, claiming).adjust.linux.resources.cpu.cpus == "0,2-4,6-7"
    claiming.CDI_devices.add(name=f"corepin.io/cpu=claim-{uid}-cpu")
    with pytest.raises(Reject, match=f"claim {uid} holds no CPUs of this node: delete the pod"):
        node.plugin.create_container(B, claiming)


def test_everyone_else_is_made_in_the_shared_set(node: Node) -> None:
    """While NRI holds nothing starts on the CPUs of an owner, and nobody else is told of CPUs."""
    answer = node.plugin.create_container(B, container("c0", "b"))
    assert answer.adjust.linux.resources.cpu.cpus == "0,2-4,6-7"
    assert not answer.adjust.env


def test_container_with_helpers_is_made_wide_and_starts_on_its_own_cpus() -> None:
    """Its cpuset has the shared set from its birth; its first process is put on its own CPUs before it starts."""
    node = node_with(replace(EXCLUSIVE, shared="true"))
    answer = node.plugin.create_container(A, container("c0", "a"))
    assert answer.adjust.linux.resources.cpu.cpus == "0-7"
    assert {entry.key: entry.value for entry in answer.adjust.env}["CMK_CPUS_ASSIGNED"] == "1,5"
    assert node.put == []

    started = container("c0", "a")
    started.pid = 42
    node.plugin.event(Event.START_CONTAINER, known_pod(A), known(started))
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
def test_container_whose_process_is_not_named_starts_on_its_own_cpus(
    runtime: str, version: str, cpus: str
) -> None:
    """CRI-O before 1.36 names no process that could be put there, so a pass gives the shared set; strict threads too."""
    node = node_with(replace(EXCLUSIVE, shared="true"))
    node.plugin.configure(pb.ConfigureRequest(runtime_name=runtime, runtime_version=version))
    answer = node.plugin.create_container(A, container("c0", "a"))
    assert answer.adjust.linux.resources.cpu.cpus == cpus
    assert {entry.key: entry.value for entry in answer.adjust.env}["CMK_CPUS_INFRA"] == "0,2,3,4,6,7"
    assert (
        node.plugin.create_container(B, container("c0", "b")).adjust.linux.resources.cpu.cpus == "0,2-4,6-7"
    )


def test_a_sandbox_that_starts_is_noted(node: Node) -> None:
    """The pod's uid is handed on: its devices are allocated by then; other events are no news of a sandbox."""
    started: list[str] = []
    node.plugin.sandbox_started = started.append
    for event in (Event.RUN_POD_SANDBOX, Event.STOP_POD_SANDBOX):
        node.plugin.event(event, known_pod(A), pb.KnownContainer())
    assert started == [A.uid]


def test_process_that_outruns_the_move_is_not_settled() -> None:
    """It is noted by its container until that is removed: the next pass moves its threads, and nothing says done."""
    node = node_with(replace(EXCLUSIVE, shared="true"))
    node.is_settled = False
    started = container("c0", "a")
    started.pid = 42
    node.plugin.event(Event.START_CONTAINER, known_pod(A), known(started))
    assert node.plugin.unsettled == {"a-c0"}

    node.plugin.event(Event.REMOVE_CONTAINER, known_pod(A), known(started))
    assert not node.plugin.unsettled


def test_nobody_else_is_put_anywhere(node: Node) -> None:
    """Whoever runs on its cpuset alone has its mask by that; without a process there is nobody to put."""
    for of in (A, B):
        started = container("c0", of.name)
        started.pid = 42
        node.plugin.event(Event.START_CONTAINER, known_pod(of), known(started))
    mixed = node_with(replace(EXCLUSIVE, shared="true"))
    mixed.plugin.event(Event.START_CONTAINER, known_pod(A), known(container("c0", "a")))
    assert node.put == mixed.put == []


def test_bound_memory_is_part_of_the_container_from_its_birth() -> None:
    """The adjustment has the NUMA node of the CPUs too, and a change of a container that runs never has one."""
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
def test_pod_that_asks_is_held_back_until_it_was_seen(node: Node, key: str) -> None:
    """Marker, policy or injected contract: any of them says that CPUs may be on their way."""
    late = pod("late", annotations={key: "true"})
    with pytest.raises(Reject, match="has not seen it yet"):
        node.cpus(late)
    node.world.add("uid-late", [Wish(policy="none")])
    node.publish()
    assert node.cpus(late) == "0,2-4,6-7"


def test_virtual_machine_is_held_back_until_it_was_seen(node: Node) -> None:
    """Its claim is in its spec, which the runtime does not have; its label is in the sandbox."""
    late = pod("late")
    late.labels["kubevirt.io"] = "virt-launcher"
    with pytest.raises(Reject):
        node.cpus(late)


def test_static_pod_is_not_held_back(node: Node) -> None:
    """Its mirror comes when its containers run: it starts in the shared set, and the next pass pins it."""
    annotations = {"kubernetes.io/config.source": "file", "cpu-manager.corepin.io/pod": "exclusive"}
    assert node.cpus(pod("static", annotations=annotations)) == "0,2-4,6-7"


def test_annotations_give_nothing(node: Node) -> None:
    """What the sandbox says of a pod that the API shows without a claim is not believed."""
    node.world.add("uid-b", [Wish()])
    node.publish()
    assert node.cpus(pod("b", annotations={"cpu-manager.corepin.io/pod": "exclusive"})) == "0,2-4,6-7"


def test_claim_that_must_fit_and_does_not_is_rejected_in_the_words_of_its_event() -> None:
    """The runtime gets an error status, and `kubectl describe pod` shows its text."""
    node = node_with(Wish(cores=9))
    (refusal,) = node.world.plan().refusals
    with pytest.raises(Reject) as rejected:
        node.cpus(A)
    assert rejected.value.message == refusal.text
    assert rejected.value.code == 9
    assert not node.plugin.started


def test_owner_does_not_start_where_a_container_may_be_that_an_older_table_made() -> None:
    """It was made while the pass gave its CPUs away, and the pass has not seen it: the next one moves it."""
    node = Node(world(4))
    assert node.cpus(B) == "0-7"
    node.world.add("uid-a", [WHOLE])
    node.publish()
    with pytest.raises(Reject, match="others still run on its CPUs 1,5"):
        node.cpus(A)

    node.world.start("uid-b", "c0")
    seen = node.publish()
    node.plugin.table = replace(seen, seen={**seen.seen, "b-c0": CPUSet.parse("0,2-4,6-7")})
    assert node.cpus(A) == "1,5"


@pytest.mark.parametrize("ends", ["removed", "late"])
def test_container_that_never_came_is_in_nobodys_way(ends: str) -> None:
    """A creation that failed after the answer is told of, or no listing shows it for a minute."""
    node = Node(world(4))
    node.cpus(B)
    if ends == "removed":
        node.plugin.event(Event.REMOVE_CONTAINER, known_pod(B), known(container("c0", "b")))
    node.now += KEPT_SECONDS + 1
    node.world.add("uid-a", [WHOLE])
    node.publish()
    assert node.cpus(A) == "1,5"
    assert node.plugin.started.keys() == {"a-c0"}


@pytest.mark.parametrize("ends", ["removed", "gone after a reconnect"])
def test_owner_need_not_wait_for_the_next_pass_when_nobody_is_in_its_way_any_more(ends: str) -> None:
    """No pass may be near: a creation that failed is in no listing, and nothing else tells of it."""
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
def test_only_a_removal_is_the_end(node: Node, event: Event) -> None:
    """A container that stops may start again, on its CPUs."""
    node.cpus(A)
    node.plugin.event(event, known_pod(A), known(container("c0", "a")))
    assert "a-c0" in node.plugin.started


@pytest.mark.parametrize(("asked", "corrected"), [("", "1,5"), ("0-7", "1,5"), ("1,5", None)])
def test_update_keeps_a_container_on_its_cpus(node: Node, asked: str, corrected: str | None) -> None:
    """A resize, an older set, our own call: the newest table decides, and nothing but the cpuset is answered."""
    update = node.plugin.update_container(
        A, container("c0", "a"), pb.LinuxResources(cpu=pb.LinuxCPU(cpus=asked))
    )
    expected = pb.ContainerUpdate(container_id="a-c0")
    if corrected is None:
        assert not update.update
        return
    expected.linux.resources.cpu.cpus = corrected
    assert list(update.update) == [expected]


def test_container_that_another_program_keeps_writing_is_left_alone(node: Node) -> None:
    """In a conflict a change asserts nothing again; a new container starts right all the same."""
    table = node.publish()
    node.plugin.table = replace(table, left_alone=frozenset({Owner("uid-a", "c0")}))
    assert not node.plugin.update_container(A, container("c0", "a"), pb.LinuxResources()).update
    assert node.cpus(A) == "1,5"


@pytest.mark.parametrize("way", ["observing", "virtual machine"])
def test_some_containers_are_not_touched(node: Node, way: str) -> None:
    """Beside the kubelet's static policy, and in a VM, whose cpuset is the guest's."""
    of = pod("a")
    if way == "observing":
        node.plugin.table = None
    else:
        of.runtime_handler = "kata-qemu"
    assert node.plugin.create_container(of, container("c0", "a")) == pb.CreateContainerResponse()
    assert not node.plugin.update_container(of, container("c0", "a"), pb.LinuxResources()).update
    assert not node.plugin.started


def test_virtual_machine_that_must_fit_is_held_back() -> None:
    """To hold it back touches nothing in it."""
    of = pod("a")
    of.runtime_handler = "kata"
    with pytest.raises(Reject):
        node_with(Wish(cores=9)).plugin.create_container(of, container("c0", "a"))


def test_what_is_gone_after_a_reconnect_is_forgotten(node: Node) -> None:
    """The runtime lists what it has; nothing is moved by NRI."""
    node.cpus(A)
    node.cpus(B)
    assert node.plugin.synchronize([known_pod(A)], [known(container("c0", "a"))]) == ()
    assert node.plugin.started.keys() == {"a-c0"}


def test_memory_stays_flat(node: Node) -> None:
    """Containers come and go, others fail to come: what is kept is what is there."""
    for number in range(200):
        made = pb.Container(id=f"made-{number}", name="c0")
        node.plugin.create_container(B, made)
        node.plugin.event(Event.REMOVE_CONTAINER, known_pod(B), known(made))
        node.plugin.create_container(B, pb.Container(id=f"failed-{number}", name="c0"))
        node.now += KEPT_SECONDS
        node.publish()
    assert len(node.plugin.started) <= 2


def validation(owner: str, *connected: str) -> pb.ValidateContainerAdjustmentRequest:
    """Return what is asked about a container whose CPUs a plugin has set."""
    request = pb.ValidateContainerAdjustmentRequest(pod=A, container=container("c0", "a"))
    for plugin in connected:
        index, name = plugin.split("-")
        request.plugins.add(index=index, name=name)
    request.owners.owners["a-c0"].simple[CPUSET_CPUS] = owner
    return request


def test_other_plugins_that_set_cpusets_are_told() -> None:
    """Whoever validates is told who set what; everything passes, and who disconnects is in nobody's way."""
    node = Node(one_pod(EXCLUSIVE))
    connected = ("10-corepin", "50-other")
    for owner in connected:
        assert node.plugin.validate(validation(owner, *connected)) == ""
    assert node.plugin.validate(validation("10-corepin", *connected)) == ""
    assert node.plugin.other_plugins == {"50-other"}
    node.plugin.validate(validation("10-corepin", "10-corepin"))
    assert node.plugin.other_plugins == set()


def test_plugin_that_sets_cpusets_where_the_agent_only_observes_is_in_nobodys_way() -> None:
    """It is the program that allocates the CPUs of this node then, also when there was a conflict before."""
    node = Node(one_pod(EXCLUSIVE))
    request = validation("50-other", "50-other")
    node.plugin.validate(request)
    node.plugin.table = None
    assert node.plugin.validate(request) == ""
    assert node.plugin.other_plugins == set()


@pytest.mark.parametrize(("validates", "others"), [(True, {"unnamed"}), (False, set())])
def test_creation_that_is_not_validated_was_stopped_by_another_plugin(
    node: Node, validates: bool, others: set[str]
) -> None:
    """Two plugins that set one cpuset make the creation fail; where nothing is validated that cannot be known."""
    node.plugin.validates = validates
    node.cpus(A)
    node.plugin.validate(pb.ValidateContainerAdjustmentRequest(pod=A, container=container("c0", "a")))
    node.cpus(A)
    assert node.plugin.other_plugins == set()
    node.cpus(A)
    assert node.plugin.other_plugins == others
    node.plugin.validate(pb.ValidateContainerAdjustmentRequest(pod=A, container=container("c0", "a")))
    assert node.plugin.other_plugins == set()


def test_creation_that_was_cut_off_tells_of_nobody(node: Node) -> None:
    """A runtime that went away before it validated has made nothing."""
    node.plugin.validates = True
    node.cpus(A)
    node.plugin.doubt_last_answer()
    node.cpus(A)
    assert node.plugin.other_plugins == set()


def test_last_answer_is_doubted_when_the_connection_ends(node: Node) -> None:
    """A runtime that waited too long makes the container without it; those before it were made as answered."""
    node.cpus(A)
    node.cpus(B)
    node.plugin.doubt_last_answer()
    assert node.plugin.started.keys() == {"a-c0"}


@pytest.mark.parametrize("sign", ["validated", "started", "seen"])
def test_answer_that_was_taken_is_not_doubted(node: Node, sign: str) -> None:
    """The runtime went on with it, or a pass has seen the container."""
    node.cpus(A)
    if sign == "validated":
        node.plugin.validate(validation("10-corepin"))
    elif sign == "started":
        node.plugin.event(Event.START_CONTAINER, known_pod(A), known(container("c0", "a")))
    else:
        table = node.publish()
        node.plugin.table = replace(table, seen={"a-c0": CPUSet.parse("1,5")})
    node.plugin.doubt_last_answer()
    assert node.plugin.started.keys() == {"a-c0"}


def test_not_seen_names_no_pod(node: Node) -> None:
    """The text is the same for every pod, so that its events are counted together."""
    with pytest.raises(Reject) as rejected:
        node.cpus(pod("late", annotations={GUARDED: "true"}))
    assert rejected.value.message == NOT_SEEN
