"""`corepin inject`: apply the mutating webhook's changes to documents, without a cluster."""

from __future__ import annotations

from argparse import RawDescriptionHelpFormatter
from typing import TYPE_CHECKING, Any

from corepin.documents import add_file_flag, read_documents, write_error, write_out
from corepin.rule_files import add_rule_flags
from logs.printable import plain

if TYPE_CHECKING:
    import argparse

    from corepin.documents import Document
    from webhook.review.handler import Decider

DESCRIPTION = "Complete pods and pod templates as the webhook does, and print them. Needs no cluster."
EPILOG = """\
Pods and the pod templates of Deployments, StatefulSets, DaemonSets, ReplicaSets,
Jobs and CronJobs are completed; every other document is printed as it is.
Comments are dropped, the order of keys is kept. Warnings go to standard error.
A limit without a request counts as the request too, as on the API server, but the
request is not written.

exit code: 0 printed, 2 a document could not be read (then nothing is printed)
example:   corepin inject -f pod.yaml | kubectl apply -f -
"""


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    """Add the verb `inject` to the command."""
    parser = subparsers.add_parser(
        "inject",
        help="complete YAML as the webhook does",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
    )
    add_file_flag(parser)
    add_rule_flags(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Print the mutated documents; nothing if one of them is invalid."""
    from corepin.offline.review import load_decider
    from kubeyaml.writer import write_yaml

    documents = [document for source in args.filename for document in read_documents(source)]
    decider = load_decider(args)
    warnings: list[str] = []
    text = write_yaml([_completed(decider, document, warnings) for document in documents])
    for warning in warnings:
        write_error(plain(warning))
    write_out(text)
    return 0


def _completed(decider: Decider, document: Document, warnings: list[str]) -> Any:
    """Return the document's content with all objects mutated; append warnings to `warnings`."""
    from corepin.offline.review import inject

    whole: Any = document.content
    for item in document.items():
        injected = inject(decider, item)
        place = f"{document.source}:{document.line}: {item.title}"
        warnings += [f"{place}: warning: {warning}" for warning in injected.warnings]
        whole = _replaced(whole, item.pointer, injected.content)
    return whole


def _replaced(whole: Any, pointer: str, content: dict[str, Any]) -> Any:
    """Return the document `whole` with `content` as the object at a JSON pointer."""
    import jsonpatch

    if not pointer:
        return content
    return jsonpatch.apply_patch(whole, [{"op": "replace", "path": pointer, "value": content}], in_place=True)
