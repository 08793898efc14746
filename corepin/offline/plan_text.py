"""Plan of a node as text: the machine, the assignments with their reasons, the refusals, and the cost of sidecars."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING, Any

from corepin.offline.devices import device_rows
from corepin.offline.near_free import near_free
from drawing.picture import Holder, Picture, draw_lines, pools_drawn, reading_order
from drawing.policy_words import CORE_TYPE_WORDS, NUMA_WORDS, SMT_WORDS, devices_on, near_words
from drawing.spans import paint, text_line
from logs.printable import plain
from pinning.contract import CPUPolicy
from pinning.planning.memory import too_much_memory
from pinning.planning.run_sets import asked
from pinning.pods.claims import Origin
from pinning.pods.quantity import millicores
from pinning.pods.resources import members
from published.pod_status import POD, POOL_OWNER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from corepin.offline.simulate import PlannedNode, Step
    from drawing.spans import Painted
    from pinning.machine.topology import Topology
    from pinning.planning.ledger import Assignment


def describe(node: PlannedNode, step: Step, width: int, *, colour: bool) -> Painted:
    """Return the machine, assignments and refusals of a step as text."""
    held = sorted(step.ledger.parts, key=lambda assignment: reading_order(label(assignment)))
    machines = [
        (assignment.name, step.machines[assignment.name])
        for assignment in held
        if assignment.name in step.machines
    ]
    parts = {
        "": [
            f"{label(assignment)}: {_why(node.topology, assignment)}{_beside(node, step, assignment)}"
            for assignment in held
            if assignment.cpus
        ],
        "devices": [*filter(None, [near_words(near_free(node, step))])],
        "claims": [claim.as_text(node.topology) for claim in step.claims if claim.cpus],
        "threads of virtual machines": [f"{name}: {threads}" for name, threads in machines],
        "refused": [
            *(f"{refusal.name}: {refusal.reason}: {refusal.message}" for refusal in step.refusals),
            *(f"{it.name} of {it.asked} CPUs: {it.refused}" for it in step.claims if it.refused),
        ],
        "warnings": [
            *(f"{step.pod}: {warning}" for warning in step.warnings),
            *_memory(node, held),
            *(f"{name}: {warning}" for name, threads in machines for warning in threads.warnings),
        ],
        "hidden cost": [*_idle_cost(held), *_sidecar_cost(step)],
    }
    lines = [line for title, texts in parts.items() if texts for line in _section(title, texts, width)]
    return paint([*draw_lines(_picture(node, step, held), width), *map(text_line, lines)], colour=colour)


def label(assignment: Assignment) -> str:
    """Return the name of a container's CPUs, or of a pod's pool, as in `corepin map`."""
    return f"{assignment.name}/{POOL_OWNER}" if assignment.is_pool else assignment.name


def policy_word(assignment: Assignment) -> str:
    """Return the word for the CPU policy in a pod's status annotation."""
    return POD if assignment.is_pool else str(assignment.policy)


def _picture(node: PlannedNode, step: Step, held: list[Assignment]) -> Picture:
    sets, shared = node.sets, node.sets.shared(step.ledger)
    free = sets.allocatable - step.ledger.held - shared - sets.isolated
    owners = (
        Holder(
            label(assignment),
            assignment.cpus,
            assignment.idle,
            shares=assignment.policy is CPUPolicy.SHARE,
        )
        for assignment in held
        if assignment.cpus
    )
    claims = (Holder(claim.name, claim.cpus) for claim in step.claims if claim.cpus)
    return Picture(
        node.topology,
        (*owners, *claims),
        reserved=sets.reserved,
        shared=shared,
        pools=pools_drawn(sets.pools.set_aside & sets.universe, free),
        reserve_source=sets.reserve_source,
        devices=devices_on((device.resource, device.nodes) for device in node.devices),
    )


def _section(title: str, texts: list[str], width: int) -> Iterator[str]:
    yield ""
    if title:
        yield f"{title}:"
    indent = "  " if title else ""
    for text in texts:
        yield from wrap(plain(text), width, initial_indent=indent, subsequent_indent=f"{indent}  ")


