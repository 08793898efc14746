"""`corepin dashboard`: show in a browser which containers own which CPUs, of all nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corepin.documents import write_out
from corepin.errors import CommandFailed
from corepin.flags import add_flag, add_list_flag, address, listed
from corepin.node.kube_api import add_context_flag

if TYPE_CHECKING:
    import argparse

DESCRIPTION = (
    "Show in a browser which containers own which CPUs: all nodes, each core, each pod, and what changed."
)
EPILOG = """\
Start it, and open the address that it prints. It reads nodes, pods and events through the kubeconfig (KUBECONFIG, or
~/.kube/config), in a pod through the pod's account; get, list and watch of these are all it needs. It changes nothing,
is served on loopback addresses only, and asks for no password: every user who can reach the address sees everything.
Ctrl-C ends it. In a cluster the component dashboard runs it:
kubectl -n corepin-system port-forward deployment/corepin-dashboard 8084
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the verb `dashboard` to the command."""
    parser = subparsers.add_parser(
        "dashboard", help="show all nodes and their CPUs in a browser", description=DESCRIPTION, epilog=EPILOG
    )
    add_flag(
        parser,
        "--listen",
        "HOST:PORT",
        "where to serve the page, a loopback address",
        "127.0.0.1:8084",
    )
    add_list_flag(
        parser,
        "--allow-host",
        "NAME",
        "host name under which a proxy requests the page, besides localhost; may be repeated",
    )
    add_context_flag(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Serve the dashboard until SIGTERM or Ctrl-C."""
    from apiserver.errors import Unavailable
    from corepin.node.kube_access import cluster_access
    from dashboard.serve import process
    from logs import formatter

    host, port = address("--listen", args.listen, "127.0.0.1:8084")
    options = process.Options(host, port, listed("--allow-host", args.allow_host))
    formatter.configure()
    try:
        process.run(options, cluster_access(args.context), lambda url: write_out(f"the page: {url}\n"))
    except (Unavailable, process.CannotListen) as error:
        raise CommandFailed(str(error)) from error
    return 0
