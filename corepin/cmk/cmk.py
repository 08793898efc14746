"""`corepin cmk`: Intel CMK's commands, one module each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from corepin.cmk import cluster_init, discover, init, leftovers, reports, uninstall
from corepin.errors import CommandFailed

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

DESCRIPTION = "The commands of Intel CMK, for its operators."
EPILOG = """\
`corepin cmk ACTION --help` explains an action. Containers call the program `cmk` instead, e.g.
`/opt/bin/cmk isolate --pool=exclusive COMMAND`. docs/migrate.md says what became of each part of CMK.
"""
# Commands of CMK that no longer exist, with their replacements.
ELSEWHERE: Final = {
    "isolate": "it runs inside of a container, where it is `/opt/bin/cmk isolate`",
    "install": "the agents install the program `cmk` on their nodes, with the component `cmk`",
    "webhook": "`corepin webhook` is the webhook, and `corepin cmk cluster-init` installs it",
    "reconfigure": "change the numbers with `corepin cmk cluster-init --apply`, and restart the agents",
    "reconfigure_setup": "change the numbers with `corepin cmk cluster-init --apply`, and restart the agents",
    "reaffinitize": "the agents move running containers by themselves",
}


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    """Add the verb `cmk` and its actions to the command."""
    parser = subparsers.add_parser(
        "cmk", help="the commands of Intel CMK", description=DESCRIPTION, epilog=EPILOG
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    cluster_init.add_parser(actions)
    reports.add_parsers(actions)
    discover.add_parser(actions)
    init.add_parser(actions)
    uninstall.add_parser(actions)
    leftovers.add_parser(actions)
    for action in ELSEWHERE:
        # Accepts any arguments, because the action is refused.
        gone = actions.add_parser(action, add_help=False, prefix_chars="\0")
        gone.add_argument("rest", nargs="*")
        gone.set_defaults(cmk=_refuse)
    return parser


def run(args: argparse.Namespace) -> int:
    """Run an action of `corepin cmk`."""
    action: Callable[[argparse.Namespace], int] = args.cmk
    return action(args)


def _refuse(args: argparse.Namespace) -> int:
    raise CommandFailed(f"{args.action}: {ELSEWHERE[args.action]}")
