"""`corepin why`: timeline of a pod's CPU claims, and what the pod waits for."""

from __future__ import annotations

import os
import re
import sys
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from corepin.documents import write_out
from corepin.errors import CommandFailed
from corepin.flags import add_output_flag
from corepin.node.kube_api import add_context_flag, current_namespace, get
from corepin.terminal import columns
from logs.printable import json_text, plain
from pinning.truncate import NAME, truncate

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from corepin.node.pod_timeline import Timeline

DESCRIPTION = "Show why a pod has its CPUs, or why it waits."
EPILOG = """\
The output is a timeline: the pod's claims, what the webhook added, the node, the agent's decision or refusal, and
the proof read back from the kernel. The last lines say what the pod waits for. The command needs the rights to get
the pod and to list the events of its namespace; the API server deletes events after an hour. Exit
code: 0 shown, 2 the pod or its events could not be read.
"""
_NAME: Final = re.compile("[a-z0-9]([-a-z0-9.]*[a-z0-9])?")  # names that the API server accepts for a pod
_TIME: Final = len("2026-11-20T10:00:00Z")
_STAGE: Final = len("admission")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the verb `why` to the command."""
    parser = subparsers.add_parser(
        "why", help="show why a pod has its CPUs, or why it waits", description=DESCRIPTION, epilog=EPILOG
    )
    parser.add_argument("pod", metavar="POD", help="the pod's name, or NAMESPACE/NAME")
    namespace = "the pod's namespace; default: that of the context"
    parser.add_argument("-n", "--namespace", metavar="NAMESPACE", help=namespace)
    add_context_flag(parser)
    add_output_flag(parser, "JSON")
    return parser


def run(args: argparse.Namespace) -> int:
    """Print the timeline of a pod, and why it waits."""
    from datetime import UTC, datetime

    from corepin.node.pod_timeline import timeline_of
    from published.codec import AnotherVersion

    pod, events = _read(args)
    try:
        timeline = timeline_of(pod, events, datetime.now(UTC))
    except AnotherVersion as error:
        raise CommandFailed(str(error)) from error
    write_out(_json(timeline) if args.output == "json" else _text(timeline))
    return 0


def _read(args: argparse.Namespace) -> tuple[Any, list[Any]]:
    """Return the pod and its own events, without those of an older pod of that name."""
    namespace, _, name = args.pod.rpartition("/")
    # With an empty name the API server would return all pods of the namespace.
    if not _NAME.fullmatch(name) or "/" in namespace:
        raise CommandFailed(f"{truncate(args.pod, NAME)!r} names no pod: write POD or NAMESPACE/POD")
    if args.namespace and namespace and args.namespace != namespace:
        names = f"{truncate(args.pod, NAME)!r} and --namespace {truncate(args.namespace, NAME)!r}"
        raise CommandFailed(f"{names} name two namespaces: leave one out")
    namespace = args.namespace or namespace or current_namespace(args.context)
    what, folder = f"pod {namespace}/{name}", f"/api/v1/namespaces/{quote(namespace, safe='')}"
    pod = get(f"{folder}/pods/{quote(name, safe='')}", what, args.context)
    selector = f"involvedObject.uid={pod['metadata']['uid']}"
    return pod, get(f"{folder}/events", f"events of {what}", args.context, fieldSelector=selector)["items"]


def _json(timeline: Timeline) -> str:
    entries = [entry._asdict() for entry in timeline.entries]
    return json_text({"pod": timeline.title, "story": entries, "waits": timeline.waits})


def _text(timeline: Timeline) -> str:
    width = columns(sys.stdout, os.environ)
    return (
        "\n".join([plain(timeline.title), "", *_entries(timeline, width), "", *_waits(timeline, width)])
        + "\n"
    )


def _entries(timeline: Timeline, width: int) -> Iterator[str]:
    for entry in timeline.entries:
        head = f"{plain(entry.time):<{_TIME}}  {entry.stage:<{_STAGE}}  "
        yield from _hanging(head, entry.message, width)


def _waits(timeline: Timeline, width: int) -> Iterator[str]:
    if not timeline.waits:
        yield "It waits for nothing."
        return
    yield "It waits for:"
    for wait in timeline.waits:
        yield from _hanging("- ", wait, width)


def _hanging(head: str, message: str, width: int) -> list[str]:
    """Return the lines of a text, to the right of its head, or below it on a narrow screen."""
    margin = " " * (len(head) if len(head) <= width // 2 else 4)
    return wrap(plain(message), width, initial_indent=head, subsequent_indent=margin, break_on_hyphens=False)
