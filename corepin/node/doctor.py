"""`corepin doctor`: problems on this machine that prevent pinning, each with its remedy."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Final

from corepin.documents import write_out
from corepin.errors import CommandFailed
from corepin.flags import add_flag, add_noise_flag, add_optional_flag, add_output_flag
from corepin.host_flags import (
    add_host_flags,
    keeps_topology,
    nri_socket,
    publishes_near_cpus,
    runtime_endpoint,
)
from corepin.node.agent_socket import add_socket_flag, read_state
from corepin.node.claim_facts import claim_facts
from corepin.node.kube_api import add_context_flag
from corepin.terminal import columns
from logs.printable import json_text, plain
from pinning.contract import (
    AGENT_CONFIG,
    AGENT_NAMESPACE,
    AGENT_STATE,
    CPU_GROUP_LABEL,
    NEAR_CPUS,
    NUMA_CPUS,
    PRODUCT,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from agent.doctor.check import Check
    from agent.doctor.checks import Facts
    from agent.doctor.near import NearFacts
    from agent.doctor.numa import NUMAFacts
    from corepin.node.kube_node import KubeNode
    from published.agent_state import AgentState

DESCRIPTION = "Find the problems that prevent pinning on this machine, each with its remedy."
EPILOG = """\
Nothing is changed. Without agent or Kubernetes it reports what it could not check. Exit code: 0 no problem,
1 problems found, 2 the checks failed.
"""
SIGNS: Final = {"ok": "ok  ", "finding": "FIX ", "unknown": "?   "}
MARGIN: Final = "      "


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the verb `doctor` to the command."""
    parser = subparsers.add_parser(
        "doctor", help="find problems that prevent pinning", description=DESCRIPTION, epilog=EPILOG
    )
    add_socket_flag(parser)
    add_optional_flag(
        parser, "--node", "NAME", "this node's name in the cluster; default: the name that the agent reports"
    )
    add_host_flags(parser)
    add_context_flag(parser)
    add_flag(parser, "--config", "FILE", "the agent's node configuration", AGENT_CONFIG)
    add_flag(parser, "--state-dir", "DIR", "the agent's checkpoint and lock", AGENT_STATE)
    add_flag(parser, "--namespace", "NAME", "where agent and guard run", AGENT_NAMESPACE)
    add_flag(parser, "--seconds", "N", "how long to watch for foreign threads on exclusive CPUs", "1")
    add_noise_flag(parser)
    add_output_flag(parser, "JSON")
    return parser


def run(args: argparse.Namespace) -> int:
    """Print the findings; return 1 if there is something to fix."""
    from agent.doctor.check import Verdict
    from agent.doctor.checks import examine

    checks = examine(_facts(args))
    write_out(_json(checks) if args.output == "json" else _text(checks))
    return int(any(check.verdict is Verdict.FINDING for check in checks))


def _facts(args: argparse.Namespace) -> Facts:
    from agent.doctor.facts import Places, read_facts
    from agent.doctor.groups import GroupFacts
    from agent.kernel.cgroup_names import pod_roots
    from pinning.errors import PinningError
    from published.agent_state import AgentState
    from published.codec import AnotherVersion

    places = Places(
        root=Path(args.sysfs_root),
        cgroups=Path(args.cgroup_root),
        pod_roots=pod_roots(args.kubelet_cgroup_root),
        kubelet_state=Path(args.kubelet_state),
        runtime=runtime_endpoint(args),
        nri=nri_socket(args),
        debugfs=Path(args.debugfs),
        interrupts=Path(args.interrupts) if args.noise is not None else None,
        state=Path(args.state_dir),
        namespace=args.namespace,
    )
    try:
        state, why = _state(args.socket)
        facts = read_facts(places, state, _watched_seconds(args))
    except PinningError as error:
        raise CommandFailed(str(AnotherVersion.of(AgentState.NAME, error))) from error
    node, group = (state.node, state.group) if state else (None, None)
    node = args.node or node
    facts = replace(facts, group=GroupFacts(None, group, _groups(Path(args.config))))
    facts = replace(facts, claims=claim_facts(args, node))
    facts = _with_cluster(facts, node, args.context, {"agent": why} if why else {})
    if publishes_near_cpus(args):
        facts = replace(facts, near=_near(node, args.context))
    return replace(facts, numa=_numa(node, args.context)) if keeps_topology(args) else facts


def _groups(config: Path) -> frozenset[str] | None:
    """Return the node groups that have a configuration file; None without their directory, which agents' pods have."""
    from pinning.planning.cpu_groups import groups_among

    try:
        return groups_among((file.name for file in config.parent.iterdir()), config.name)
    except OSError:
        return None


def _state(socket: str) -> tuple[AgentState | None, str]:
    """Return the agent's state, or why there is none; raise AnotherVersion if another version wrote it."""
    from published.agent_state import AgentState
    from published.codec import decode

    try:
        return decode(AgentState, read_state(socket)), ""
    except CommandFailed as failure:
        return None, str(failure).partition(": start ")[0]


