"""Target CPUs of virtual machines, on nodes where the agent or the kubelet allocates CPUs."""

from __future__ import annotations

from agent.interfaces import HeldCPUs, RuntimeContainer, RuntimeSandbox
from agent.reconcile.machine_record import NO_TARGET, MachineRecord, VMTarget, place_of
from agent.reconcile.vm_targets import UNSAID, observed_targets, planned_targets, sandbox_targets
from agent.vm_interfaces import VMPlace
from pinning.contract import VMThreadsPolicy
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.ledger import Ledger
from pinning.planning.node_config import NodeConfig
from pinning.planning.observed import Observed, Owner, SeenContainer, SeenPod, SeenSandbox, State
from pinning.planning.plan import Plan, plan
from tests.pinning.machines import FLAT
from tests.pinning.world import Wish, pod_document

PAIR, OTHERS = CPUSet.parse("1,5"), CPUSet.parse("0,2-4,6-7")
UNION, SHARED = VMThreadsPolicy.UNION, VMThreadsPolicy.SHARED
SANDBOX = RuntimeSandbox("s-k", "k", "test", "pod-k", "kata-qemu", 300, "/kubepods/k/s-k")


def launcher(state: State = State.RUNNING, name: str = "compute", *, in_vm: bool = False) -> RuntimeContainer:
    """Return a container of launcher pod v."""
    return RuntimeContainer("id-v", "v", "test", "pod-v", name, state, 200, "/kubepods/v/id-v", in_vm)


def inside(name: str, state: State = State.RUNNING) -> RuntimeContainer:
    """Return a container of pod k, which runs in a sandbox."""
    return RuntimeContainer(f"id-{name}", "k", "test", "pod-k", name, state, 300, None, True, sandbox="s-k")


LAUNCHER = VMPlace("id-v", 200, "/kubepods/v/id-v", is_sandbox=False)
LAUNCHED = SeenPod.of(pod_document("v", [Wish("2")], vm=True))  # type: ignore[arg-type]


def planned(*containers: SeenContainer, sandboxes: tuple[SeenSandbox, ...] = ()) -> Plan:
    """Return the plan of a node with the launcher v and the pod k, which holds two CPUs."""
    pods = (LAUNCHED, SeenPod.of(pod_document("k", [Wish("2", policy="exclusive")])))  # type: ignore[arg-type]
    observed = Observed(FLAT, FLAT.online, pods, containers, sandboxes)
    return plan(observed, Ledger(), NodeConfig())


def record(target: VMTarget = NO_TARGET) -> MachineRecord:
    """Return the record of the sandbox, with the target of the last plan."""
    machine = MachineRecord(place_of(SANDBOX), 0.0)
    machine.listed(SANDBOX)
    machine.aim(machine.place, target, 0.0)
    return machine


def test_launcher_target_is_the_cpus_of_its_container() -> None:
    """The target of a launcher is the CPUs of its running compute container, also after its pod was deleted."""
    made = planned()
    held = made.ledger.of(Owner("v", "compute"))
    assert held
    target = VMTarget("v", held.cpus, smt=held.smt)

    assert planned_targets([launcher()], [LAUNCHED], made) == {LAUNCHER: target}
    assert planned_targets([launcher()], [], made) == {LAUNCHER: target}
    for other in (launcher(State.EXITED), launcher(name="log"), launcher(in_vm=True)):
        assert planned_targets([other], [LAUNCHED], made) == {}


def test_sandbox_keeps_its_last_target_until_its_move_is_done() -> None:
    """While the move of a sandbox is pending it keeps its last target, because others have not left the new CPUs yet."""
    made = planned(sandboxes=(SeenSandbox("s-k", "k", FLAT.online),))
    held = made.ledger.of(Owner("k", "c0"))
    assert held
    place, before = place_of(SANDBOX), VMTarget("k", EMPTY, OTHERS)

    assert sandbox_targets(made, {"s-k": record()}, ()) == {place: VMTarget("k", held.cpus, held.cpus)}
    assert sandbox_targets(made, {"s-k": record(before)}, {"s-k"}) == {place: before}
    assert sandbox_targets(made, {"s-k": record()}, {"s-k"}) == {}
    assert sandbox_targets(made, {}, ()) == {}


def observed(held: dict[Owner, HeldCPUs], policy: VMThreadsPolicy = UNION) -> dict[VMPlace, VMTarget]:
    """Return the targets if the kubelet has allocated these CPUs."""
    containers = [launcher(), inside("a"), inside("b"), inside("old", State.EXITED)]
    return observed_targets(containers, [LAUNCHED], [record()], held, policy)


def test_launcher_target_is_its_cpus_of_the_kubelet() -> None:
    """The target of a launcher is its exclusive CPUs, or a cpuset of the requested size, but never shared CPUs."""
    owner = Owner("v", "compute")

    for word in (True, None):
        assert observed({owner: HeldCPUs(PAIR, word)}) == {LAUNCHER: VMTarget("v", PAIR)}
    for held in (HeldCPUs(PAIR, False), HeldCPUs(OTHERS, None)):
        assert observed({owner: held}) == {}


def test_sandbox_target_is_the_kubelets_cpus_of_its_containers() -> None:
    """The target of a sandbox is the CPUs that its containers own; shared containers add CPUs only by policy."""
    a, b, old = (Owner("k", name) for name in ("a", "b", "old"))
    place, beside = place_of(SANDBOX), HeldCPUs(OTHERS, False)

    assert observed({a: HeldCPUs(PAIR, True), b: beside}) == {place: VMTarget("k", PAIR, PAIR)}
    assert observed({a: HeldCPUs(PAIR, True), b: beside}, SHARED) == {place: VMTarget("k", PAIR, OTHERS)}
    assert observed({a: HeldCPUs(PAIR, True)}, SHARED) == {place: VMTarget("k", PAIR, PAIR)}
    assert observed({a: beside, b: beside}) == {place: VMTarget("k", EMPTY, OTHERS)}
    assert observed({old: HeldCPUs(PAIR, True)}) == {}


def test_sandbox_with_cpus_of_unknown_owner_is_only_confined() -> None:
    """If the kubelet does not report which CPUs are exclusive, the sandbox is only confined, and its vCPUs are not pinned."""
    held = {Owner("k", "a"): HeldCPUs(PAIR, None), Owner("k", "b"): HeldCPUs(CPUSet([2]), True)}
    cpus = CPUSet.parse("1-2,5")

    assert observed(held) == {place_of(SANDBOX): VMTarget("k", cpus, cpus, doubt=UNSAID)}
