"""View of a node for `corepin map`, from the agent's state or its node annotations. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from corepin.errors import CommandFailed
from drawing.claim_words import claim_words
from drawing.picture import reading_order
from drawing.policy_words import device_words, devices_on, near_words, noise_words
from drawing.reported import picture_of
from pinning.errors import PinningError
from pinning.machine.cpuset import CPUSet, union
from pinning.machine.topology import Topology
from published.agent_state import AgentState
from published.codec import AnotherVersion, decode
from published.node_pools import Owner, Pools
from published.node_topology import decode_topology
from published.pod_status import POD, POOL_OWNER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from drawing.picture import Picture
    from published.agent_state import Pod, Quiet
    from published.node_pools import Sets
    from published.pod_status import Applied, Container, Execs, Machine, Noise


@dataclass(frozen=True)
class NodeView:
    """A node to draw: header lines, the machine, and lines about containers and problems."""

    title: str
    picture: Picture
    containers: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()
    start: str = ""  # how new containers get their CPUs
    caches: str = ""  # whether claims get CPUs of one last-level cache
    near: str = ""  # free CPUs near devices, if these are counted


def view_of_state(text: bytes) -> NodeView:
    """Return the view of the agent's state; raise CommandFailed if another version of corepin wrote it."""
    try:
        return _of_state(decode(AgentState, text))
    except PinningError as error:
        raise CommandFailed(str(AnotherVersion.of(AgentState.NAME, error))) from error


def view_of_annotations(node: str, topology: str, pools: str) -> NodeView:
    """Return the view of a node's two annotations; raise CommandFailed if another version of corepin wrote them."""
    try:
        return _of_annotations(node, decode_topology(topology), decode(Pools, pools))
    except PinningError as error:
        raise CommandFailed(f"node {node}: {AnotherVersion.of(Pools.NAME, error)}") from error


def _of_state(state: AgentState) -> NodeView:
    held: dict[str, Owner | Container] = {
        f"{pod.namespace}/{pod.name}/{name}": container
        for pod in state.pods
        for name, container in pod.containers.items()
        if container.policy not in ("", POD)
    }
    held |= {
        f"{pod.namespace}/{pod.name}/{POOL_OWNER}": Owner(policy=POD, cpus=pod.pool.cpus, idle=pod.pool.idle)
        for pod in state.pods
        if pod.pool and pod.pool.cpus
    }
    return NodeView(
        title=f"node {state.node}, {state.runtime}",
        picture=picture_of(
            Topology.from_dict(state.topology), state.sets, held, devices_on(_devices(state.pods))
        ),
        start=""
        if state.observes
        else _STARTS.get(state.start_path, f"containers get their CPUs by {state.start_path}"),
        caches=_caches(state.sets, observes=state.observes),
        near=near_words(state.sets.near_cpus, state.sets.more_near_cpus),
        containers=(*_lines(state.pods), *_uncounted_execs(state)),
        troubles=tuple(_troubles(state)),
    )