def _with_cluster(facts: Facts, node: str | None, context: str | None, missing: dict[str, str]) -> Facts:
    """Return the facts, completed by those about the node in the API server if that can be reached."""
    from corepin.node.kube_node import read_node
    from pinning.errors import BadQuantity

    missing = {**(facts.missing or {}), **missing}
    if node is None:
        return replace(facts, missing={**missing, "kubelet_millicores": "the name of this node is not known"})
    try:
        shown = read_node(node, context)
    except CommandFailed as failure:
        return replace(facts, missing={**missing, "kubelet_millicores": str(failure)})
    vms = facts.vms._replace(labels=shown.labels)
    group = facts.group._replace(labelled=shown.labels.get(CPU_GROUP_LABEL, ""))
    facts = replace(facts, vms=vms, group=group)
    try:
        return replace(facts, kubelet_millicores=_allocatable(shown), missing=missing)
    except (CommandFailed, BadQuantity) as failure:
        return replace(facts, missing={**missing, "kubelet_millicores": str(failure)})


def _allocatable(node: KubeNode) -> int:
    """Return the node's allocatable CPU in millicores; raise CommandFailed and BadQuantity."""
    from pinning.pods.quantity import millicores

    amount = node.allocatable.get("cpu")
    if amount is None:
        raise CommandFailed(f"node {node.name} has no status.allocatable.cpu: its kubelet has to report it")
    return millicores(amount)


def _numa(node: str | None, context: str | None) -> NUMAFacts:
    """Return the content of the node's NodeResourceTopology, or why it cannot be read."""
    from agent.doctor.numa import NUMAFacts, ZoneFacts
    from corepin.node.kube_node import read_topology

    if node is None:
        return NUMAFacts(is_wanted=True, silence="the name of this node is not known")
    try:
        shown = read_topology(node, context)
    except CommandFailed as failure:
        return NUMAFacts(is_wanted=True, silence=str(failure))
    if shown is None:
        return NUMAFacts(is_wanted=True)
    labels = shown["metadata"].get("labels") or {}
    cpus = {
        zone["name"]: (resource["available"], resource["allocatable"])
        for zone in shown.get("zones") or ()
        for resource in zone.get("resources") or ()
        if resource["name"] == NUMA_CPUS
    }
    is_ours = labels.get("app.kubernetes.io/managed-by") == PRODUCT
    return NUMAFacts(is_wanted=True, zones=ZoneFacts(is_ours, cpus))


def _near(node: str | None, context: str | None) -> NearFacts:
    """Return the counts of CPUs near devices that the Node publishes, or why they cannot be read."""
    from agent.doctor.near import NearFacts
    from corepin.node.kube_node import read_node

    if node is None:
        return NearFacts(is_wanted=True, silence="the name of this node is not known")
    try:
        shown = read_node(node, context).allocatable
    except CommandFailed as failure:
        return NearFacts(is_wanted=True, silence=str(failure))
    counts = {name: count for name, count in shown.items() if name.startswith(NEAR_CPUS)}
    return NearFacts(is_wanted=True, counts=counts)


def _watched_seconds(args: argparse.Namespace) -> float:
    """Return for how many seconds threads are watched: with --noise, the time of the noise measurement."""
    if args.noise is not None:
        return _seconds("--noise", args.noise)
    return _seconds("--seconds", args.seconds)


def _seconds(flag: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 3600:
        raise CommandFailed(f"{flag}: {text!r} is not a number of seconds up to 3600: write for example 5")
    return seconds


def _json(checks: tuple[Check, ...]) -> str:
    listed = [
        {
            "subject": check.subject,
            "verdict": check.verdict,
            "told": check.message,
            "remedy": check.remedy,
        }
        for check in checks
    ]
    return json_text({"checks": listed})


def _text(checks: tuple[Check, ...]) -> str:
    width = columns(sys.stdout, os.environ)
    lines = [line for check in checks for line in _lines(check, width)]
    found = sum(check.verdict == "finding" for check in checks)
    unknown = sum(check.verdict == "unknown" for check in checks)
    ending = f"{found} to fix, {unknown} unknown, {len(checks) - found - unknown} fine."
    return "\n".join([*lines, "", ending]) + "\n"


def _lines(check: Check, width: int) -> Iterator[str]:
    """Yield the lines of a check's result, with the remedy below."""
    yield from wrap(
        # Escaped, because processes choose the names of their threads and cgroups.
        plain(f"{check.subject}: {check.message}"),
        width,
        initial_indent=f"{SIGNS[check.verdict]}  ",
        subsequent_indent=MARGIN,
        break_on_hyphens=False,
    )
    if check.remedy:
        yield from wrap(
            plain(f"-> {check.remedy}"), width, initial_indent=MARGIN, subsequent_indent=f"{MARGIN}   "
        )
