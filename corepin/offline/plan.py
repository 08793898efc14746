"""`corepin plan`: the CPUs that pods and ResourceClaims would get on a machine, with reasons.

It needs neither machine nor cluster.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corepin.documents import (
    add_file_flag,
    read_documents,
    read_text,
    shown_source,
    write_error,
    write_out,
    write_painted,
)
from corepin.errors import CommandFailed
from corepin.flags import add_output_flag, filled
from corepin.node.kube_api import add_context_flag
from logs.printable import json_text, plain

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Iterator

    from corepin.documents import Item
    from corepin.offline.planned import Planned
    from corepin.offline.simulate import PlannedNode, Step
    from pinning.machine.topology import Topology
    from pinning.planning.ledger import Assignment
    from pinning.planning.node_config import NodeConfig

_LISTED = 3  # documents named in a message
DESCRIPTION = "Show which CPUs pods and ResourceClaims would get on a machine, and why, or why not."
EPILOG = """\
A workload is planned as one pod for each replica (a DaemonSet as one, a Job as those that run at once), a virtual
machine as its launcher with the CPU of each vCPU; other kinds are ignored. Objects whose controller is among the documents are
not counted again, so the output of `kubectl get deploy,rs,pods -o yaml` can be given as it is. Documents are events in
their order: a second one of the same kind, namespace and name is an update, one with metadata.deletionTimestamp a
deletion. With -o json one line is printed after each pod that is created, changed or deleted, and after each claim; the
text shows the machine after the last one. This command makes the file for --topology:
`LC_ALL=C lscpu --all --json --extended=CPU,NODE,SOCKET,CORE,CACHE,ONLINE`.
Exit code: 0 planned, also where claims are refused, 2 a file, a flag or the node could not be read.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the verb `plan` to the command."""
    parser = subparsers.add_parser(
        "plan", help="show which CPUs pods would get on a machine", description=DESCRIPTION, epilog=EPILOG
    )
    add_file_flag(parser, required=False)
    machine = parser.add_mutually_exclusive_group(required=True)
    machine.add_argument(
        "--topology",
        metavar="FILE|DIR",
        type=filled,
        help="the machine: JSON of lscpu, - for standard input, or a directory that stands for /, with a copy of sys",
    )
    machine.add_argument(
        "--node",
        metavar="NAME",
        type=filled,
        help="a node of the cluster, as its agent published it, as if no container held CPUs there",
    )
    add_context_flag(parser)
    parser.add_argument(
        "--reserved",
        metavar="LIST",
        help='reserved CPUs, which no claim gets, e.g. "0-1,8" (default: those of --config or --node, else the core of the lowest CPU that is not isolated)',
    )
    parser.add_argument(
        "--config", metavar="FILE", type=filled, help="the node's configuration, as the agent reads it"
    )
    _add_devices_and_claims(parser)
    add_output_flag(parser, "one JSON line after each event")
    return parser


def _add_devices_and_claims(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the devices of pods, and for claims."""
    parser.add_argument(
        "--device",
        metavar="RESOURCE=NODE,NODE...",
        action="append",
        default=[],
        help="devices of the machine by their NUMA nodes, e.g. nvidia.com/gpu=0,0,1,1: pods that ask for some get any free"
        " ones, and CPUs near them",
    )
    parser.add_argument(
        "--devices",
        metavar="FILE",
        type=filled,
        help="which devices of --device the pods get, by their NUMA nodes, e.g. {default/web: {main: {nvidia.com/gpu: [1]}}}",
    )
    parser.add_argument(
        "--claim",
        metavar="N",
        action="append",
        default=[],
        help="a ResourceClaim of N CPUs of class cpu.corepin.io or dra.cpu, allocated after the pods of -f; with it -f may be"
        " left out; may be repeated",
    )


def run(args: argparse.Namespace) -> int:
    """Print the plan; pods and claims that do not fit are part of the output and no error."""
    from corepin.offline.claims import read_claims
    from corepin.offline.devices import notes_on, read_devices
    from corepin.offline.given_devices import read_given
    from corepin.offline.simulate import PlannedNode
    from corepin.terminal import columns, wants_colour
    from pinning.errors import PinningError
    from pinning.planning.node_sets import check_machine

    claims = read_claims(args.claim)
    if not args.filename and not claims:
        raise CommandFailed(
            "nothing to plan: give pods by -f FILE, or the CPUs of a ResourceClaim by --claim N"
        )
    documents = _documents(args.filename) if args.filename else []
    try:
        topology, published = _read_published(args) if args.node else (read_machine(args.topology), None)
        config = _read_config(args.config, args.reserved, published)
        check_machine(topology, topology.online, config)
    except PinningError as problem:
        raise CommandFailed(str(problem)) from problem
    node = PlannedNode(topology, config, read_devices(args.device), read_given(args.devices))
    for note in (*notes_on(topology, node.devices), *_not_planned(node.chosen, documents)):
        _note(note)
    steps = node.steps(documents, claims)
    if args.output == "json":
        write_out("".join(_json(node, step) for step in steps))
        return 0
    from corepin.offline.plan_text import describe

    *_, last = (node.empty, *steps)
    colour, width = wants_colour(sys.stdout, os.environ), columns(sys.stdout, os.environ)
    write_painted(describe(node, last, width, colour=colour))
    return 0


