# PYTHON_ARGCOMPLETE_OK
"""Entry point of the `corepin` command: selects and runs the verb; a failure becomes one line and an exit code."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from corepin.errors import CommandFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# The modules of this package that are verbs, in the order of --help. Each has `add_parser(subparsers)` and
# `run(args) -> int`, and imports heavy modules in `run` only.
VERBS = (
    "run.webhook",
    "run.agent",
    "run.guard",
    "run.dashboard",
    "offline.inject",
    "offline.validate",
    "offline.plan",
    "node.map",
    "node.why",
    "node.doctor",
    "run.certs",
    "run.gate",
    "cmk.cmk",
)

# Verbs of `kubectl corepin`, which runs outside of the node.
PLUGIN_VERBS = ("plugin.map", "node.why", "offline.plan", "plugin.doctor")

COMMAND, PLUGIN = "corepin", "kubectl corepin"
FAILED = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `corepin` and return its exit code."""
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(build_parser())
    return _run(COMMAND, VERBS, sys.argv[1:] if arguments is None else arguments)


def kubectl(arguments: Sequence[str] | None = None) -> int:
    """Run `kubectl corepin`, which kubectl starts as `kubectl-corepin`, and return its exit code."""
    return _run(PLUGIN, PLUGIN_VERBS, sys.argv[1:] if arguments is None else arguments)


def _run(program: str, verbs: Sequence[str], given: Sequence[str]) -> int:
    args, unknown = build_parser(_meant(verbs, given), program).parse_known_args(given)
    run: Callable[[argparse.Namespace], int] = args.run
    try:
        _refuse(unknown, f"{program} {args.verb}")
        return run(args)
    except CommandFailed as error:
        from corepin.documents import write_error
        from logs.printable import plain

        write_error(f"{program} {args.verb}: {plain(str(error))}")
        return FAILED


def _refuse(unknown: Sequence[str], command: str) -> None:
    """Raise CommandFailed for arguments that the verb does not accept; argparse would show only corepin's usage."""
    if unknown:
        raise CommandFailed(f"{' '.join(unknown)!r} is not accepted: `{command} --help` lists the arguments")


def _meant(verbs: Sequence[str], given: Sequence[str]) -> Sequence[str]:
    """Return the verb modules to import: only the given verb's, for a faster start, or all for an unknown verb."""
    return [name for name in verbs if [name.rpartition(".")[2]] == list(given[:1])] or verbs


def build_parser(verbs: Sequence[str] = VERBS, program: str = COMMAND) -> argparse.ArgumentParser:
    """Return the parser of the command and its verbs."""
    offline = "`plan` works" if program == PLUGIN else "`inject`, `validate` and `plan` work"
    parser = argparse.ArgumentParser(
        prog=program,
        description="Gives containers and virtual machines on Kubernetes the CPUs they were promised.",
        epilog=f"`{program} VERB --help` explains a verb. {offline} without a cluster.",
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, dest=argparse.SUPPRESS, help="show the version and exit"
    )
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name in verbs:
        verb = importlib.import_module(f"corepin.{name}")
        verb.add_parser(subparsers).set_defaults(run=verb.run)
    return parser


class _Version(argparse.Action):
    """argparse action that prints the version of the installed distribution."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        from corepin.documents import write_out

        try:
            write_out(f"corepin {version('corepin')}\n")
        except CommandFailed as error:
            parser.exit(FAILED, f"{parser.prog}: {error}\n")
        parser.exit()