def _why(topology: Topology, assignment: Assignment) -> str:
    """Return a text with the CPUs of a container, their NUMA nodes, and the policies that chose them."""
    nodes = [str(number) for number, cpus in topology.numa_nodes.items() if cpus & assignment.cpus]
    where = f"CPU{'s' * (len(assignment.cpus) > 1)} {assignment.cpus} on NUMA node{'s' * (len(nodes) > 1)} {', '.join(nodes)}"
    memory = f"; memory of NUMA node {assignment.mems} alone" if assignment.mems else ""
    apart = assignment.cpus & topology.isolated
    note = "; isolcpus: the kernel does not balance threads there" if len(apart) > 1 else ""
    shared = "; also the shared set, for threads that it moves there" if asked(assignment) else ""
    return f"{policy_word(assignment)}, {where}: {_rule(assignment)}{memory}{shared}{note}"


def _beside(node: PlannedNode, step: Step, assignment: Assignment) -> str:
    """Return the NUMA nodes of a container's devices, and whether its CPUs are near them."""
    rows = device_rows(node.topology, step.devices.get(assignment.owner, ()), assignment.cpus)
    return "".join(map(_beside_one, rows))


def _beside_one(row: Mapping[str, Any]) -> str:
    what, nodes = f"{row['count']} {row['resource']}", row["nodes"]
    if row["near"] is None:
        return f"; with {what}, whose NUMA node is not known"
    where = f"NUMA node{'s' * (len(nodes) > 1)} {', '.join(map(str, nodes))}"
    return f"; {'beside' if row['near'] else 'not all beside'} {what} on {where}"


def _rule(assignment: Assignment) -> str:
    claim = assignment.claim
    if claim.pool:
        users = (
            ", ".join(user.container for user in claim.pool.users) or "containers without CPUs of their own"
        )
        return f"the rest of the pod's budget, for {users}"
    numa = ", ".join(filter(None, (NUMA_WORDS[assignment.numa], CORE_TYPE_WORDS.get(assignment.core_type))))
    if assignment.policy is CPUPolicy.SHARE:
        return f"{_counted(claim.count)} that other containers may use too, {numa}"
    if claim.origin is Origin.CMK:
        cores = f"{claim.count} of {claim.resource}, {SMT_WORDS[assignment.smt]}"
        return ", ".join(filter(None, (cores, CORE_TYPE_WORDS.get(assignment.core_type))))
    is_vm = claim.origin is Origin.LAUNCHER
    wanted = "dedicated CPUs of a virtual machine" if is_vm else _counted(claim.count)
    return f"{wanted}, smt-policy {assignment.smt} ({SMT_WORDS[assignment.smt]}), {numa}"


def _counted(count: int) -> str:
    return f"{count} CPU{'s' * (count != 1)}"


def _memory(node: PlannedNode, held: list[Assignment]) -> Iterator[str]:
    for assignment in held:
        if problem := too_much_memory(assignment, node.topology):
            yield f"{assignment.name}: {problem}"


def _idle_cost(held: list[Assignment]) -> Iterator[str]:
    for assignment in held:
        if assignment.idle:
            yield f"{assignment.name} keeps CPU{'s' * (len(assignment.idle) > 1)} {assignment.idle} idle: {len(assignment.idle)} in addition to those that it runs on"


def _sidecar_cost(step: Step) -> Iterator[str]:
    """Yield lines on the CPU that sidecars in pods with exclusive CPUs request, which the scheduler also counts.

    Sidecars in the pool of a pod are part of its budget, and not listed.
    """
    owners = {
        (f"{assignment.namespace}/{assignment.pod}", assignment.owner.container) for assignment in step.ledger
    }
    with_pools = {pool.name for pool in step.ledger.pools.values()}
    with_owners = {pod for pod, _ in owners} - with_pools
    for key in sorted(with_owners & step.documents.keys(), key=reading_order):
        for member in members(step.documents[key].pod):
            cpu = millicores(member.requests.get("cpu", 0))
            if cpu and (key, member.name) not in owners and not member.is_gate:
                yield f"{key}/{member.name} requests {cpu}m CPU in addition to the pinned containers, and has no CPUs of its own"
