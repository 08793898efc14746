"""View of a node for `corepin map`, from the agent's state or its node annotations. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from corepin.errors import CommandFailed
from drawing.picture import reading_order
from drawing.reported import picture_of
from pinning.errors import PinningError
from pinning.json_text import parse_json
from pinning.machine.cpuset import CPUSet, union
from pinning.machine.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from drawing.picture import Picture


@dataclass(frozen=True)
class NodeView:
    """A node to draw: header lines, the machine, and lines about containers and problems."""

    title: str
    picture: Picture
    containers: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()
    start: str = ""  # how new containers get their CPUs
    caches: str = ""  # whether claims keep to one last-level cache


def view_of_state(state: Mapping[str, Any]) -> NodeView:
    """Return the view of the agent's state; raise CommandFailed for another version's."""
    try:
        return _of_state(state)
    except (KeyError, TypeError, ValueError, AttributeError, PinningError) as error:
        raise CommandFailed(
            f"the agent is of another version of corepin ({error!r}): use the same version"
        ) from error


def view_of_annotations(node: str, topology: str, pools: str) -> NodeView:
    """Return the view of a node's two annotations; raise CommandFailed for another version's."""
    try:
        return _of_annotations(node, parse_json(topology), parse_json(pools))
    except (KeyError, TypeError, ValueError, AttributeError, PinningError) as error:
        problem = f"node {node}: its annotations are of another version of corepin, or damaged ({error!r})"
        raise CommandFailed(f"{problem}: use the same version") from error


def _of_state(state: Mapping[str, Any]) -> NodeView:
    containers = [
        (f"{pod['namespace']}/{pod['name']}", container)
        for pod in state["pods"]
        for container in pod["containers"]
    ]
    held = [(f"{pod}/{container['name']}", container) for pod, container in containers if container["policy"]]
    return NodeView(
        title=f"node {state['node']}, {state['runtime']}",
        picture=picture_of(Topology.from_dict(state["topology"]), state["sets"], dict(held)),
        start="" if state["observes"] else _STARTS[state["startPath"]],
        caches=_caches(state, observes=state["observes"]),
        containers=tuple(_lines(state["pods"])),
        troubles=tuple(_troubles(state)),
    )


def _of_annotations(node: str, topology: Mapping[str, Any], pools: Mapping[str, Any]) -> NodeView:
    owners = pools["owners"]
    containers = tuple(f"{name}: {owner['policy']}, CPUs {owner['cpus']}" for name, owner in _ordered(owners))
    troubles = (_OBSERVES,) if pools["observes"] else ()
    picture = picture_of(Topology.from_dict(topology), pools, owners)
    caches = _caches(pools, observes=pools["observes"])
    return NodeView(f"node {node}, as it was published", picture, containers, troubles, caches=caches)


def _caches(report: Mapping[str, Any], *, observes: bool) -> str:
    """Return whether claims keep to one last-level cache; earlier agents do not report it."""
    if observes or "alignUncore" not in report:
        return ""
    if report["alignUncore"]:
        return "claims get CPUs of one last-level cache where one has room (alignUncore)"
    return "claims get CPUs whatever their last-level caches (alignUncore is off)"


def _ordered(owners: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(owners.items(), key=lambda owner: reading_order(owner[0]))


_STARTS = {
    "nri": "containers get their CPUs before their first instruction (NRI)",
    "cgroup": "containers get their CPUs when their cgroup is made",
    "runtime": "containers get their CPUs when the runtime shows them",
}
_OBSERVES = (
    "corepin only observes here: the kubelet's static policy assigns the CPUs, or `observe` is configured"
)


def _lines(pods: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for pod in pods:
        name = f"{pod['namespace']}/{pod['name']}"
        for container in pod["containers"]:
            if container["proof"] or container["policy"] or container["refusal"]:
                yield _container(f"{name}/{container['name']}", container, in_vm=bool(pod["vm"]))
        if pod["vm"]:
            yield f"{name}: virtual machine ({pod['vm']['kind']}), {', '.join(_machine(pod['vm']))}"


def _machine(vm: Mapping[str, Any]) -> Iterator[str]:
    """Yield the CPUs of a virtual machine's threads, as read from the kernel."""
    vcpus = vm["vcpus"]
    if vm["oneToOne"]:
        first, *more = (f"{number} on CPU {cpus}" for number, cpus in enumerate(vcpus))
        yield f"vCPU {first}"
        yield from more
    elif vcpus:
        cpus = union(map(CPUSet.parse, vcpus))
        yield f"{len(vcpus)} vCPU{'s' * (len(vcpus) != 1)} on CPU{'s' * (len(cpus) != 1)} {cpus}"
    yield f"emulator on {vm['emulator']}"
    if vm["iothreads"]:
        yield f"iothreads on {' and '.join(dict.fromkeys(vm['iothreads']))}"
    if vm["vhost"]:
        yield f"vhost on {vm['vhost']}"
    if vm["refused"]:
        yield f"the kernel keeps {' and '.join(vm['refused'])} elsewhere"
    if vm["reason"]:
        yield f"not one to one ({vm['reason']})"
    if vm["note"]:
        yield vm["note"]


