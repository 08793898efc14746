"""`corepin cmk discover`: CMK's label, taint and resources of nodes, which the agents write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from corepin.cmk.flags import add_obsolete, name, node_name, warn_obsolete
from corepin.documents import write_out
from corepin.errors import CommandFailed
from pinning.contract import (
    CMK_NODE_LABEL,
    CMK_RESOURCES,
    CMK_TAINT_KEY,
    CMK_TAINT_VALUE,
    EXCLUSIVE_CORES,
)

if TYPE_CHECKING:
    import argparse

OBSOLETE: Final = {
    "--namespace": "label, taint and resources belong to nodes, which have no namespace",
    "--conf-dir": "the agent of each node stores the data of that directory",
}
DESCRIPTION = (
    "Show what the agents report about their nodes: CMK's label, taint and resources. Nothing is written."
)
EPILOG = """\
The agents write these, and restore them if another program changes them. Exit code: 0 everything is there,
1 something is missing, 2 the API server could not be reached.
"""


def add_parser(verbs: Any) -> None:
    """Add the verb `discover` to `corepin cmk`."""
    parser = verbs.add_parser(
        "discover",
        help="show CMK's label, taint and resources of nodes",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    chosen = f"a node (default: the variable NODE_NAME, else every node with the label {CMK_NODE_LABEL}=true)"
    parser.add_argument("--node", metavar="NAME", help=chosen)
    parser.add_argument("--no-taint", action="store_true", help="accept nodes without the taint")
    add_obsolete(parser, *OBSOLETE)
    parser.set_defaults(cmk=run)


def run(args: argparse.Namespace) -> int:
    """Print a line for each node; return 1 when something is missing."""
    warn_obsolete(args, OBSOLETE)
    chosen = node_name(args.node)
    if chosen:
        name("--node", chosen)
    lines = [node_line(node, wants_taint=not args.no_taint) for node in _nodes(chosen)]
    write_out("".join(f"{line}\n" for line, _ in lines))
    return int(any(is_missing for _, is_missing in lines))


def node_line(node: Any, *, wants_taint: bool) -> tuple[str, bool]:
    """Return a node's label, taint and resources, and whether one is missing."""
    there = node.get("status", {}).get("allocatable") or {}
    labels = node["metadata"].get("labels") or {}
    has = [f"{resource}: {there[resource]}" for resource in CMK_RESOURCES if resource in there]
    has += [f"label {CMK_NODE_LABEL}=true"] if labels.get(CMK_NODE_LABEL) == "true" else []
    taint = f"taint {CMK_TAINT_KEY}={CMK_TAINT_VALUE}:NoSchedule"
    has += [taint] if any(map(_is_cmks, node["spec"].get("taints") or ())) else []
    wanted = (EXCLUSIVE_CORES, f"label {CMK_NODE_LABEL}=true", *([taint] if wants_taint else ()))
    missing = [what for what in wanted if not any(found.startswith(what) for found in has)]
    found = ", ".join([*has, *(f"MISSING {what}" for what in missing)])
    return f"{node['metadata']['name']}: {found}", bool(missing)


def _is_cmks(taint: Any) -> bool:
    return (taint["key"], taint.get("value"), taint["effect"]) == (
        CMK_TAINT_KEY,
        CMK_TAINT_VALUE,
        "NoSchedule",
    )


def _nodes(node: str | None) -> list[Any]:
    from corepin.cmk.requests import kube_client, send

    with kube_client() as api:
        if node:
            return [send(api, "GET", f"/api/v1/nodes/{node}")]
        found = send(api, "GET", f"/api/v1/nodes?labelSelector={CMK_NODE_LABEL}%3Dtrue")["items"]
    if not found:
        problem = f"no node has the label {CMK_NODE_LABEL}=true"
        raise CommandFailed(f"{problem}: no agent reports; `corepin cmk cluster-init` installs the agents")
    return list(found)
