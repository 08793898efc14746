"""`corepin map`: every core of a node with its owner, as the agent and the kernel report it."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final

from corepin.documents import write_painted
from corepin.errors import CommandFailed
from corepin.flags import add_output_flag, filled
from corepin.node.agent_socket import add_socket_flag, read_state
from corepin.node.kube_api import add_context_flag
from corepin.node.kube_node import read_node
from corepin.terminal import columns, wants_colour
from drawing.spans import Painted, paint, text_line
from logs.printable import harmless, json_text, plain
from pinning.errors import BadJSON
from pinning.json_text import parse_json

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from corepin.node.node_view import NodeView

DESCRIPTION = "Show every core of a node with its owner."
EPILOG = """\
Without --node the agent on this machine answers over its local socket, and each container is shown with the CPUs that
the kernel lets it use. With --node the annotations of that node are read through the kubeconfig: they hold the machine
and the owners of its CPUs. Exit code: 0 shown, 2 the agent or the node could not be read.
"""
LOCAL_SECONDS: Final = 0.5  # time between two reads of the agent's socket
CLUSTER_SECONDS: Final = 2.0
# Switches to the terminal's alternate screen and hides the cursor.
ENTER: Final = Painted("\x1b[?1049h\x1b[?25l")
LEAVE: Final = Painted("\x1b[?25h\x1b[?1049l")
HOME: Final = "\x1b[H"
TO_LINE_END: Final = "\x1b[K"
TO_SCREEN_END: Final = "\x1b[J"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the verb `map` to the command."""
    parser = subparsers.add_parser(
        "map", help="show every core of a node with its owner", description=DESCRIPTION, epilog=EPILOG
    )
    add_socket_flag(parser)
    parser.add_argument(
        "--node", metavar="NAME", type=filled, help="a node of the cluster, instead of this machine"
    )
    add_context_flag(parser)
    add_output_flags(parser)
    return parser


def add_output_flags(parser: argparse._ActionsContainer) -> None:
    """Add the flags for repeated output and for JSON."""
    parser.add_argument("--watch", action="store_true", help="redraw at each change, until Ctrl-C")
    add_output_flag(parser, "JSON")


def run(args: argparse.Namespace) -> int:
    """Show the node once, or until Ctrl-C."""
    look = _look(args)
    if not args.watch:
        write_painted(look())
        return 0
    try:
        _watch(look, CLUSTER_SECONDS if args.node else LOCAL_SECONDS)
    except KeyboardInterrupt:
        return 0
    return 0


def _look(args: argparse.Namespace) -> Callable[[], Painted]:
    """Return a function that reads and draws the node; it raises CommandFailed if the node cannot be read."""
    if args.output == "json":
        return lambda: Painted(json_text(_cluster_machine(args) if args.node else _local_state(args.socket)))
    return lambda: _text(_cluster_view(args) if args.node else _local_view(args.socket))


def _local_view(socket: str) -> NodeView:
    from corepin.node.node_view import view_of_state

    return view_of_state(read_state(socket))


def _local_state(socket: str) -> Any:
    """Return the agent's state as decoded JSON, with members that this version does not know."""
    try:
        return parse_json(read_state(socket))
    except BadJSON as error:
        raise CommandFailed(f"{socket}: what answers there is not a corepin agent") from error


def _cluster_view(args: argparse.Namespace) -> NodeView:
    from corepin.node.node_view import view_of_annotations

    node = read_node(args.node, args.context)
    return view_of_annotations(node.name, node.topology, node.pools)


def _cluster_machine(args: argparse.Namespace) -> dict[str, Any]:
    node = read_node(args.node, args.context)
    try:
        machine = {"topology": parse_json(node.topology), "pools": parse_json(node.pools)}
    except BadJSON as error:
        raise CommandFailed(f"node {node.name}: its annotations are damaged: {error}") from error
    return {"node": node.name, **machine}


def _text(view: NodeView) -> Painted:
    from drawing.picture import draw_lines

    width = columns(sys.stdout, os.environ)
    wrapped = wrap(plain(view.near), width, subsequent_indent="  ", break_on_hyphens=False)
    above = [*filter(None, (view.title, view.start, view.caches)), *wrapped, ""]
    below: list[str] = []
    for title, texts in (("containers", view.containers), ("attention", view.troubles)):
        if texts:
            below += ["", f"{title}:", *_indented(texts, width)]
    lines = [*map(text_line, above), *draw_lines(view.picture, width), *map(text_line, below)]
    return paint(lines, colour=wants_colour(sys.stdout, os.environ))


def _indented(texts: tuple[str, ...], width: int) -> Iterator[str]:
    for text in texts:
        yield from wrap(
            plain(text), width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
        )


def _watch(look: Callable[[], Painted], seconds: float) -> None:
    """Print the drawing whenever it changes; if the node does not answer, report that and retry."""
    shown = Painted("")
    with _screen() as show:
        while True:
            try:
                text = look()
            except CommandFailed as failure:
                text = Painted(f"{harmless(str(failure))}\n")
            if text != shown:
                show(text)
                shown = text
            time.sleep(seconds)


@contextmanager
def _screen() -> Iterator[Callable[[Painted], None]]:
    """Yield a function that shows a text: over the previous one on a terminal, else below it."""
    if not sys.stdout.isatty():
        yield write_painted
        return
    write_painted(ENTER)
    try:
        yield lambda text: write_painted(_over_the_old(text, os.get_terminal_size(sys.stdout.fileno()).lines))
    finally:
        write_painted(LEAVE)


def _over_the_old(text: Painted, rows: int) -> Painted:
    """Return the text that replaces the screen, cut at the last row to avoid scrolling; 0 rows: unknown."""
    lines = text.splitlines()[: rows - 1 if rows > 1 else None]
    return Painted(HOME + "".join(f"{line}{TO_LINE_END}\n" for line in lines) + TO_SCREEN_END)