def _documents(sources: list[str]) -> list[Planned]:
    """Return the documents that have pods; list the ignored ones on standard error."""
    from corepin.offline.owners import check_instances, split_owned
    from corepin.offline.planned import planned

    items = [item for source in sources for document in read_documents(source) for item in document.items()]
    if not items:
        raise CommandFailed(
            f"{', '.join(sources)}: every list is empty: give pods, workloads or virtual machines"
        )
    found = [(item, planned(item, number)) for number, item in enumerate(items)]
    others = [item for item, document in found if not document]
    counted, owned = split_owned([document for _, document in found if document])
    if not counted:
        problem = "brings no pods: give pods, workloads or virtual machines"
        raise others[0].document.failed(f"{_named(others[0])} {problem}")
    check_instances(counted)
    for document in counted:
        if not document.names:
            _note(document.item.document.failed(f"{document.item.title}: brings no pod: {document.why_none}"))
    if owned:
        _note(f"counted with their owners: {_listed([document.item.title for document in owned])}")
    if others:
        _note(f"skipped because they define no pods: {_listed([_named(item) for item in others])}")
    return counted


def _not_planned(pods: Collection[str], documents: list[Planned]) -> Iterator[str]:
    """Yield a note about pods for which --devices chooses devices and which no document defines."""
    planned = {f"{document.namespace}/{name}" for document in documents for name in document.names}
    if others := [pod for pod in pods if pod not in planned]:
        yield f"--devices names pods that no document defines: {_listed(others)}"


def _named(item: Item) -> str:
    return f"{item.title} ({item.api_version})"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{', '.join(names[:_LISTED])}{more}"


def _note(text: object) -> None:
    write_error(f"corepin plan: {plain(str(text))}")


def _read_published(args: argparse.Namespace) -> tuple[Topology, NodeConfig]:
    """Return the topology that a node publishes, and a configuration with its reserved CPUs."""
    from corepin.node.kube_node import read_node
    from corepin.node.node_view import view_of_annotations
    from pinning.contract import ReserveSource
    from pinning.planning.node_config import NodeConfig

    node = read_node(args.node, args.context)
    picture = view_of_annotations(node.name, node.topology, node.pools).picture
    if picture.reserve_source not in set(
        ReserveSource
    ):  # an earlier agent does not publish this value, and a later one may have other values
        return picture.topology, NodeConfig(reserved=picture.reserved)
    source = ReserveSource(picture.reserve_source)
    return picture.topology, NodeConfig(reserved=picture.reserved, reserve_source=source)


def read_machine(given: str) -> Topology:
    """Return a machine from lscpu's output, or from a directory used as / or /sys."""
    from agent.kernel.sysfs import read_topology
    from pinning.errors import PinningError
    from pinning.machine.lscpu import read_lscpu

    path = Path(given)
    if path.is_dir():
        is_sys = (path / "devices/system/cpu").is_dir() and not (path / "sys").is_dir()
        return read_topology(path.absolute().parent if is_sys and path.absolute().name == "sys" else path)
    text = read_text(given)
    try:
        return read_lscpu(text)
    except PinningError as problem:
        raise CommandFailed(f"{shown_source(given)}: {problem}") from problem


def _read_config(given: str | None, reserved: str | None, published: NodeConfig | None) -> NodeConfig:
    """Return the node's configuration; the flag for reserved CPUs overrides the file, and both override the cluster."""
    from dataclasses import replace

    from corepin.node_file import read_node_file
    from pinning.contract import ReserveSource
    from pinning.errors import BadCPUList
    from pinning.machine.cpuset import CPUSet
    from pinning.planning.node_config import DEFAULT

    config = (published or DEFAULT) if given is None else read_node_file(given)
    # Pods in files have not passed the webhook, which adds requests of extended resources.
    config = replace(config, counted_claims=frozenset())
    if reserved is None:
        return config
    try:
        cpus = CPUSet.parse(reserved)
    except BadCPUList as problem:
        raise CommandFailed(f'--reserved: {problem}; a list is for example "0-1,8"') from problem
    if not cpus:
        raise CommandFailed('--reserved: the list is empty: name CPUs such as "0,8", or leave the flag out')
    return replace(config, reserved=cpus, reserve_source=ReserveSource.CONFIGURED)


def _json(node: PlannedNode, step: Step) -> str:
    from corepin.offline.near_free import near_free
    from corepin.offline.plan_text import label
    from drawing.picture import reading_order

    held = {label(assignment): assignment for assignment in step.ledger.parts if assignment.cpus}
    claims = {claim.name: claim.as_json(node.topology) for claim in step.claims}
    line = {
        **({"pod": step.pod} if step.pod else {"claim": step.claims[-1].name}),
        **({"claims": claims} if claims else {}),
        "assignments": {
            name: _assignment(node, step, held[name]) for name in sorted(held, key=reading_order)
        },
        "shared": str(node.sets.shared(step.ledger)),
        "refused": [
            {"container": refusal.name, "reason": str(refusal.reason), "message": refusal.message}
            for refusal in step.refusals
        ],
    }
    near = {name: count.free for name, count in near_free(node, step).items()}
    return json_text(line | ({"nearCPUs": near} if near else {}))


def _assignment(node: PlannedNode, step: Step, assignment: Assignment) -> dict[str, Any]:
    from corepin.offline.devices import device_rows
    from corepin.offline.plan_text import policy_word
    from pinning.contract import CoreType

    nodes = node.topology.numa_nodes
    memory = {"memoryNodes": list(assignment.mems)} if assignment.mems else {}
    machine = step.machines.get(assignment.name)
    devices = device_rows(node.topology, step.devices.get(assignment.owner, ()), assignment.cpus)
    return {
        "policy": policy_word(assignment),
        "smtPolicy": str(assignment.smt),
        **({} if assignment.core_type is CoreType.ANY else {"coreType": str(assignment.core_type)}),
        "cpus": str(assignment.cpus),
        "idle": str(assignment.idle),
        "numaNodes": [number for number in nodes if nodes[number] & assignment.cpus],
        **memory,
        **({"devices": devices} if devices else {}),
        **({"vm": machine.as_json()} if machine else {}),
    }
