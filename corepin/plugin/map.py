"""`kubectl corepin map`: every core of a node with its owner, from the node's annotations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corepin.flags import filled
from corepin.node import map as node_map
from corepin.node.kube_api import add_context_flag
from corepin.node.kube_node import only_node

if TYPE_CHECKING:
    import argparse

EPILOG = """\
The annotations of the node are read: they hold the machine and the owners of its CPUs. Without --node the
command shows the only node that has an agent. Exit code: 0 shown, 2 the node could not be read.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the verb `map` to `kubectl corepin`."""
    parser = subparsers.add_parser(
        "map",
        help="show every core of a node with its owner",
        description=node_map.DESCRIPTION,
        epilog=EPILOG,
    )
    parser.add_argument("--node", metavar="NAME", type=filled, help="a node of the cluster")
    add_context_flag(parser)
    node_map.add_output_flags(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Show the node once, or until Ctrl-C."""
    args.node = args.node or only_node(args.context)
    return node_map.run(args)
