"""`corepin cmk describe`, `node-report` and `reconcile`: CMK's reports about a node."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from corepin.cmk.flags import add_obsolete, name, warn_obsolete
from corepin.cmk.view import add_view_flags, read_view
from corepin.documents import write_out
from corepin.errors import CommandFailed
from logs.printable import harmless_json
from pinning.cmk.durations import parse_duration
from pinning.cmk.reports import describe, node_report, reconcile_report, report_text
from pinning.contract import CMK_GROUP_VERSION, CMK_NODE_REPORT, CMK_RECONCILE_REPORT, PRODUCT
from pinning.errors import BadContract

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from corepin.cmk.view import View

Verbs = "argparse._SubParsersAction[argparse.ArgumentParser]"
OBSOLETE: Final = {"--conf-dir": "the agent of the node stores the data of that directory"}
TEXTS: Final = {
    "describe": (
        "show the pools of a node and who holds their CPUs",
        "Prints JSON, as CMK's `describe` does.",
    ),
    "node-report": (
        "show pools, sockets, cores and CPUs of a node",
        "Prints JSON, as CMK's `node-report` does. "
        "With the component `cmk` the agents also write this report, as objects in the cluster.",
    ),
    "reconcile": (
        "show which CPUs were free again after their process died without releasing them",
        "Prints JSON, as CMK's `reconcile` does. It cleans up nothing, because the agent sees at once when a process ends.",
    ),
}
KINDS: Final = {"node-report": CMK_NODE_REPORT, "reconcile": CMK_RECONCILE_REPORT}
REPORTS: Final[dict[str, Callable[[View], dict[str, Any]]]] = {
    "describe": lambda view: describe(view.pools),
    "node-report": lambda view: node_report(view.pools, view.topology),
    "reconcile": lambda view: reconcile_report(view.reclaimed, view.dropped),
}


def add_parsers(verbs: Any) -> None:
    """Add the verbs `describe`, `node-report` and `reconcile` to `corepin cmk`."""
    for verb, (short, long) in TEXTS.items():
        parser = verbs.add_parser(verb, help=short, description=f"{short[0].upper()}{short[1:]}. {long}")
        add_view_flags(parser)
        add_obsolete(parser, *OBSOLETE)
        if verb in KINDS:
            parser.add_argument(
                "--publish",
                action="store_true",
                help="also write the report as an object, through the kubeconfig",
            )
            parser.add_argument(
                "--interval",
                metavar="TIME",
                default="0",
                help="repeat at this interval, e.g. 30, 1.5s or 500ms, until Ctrl-C (default: 0, once)",
            )
        parser.set_defaults(cmk=run)


def run(args: argparse.Namespace) -> int:
    """Print the report once, or until Ctrl-C."""
    warn_obsolete(args, OBSOLETE)
    name("--namespace", args.namespace)
    if args.node:
        name("--node", args.node)
    try:
        seconds = parse_duration("--interval", args.interval) if args.action in KINDS else 0
    except BadContract as problem:
        raise CommandFailed(str(problem)) from problem
    _show(args)
    try:
        while seconds:
            time.sleep(seconds)
            _show(args)
    except KeyboardInterrupt:
        return 0
    return 0


def _show(args: argparse.Namespace) -> None:
    view = read_view(args)
    report = REPORTS[args.action](view)
    write_out(harmless_json(report_text(report)))
    if args.action in KINDS and args.publish:
        _publish(KINDS[args.action], view.node, args.namespace, report)


def _publish(kind: tuple[str, str], node: str, namespace: str, report: dict[str, Any]) -> None:
    """Create or replace a report object of its node."""
    from corepin.cmk.requests import APPLY_PATCH, Answered, kube_client, send

    word, plural = kind
    document = {
        "apiVersion": CMK_GROUP_VERSION,
        "kind": word,
        "metadata": {"name": node, "labels": {"app.kubernetes.io/managed-by": PRODUCT}},
        "spec": {"report": report},
    }
    path = f"/apis/{CMK_GROUP_VERSION}/namespaces/{namespace}/{plural}/{node}"
    with kube_client() as api:
        try:
            send(api, "PATCH", f"{path}?fieldManager={PRODUCT}&force=true", document, APPLY_PATCH)
        except Answered as error:
            remedy = "install the component `cmk`, which defines the kind, or name the agents' namespace with --namespace"
            raise CommandFailed(f"{error}: {remedy}") from error
