"""`kubectl corepin doctor`: have the agent of a node look at its machine, by `kubectl exec` in that agent's pod."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Final

from corepin.errors import CommandFailed
from corepin.flags import add_output_flag
from corepin.node.kube_api import add_context_flag, get
from corepin.node.kube_node import only_node
from pinning.contract import PRODUCT

if TYPE_CHECKING:
    import argparse

DESCRIPTION = "Look at what stands in the way of pinning on a node, and say what to do about it."
EPILOG = """\
`corepin doctor` runs in the pod of the node's agent, by `kubectl exec`. Nothing is changed. Without --node the only node
that has an agent is meant. Exit code: 0 nothing found, 1 something found, 2 it could not look.
"""
SELECTOR: Final = f"app.kubernetes.io/name={PRODUCT},app.kubernetes.io/component=agent"
CONTAINER: Final = "agent"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the verb to the command."""
    parser = subparsers.add_parser(
        "doctor", help="find what stands in the way of pinning", description=DESCRIPTION, epilog=EPILOG
    )
    parser.add_argument("--node", metavar="NAME", help="a node of the cluster")
    add_context_flag(parser)
    seconds = "how long to watch who runs on exclusive CPUs (default: 1)"
    parser.add_argument("--seconds", metavar="N", default="1", help=seconds)
    add_output_flag(parser, "JSON")
    return parser


def run(args: argparse.Namespace) -> int:
    """Run `corepin doctor` in the pod of a node's agent; return its exit code."""
    namespace, name = _agent_of(args.node or only_node(args.context), args.context)
    kubectl = ["kubectl", *(("--context", args.context) if args.context else ())]
    there = ["exec", "--namespace", namespace, name, "--container", CONTAINER, "--", PRODUCT, "doctor"]
    flags = ["--seconds", args.seconds, "--output", args.output]
    try:
        return subprocess.run([*kubectl, *there, *flags], check=False).returncode  # noqa: S603 - as its user types it
    except FileNotFoundError as error:
        raise CommandFailed("kubectl is not on the PATH, and it has to reach the agent's pod") from error


def _agent_of(node: str, context: str | None) -> tuple[str, str]:
    """Return namespace and name of the agent's pod on a node."""
    placed = {"labelSelector": SELECTOR, "fieldSelector": f"spec.nodeName={node},status.phase=Running"}
    found = get("/api/v1/pods", "pods", context, **placed)["items"]
    if not found:
        remedy = f"`kubectl get pods -A -l {SELECTOR}` lists them"
        raise CommandFailed(f"no corepin agent runs on node {node}: {remedy}")
    metadata = found[0]["metadata"]
    return metadata["namespace"], metadata["name"]