def _devices(pods: Iterable[Pod]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield resource and NUMA nodes of the devices of containers."""
    for pod in pods:
        for container in pod.containers.values():
            yield from ((device.resource, device.nodes) for device in container.devices)


def _of_annotations(node: str, topology: Topology, pools: Pools) -> NodeView:
    owners = sorted(pools.owners.items(), key=lambda owner: reading_order(owner[0]))
    containers = tuple(f"{name}: {owner.policy}, CPUs {owner.cpus}" for name, owner in owners)
    observes = (_OBSERVES,) if pools.observes else ()
    left_out = (_LEFT_OUT.format(pools.more_owners),) if pools.more_owners else ()
    troubles = (*observes, *left_out)
    picture = picture_of(topology, pools, pools.owners, {})
    caches = _caches(pools, observes=pools.observes)
    title, near = f"node {node}, as it was published", near_words(pools.near_cpus, pools.more_near_cpus)
    return NodeView(title, picture, containers, troubles, caches=caches, near=near)


def _caches(sets: Sets, *, observes: bool) -> str:
    """Return a text on whether claims get CPUs of one last-level cache; empty if the agent does not report that."""
    if observes or sets.align_uncore is None:
        return ""
    if sets.align_uncore:
        return "claims get CPUs of one last-level cache where one has room (alignUncore)"
    return "claims get CPUs without regard to last-level caches (alignUncore is off)"


_STARTS = {
    "nri": "containers get their CPUs before their first instruction (NRI)",
    "cgroup": "containers get their CPUs when their cgroup is created",
    "runtime": "containers get their CPUs when the runtime lists them",
}
_LEFT_OUT = "the Node has no room for {} more owners: `corepin map` on the node itself shows all"
_OBSERVES = (
    "corepin only observes here: the kubelet's static policy assigns the CPUs, or `observe` is configured"
)


def _lines(pods: Iterable[Pod]) -> Iterator[str]:
    for pod in pods:
        key = f"{pod.namespace}/{pod.name}"
        if pod.pool:
            yield f"{key}: budget of {pod.pool.budget} CPUs, pool {pod.pool.cpus or 'empty'}"
        for name, container in pod.containers.items():
            if container.applied or container.policy or container.refusal:
                words = _words(container, in_vm=pod.vm is not None)
                yield f"{key}/{name}: {', '.join(words)}"
        if pod.vm:
            yield f"{key}: virtual machine ({pod.vm.kind}), {', '.join(_machine(pod.vm))}"


def _machine(vm: Machine) -> Iterator[str]:
    """Yield the CPUs of a virtual machine's threads, as read from the kernel."""
    if vm.one_to_one:
        first, *more = (f"{number} on CPU {cpus}" for number, cpus in enumerate(vm.vcpus))
        yield f"vCPU {first}"
        yield from more
    elif vm.vcpus:
        cpus = union(map(CPUSet.parse, vm.vcpus))
        yield f"{len(vm.vcpus)} vCPU{'s' * (len(vm.vcpus) != 1)} on CPU{'s' * (len(cpus) != 1)} {cpus}"
    yield f"emulator on {vm.emulator}"
    if vm.iothreads:
        yield f"iothreads on {' and '.join(dict.fromkeys(vm.iothreads))}"
    if vm.vhost:
        yield f"vhost on {vm.vhost}"
    if vm.refused:
        yield f"the kernel keeps {' and '.join(vm.refused)} on other CPUs"
    if vm.reason:
        yield f"vCPUs not pinned one to one ({vm.reason})"
    if vm.note:
        yield vm.note


def _words(container: Container, *, in_vm: bool) -> Iterator[str]:
    """Yield texts about the CPUs of a container, assigned and as read from the kernel."""
    others = container.shared_cpus
    # Containers without a claim run on the CPUs of the pod's machine, which other containers of the pod may own.
    where = f"{container.policy} on CPUs" if container.policy else "shared CPUs"
    if container.policy == POD:
        where = "on CPUs of its pod"
    if in_vm and not container.policy:
        where = "its virtual machine's CPUs"
    yield f"{where} {container.cpus}{others and f' and shared CPUs {others}'}"
    if container.applied is None:
        yield "not running"
    else:
        yield from _proof(container.applied, CPUSet.parse(container.cpus) | CPUSet.parse(others))
    yield from claim_words(container)
    yield from device_words(container)
    yield from _disturbances(container)
    if container.intruders:
        yield f"with {', '.join(container.intruders)} on its CPUs"
    if container.uncounted:
        yield f"uncounted: {container.uncounted}"
    if refusal := container.refusal:
        yield f"NOT PINNED ({refusal.reason}: {refusal.message})"


def _disturbances(container: Container) -> Iterator[str]:
    """Yield texts on whether a container's CPUs are kept quiet, and on the noise counted there."""
    if container.quiet:
        yield f"{'other ' * bool(container.kept)}interrupts kept off"
    if container.not_proven:
        yield f"not proven: {container.not_proven}"
    if container.not_quiet:
        yield f"not kept quiet: {container.not_quiet}"
    if container.kept:
        yield f"interrupts on its CPUs by its irq-policy: {', '.join(container.kept)}"
    if container.not_kept:
        yield f"irq-policy: {container.not_kept}"
    if container.noise:
        yield from _noise(container.noise)
    if container.execs:
        yield from _execs(container.execs)


def _proof(applied: Applied, wanted: CPUSet) -> Iterator[str]:
    if CPUSet.parse(applied.cpus) == wanted:
        yield "as the kernel says"
    else:
        yield f"but the kernel lets it use {applied.cpus}"
    if applied.outside:
        yield f"{_tasks(applied.outside)} allowed on other CPUs"
    if applied.narrowed:
        yield f"{_tasks(applied.narrowed)} on fewer of them, by their own choice"
    if tally := applied.affinity:
        parts = f"{_tasks(tally.home)} bound to its own CPUs by affinity, {tally.others} to the shared CPUs"
        yield f"{parts}, {tally.both} to both" if tally.both else parts


def _noise(noise: Noise) -> Iterator[str]:
    """Yield the counted noise of a container per second, and the reason for each unknown count."""
    if noise.kind:
        yield f"{noise_words(noise.kind)} since {noise.since}"
    counts = {
        "device interrupts": noise.interrupts,
        "softirqs": noise.softirqs,
        "ms of waiting": None if noise.wait_seconds is None else 1000 * noise.wait_seconds,
        "involuntary switches": noise.involuntary_switches,
        "time slices of other tasks": noise.other_slices,
    }
    seconds = max(noise.seconds, 1.0)
    known = [f"{count / seconds:.3g} {what}" for what, count in counts.items() if count is not None]
    if known:
        yield f"disturbances per second: {', '.join(known)}"
    for reason in noise.unknown:
        yield f"not counted: {reason}"


def _uncounted_execs(state: AgentState) -> Iterator[str]:
    """Yield the reason why processes that enter containers by exec are not counted, if they are not."""
    if state.execs_reason:
        yield f"processes that enter by exec are not counted: {state.execs_reason}"


def _execs(execs: Execs) -> Iterator[str]:
    """Yield the number of processes that entered a container by exec, and their CPUs."""
    yield f"entered by exec {execs.count} time{'s' * (execs.count != 1)}, last at {execs.time}"
    if execs.cpus:
        late = (
            ""
            if execs.seconds is None
            else f", at the latest {1000 * execs.seconds:.3g} ms after their start"
        )
        yield f"{execs.placed} of these put on CPUs {execs.cpus}{late}"


def _tasks(count: int) -> str:
    return f"{count} task{'s' * (count != 1)}"


def _troubles(state: AgentState) -> Iterator[str]:
    if state.observes:
        yield _OBSERVES
    if not state.pods_complete:
        yield "the list of pods is incomplete: no container loses CPUs until it is complete"
    if not state.containers_complete:
        yield "the runtime does not answer: this state may be stale"
    for pod in state.pods:
        if pod.refusal:
            yield f"{pod.namespace}/{pod.name}: {pod.refusal.message}"
    for name in state.other_plugins:
        yield f"another NRI plugin ({name}) sets CPUs too: stop it, only one program may own the CPUs of a node"
    for conflict in state.conflicts:
        cause = f"another program rewrote its CPUs {conflict.rewrites} times, and the agent does not correct them for now"
        yield f"{conflict.container}: {cause}: stop that program (`corepin doctor` names candidates)"
    yield from _undone(state.quiet) if state.quiet else ()
    for name in state.failures:
        yield f"{name}: its CPUs could not be set, and the agent tries again: see its log"


def _undone(quiet: Quiet) -> Iterator[str]:
    """Yield a text for each interrupt or kernel setting of quiet CPUs that another program keeps changing back."""
    for name in quiet.conflicts:
        cause = "another program moved it back three times, and the agent does not correct it for now"
        yield f"interrupt {name}: {cause}: stop that program, or ban the quiet CPUs in its configuration"
    for name in (it for part in quiet.parts for it in part.conflicts):
        cause = "another program changed it back three times, and the agent does not correct it for now"
        yield f"{name}: {cause}: stop that program"
