"""`corepin why`: what a pod asked for, what became of it and what it waits for, in the order in which it happened."""

from __future__ import annotations

import os
import sys
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from corepin.documents import write_out
from corepin.errors import CommandFailed
from corepin.flags import add_output_flag
from corepin.node.kube_api import add_context_flag, current_namespace, get
from corepin.terminal import columns, json_text, plain

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from corepin.node.pod_story import Story

DESCRIPTION = "Say why a pod has the CPUs that it has, or why it waits."
EPILOG = """\
It is told in the order in which it happened: what the pod claims, what the webhook added, the node, the agent's
decision or refusal, and the proof read back from the kernel. At the end stands what the pod waits for. It needs the
rights to get the pod and to list the events of its namespace; the API server forgets events within an hour.
"""
_TIME: Final = len("2026-11-20T10:00:00Z")
_STAGE: Final = len("admission")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the verb to the command."""
    parser = subparsers.add_parser(
        "why", help="say why a pod has its CPUs, or why it waits", description=DESCRIPTION, epilog=EPILOG
    )
    parser.add_argument("pod", metavar="POD", help="the pod's name, or NAMESPACE/NAME")
    namespace = "the pod's namespace; default: that of the context"
    parser.add_argument("-n", "--namespace", metavar="NAMESPACE", help=namespace)
    add_context_flag(parser)
    add_output_flag(parser, "JSON")
    return parser


def run(args: argparse.Namespace) -> int:
    """Print the story of a pod."""
    from corepin.node.pod_story import story_of

    pod, events = _read(args)
    try:
        story = story_of(pod, events)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = f"what the agent says of the pod is of another version of corepin, or damaged ({error!r})"
        raise CommandFailed(f"{problem}: use the same version") from error
    write_out(_json(story) if args.output == "json" else _text(story))
    return 0


def _read(args: argparse.Namespace) -> tuple[Any, list[Any]]:
    """Return the pod and its own events, not those of an older one of its name."""
    namespace, _, name = args.pod.rpartition("/")
    namespace = args.namespace or namespace or current_namespace(args.context)
    what, folder = f"pod {namespace}/{name}", f"/api/v1/namespaces/{quote(namespace, safe='')}"
    pod = get(f"{folder}/pods/{quote(name, safe='')}", what, args.context)
    selector = f"involvedObject.uid={pod['metadata']['uid']}"
    return pod, get(f"{folder}/events", f"events of {what}", args.context, fieldSelector=selector)["items"]


def _json(story: Story) -> str:
    moments = [moment._asdict() for moment in story.moments]
    return json_text({"pod": story.title, "story": moments, "waits": story.waits})


def _text(story: Story) -> str:
    width = columns(sys.stdout, os.environ)
    return "\n".join([plain(story.title), "", *_moments(story, width), "", *_waits(story, width)]) + "\n"


def _moments(story: Story, width: int) -> Iterator[str]:
    for moment in story.moments:
        head = f"{plain(moment.time):<{_TIME}}  {moment.stage:<{_STAGE}}  "
        yield from _hanging(head, moment.message, width)


def _waits(story: Story, width: int) -> Iterator[str]:
    if not story.waits:
        yield "It waits for nothing."
        return
    yield "It waits for:"
    for wait in story.waits:
        yield from _hanging("- ", wait, width)


def _hanging(head: str, message: str, width: int) -> list[str]:
    """Return a text beside its head, or below where the screen is narrow."""
    margin = " " * (len(head) if len(head) <= width // 2 else 4)
    return wrap(plain(message), width, initial_indent=head, subsequent_indent=margin, break_on_hyphens=False)