def _container(name: str, container: Mapping[str, Any], *, in_vm: bool) -> str:
    """Return the CPUs of a container and how far they are verified."""
    return f"{name}: {', '.join(_words(container, in_vm=in_vm))}"


def _words(container: Mapping[str, Any], *, in_vm: bool) -> Iterator[str]:
    proof, refusal, others = container["proof"], container["refusal"], container["others"]
    # Containers without a claim run on the CPUs of the pod's machine, which others of the pod may own.
    where = f"{container['policy']} on CPUs" if container["policy"] else "shared CPUs"
    if in_vm and not container["policy"]:
        where = "its virtual machine's CPUs"
    yield f"{where} {container['cpus']}{others and f' and shared CPUs {others}'}"
    if proof is None:
        yield "not running"
    elif CPUSet.parse(proof["cpus"]) == CPUSet.parse(container["cpus"]) | CPUSet.parse(others):
        yield "as the kernel says"
    else:
        yield f"but the kernel lets it use {proof['cpus']}"
    if proof and proof["outside"]:
        yield f"{_tasks(proof['outside'])} allowed elsewhere"
    if proof and proof["narrowed"]:
        yield f"{_tasks(proof['narrowed'])} on fewer of them, by their own choice"
    if proof and (tally := proof["affinity"]):
        own, shared, both = tally["home"], tally["others"], tally["both"]
        parts = f"{_tasks(own)} on its own by affinity, {shared} on the shared ones"
        yield f"{parts}, {both} on both" if both else parts
    if container["intruders"]:
        yield f"with {', '.join(container['intruders'])} on its CPUs"
    if uncounted := container.get("uncounted"):
        yield f"uncounted: {uncounted}"
    if refusal:
        yield f"NOT PINNED ({refusal['reason']}: {refusal['message']})"


def _tasks(count: int) -> str:
    return f"{count} task{'s' * (count != 1)}"


def _troubles(state: Mapping[str, Any]) -> Iterator[str]:
    if state["observes"]:
        yield _OBSERVES
    if not state["podsComplete"]:
        yield "the list of pods is incomplete: no container loses CPUs until it is complete"
    if not state["containersComplete"]:
        yield "the runtime does not answer: what is shown may be old"
    for pod in state["pods"]:
        if pod["refusal"]:
            yield f"{pod['namespace']}/{pod['name']}: {pod['refusal']['message']}"
    for name in state["otherPlugins"]:
        yield f"another NRI plugin ({name}) sets CPUs too: stop it, only one program may own the CPUs of a node"
    for fight in state["fights"]:
        cause = f"another program rewrote its CPUs {fight['rewrites']} times, and they are left so for now"
        yield f"{fight['container']}: {cause}: stop that program (`corepin doctor` names candidates)"
    for name in state["failures"]:
        yield f"{name}: its CPUs could not be set, and the agent tries again: see its log"
