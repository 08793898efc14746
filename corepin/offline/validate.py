"""`corepin validate`: check documents as the validating webhook would, without a cluster."""

from __future__ import annotations

from argparse import RawDescriptionHelpFormatter
from typing import TYPE_CHECKING

from corepin.documents import add_file_flag, read_documents, write_out
from corepin.flags import add_output_flag
from corepin.rule_files import add_rule_flags
from logs.printable import json_text, plain

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from corepin.documents import Item
    from corepin.offline.review import Judged

DESCRIPTION = "Validate pods, workloads and virtual machines as the webhook does. Needs no cluster."
EPILOG = """\
A pod is validated as it is after `corepin inject`. As in the cluster, a limit
without a request counts as the request too.
Problems of a workload's pod template are warnings, as in the cluster. Kinds that
corepin does not know are valid.

exit code: 0 all valid, 1 something is refused, 2 a document could not be read
example:   corepin validate -f deployment.yaml -f vm.yaml
"""
REFUSED = 1


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    """Add the verb `validate` to the command."""
    parser = subparsers.add_parser(
        "validate",
        help="validate YAML as the webhook does",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
    )
    add_file_flag(parser)
    add_rule_flags(parser)
    add_output_flag(parser, "one JSON line for each object")
    return parser


def run(args: argparse.Namespace) -> int:
    """Print a verdict for each object; return 1 if one is refused."""
    from corepin.offline.review import judge, load_decider

    items = [
        item for source in args.filename for document in read_documents(source) for item in document.items()
    ]
    decider = load_decider(args)
    verdicts = [(item, judge(decider, item)) for item in items]
    shown = _json if args.output == "json" else _text
    write_out("".join(line for item, judged in verdicts for line in shown(item, judged)))
    return 0 if all(judged.allowed for _, judged in verdicts) else REFUSED


def _json(item: Item, judged: Judged) -> Iterator[str]:
    verdict = {
        "kind": item.kind,
        "namespace": item.namespace,
        "name": item.name,
        "allowed": judged.allowed,
        "causes": [{key: cause[key] for key in ("reason", "message", "field")} for cause in judged.causes],
        "warnings": list(judged.warnings),
    }
    yield json_text(verdict)


def _text(item: Item, judged: Judged) -> Iterator[str]:
    word = "valid" if judged.allowed else "refused"
    lines = [f"{item.document.source}:{item.document.line}: {item.title}: {word}"]
    lines += [f"  {cause['field']}: {cause['message']}" for cause in judged.causes]
    lines += [f"  warning: {warning}" for warning in judged.warnings]
    yield from (f"{plain(line)}\n" for line in lines)
