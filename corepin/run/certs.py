"""`corepin certs issue`: a CA and a server certificate for local use; `corepin certs run` is in `certs_run`."""

from __future__ import annotations

import argparse
import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from corepin.documents import write_out
from corepin.errors import CommandFailed
from corepin.run import certs_run

if TYPE_CHECKING:
    from certs.issue import IPAddress

CA_DAYS: Final = 3650
DAYS: Final = 365
MOST_DAYS: Final = 36500
EPILOG = """\
Writes ca.crt, ca.key, tls.crt and tls.key (ECDSA P-256) into the directory; the
keys are readable by their owner only.

example: corepin certs issue --dir pki --dns localhost --ip 127.0.0.1
"""


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    """Add the verb `certs` to the command."""
    what = "issue and rotate certificates"
    parser = subparsers.add_parser("certs", help=what, description=f"{what.capitalize()}.")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    certs_run.add_parser(actions)
    issue = actions.add_parser(
        "issue",
        help="write a new CA and a server certificate",
        description="Write a new CA and a server certificate signed by it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    issue.add_argument(
        "--dir", required=True, metavar="DIR", type=Path, help="output directory; created if missing"
    )
    issue.add_argument(
        "--dns", nargs="+", default=[], action="extend", metavar="NAME", help="DNS names of the server"
    )
    issue.add_argument(
        "--ip", nargs="+", default=[], action="extend", metavar="ADDRESS", help="addresses of the server"
    )
    issue.add_argument(
        "--days",
        type=_days,
        default=DAYS,
        metavar="N",
        help=f"validity of the server certificate in days (default: {DAYS})",
    )
    issue.add_argument(
        "--ca-days",
        type=_days,
        default=CA_DAYS,
        metavar="N",
        help=f"validity of the CA in days (default: {CA_DAYS})",
    )
    issue.add_argument("--force", action="store_true", help="replace existing files")
    return parser


def run(args: argparse.Namespace) -> int:
    """Run the action: issue certificates into a directory, or rotate them in a cluster."""
    return certs_run.run(args) if args.action == "run" else _issue(args)


def _issue(args: argparse.Namespace) -> int:
    """Write CA and server certificate with their keys to four files, and print the file names."""
    from certs.issue import CA, BadName

    if not args.dns and not args.ip:
        raise CommandFailed("name the server: --dns NAME or --ip ADDRESS")
    try:
        ca = CA.create(days=args.ca_days)
        leaf = ca.issue_cert(*args.dns, addresses=_addresses(args.ip), days=args.days)
    except BadName as error:
        raise CommandFailed(f"{error} (addresses go to --ip)") from error
    _write(
        args.dir, {"ca.key": ca.key, "tls.key": leaf.key, "ca.crt": ca.cert, "tls.crt": leaf.cert}, args.force
    )
    return 0


def _write(directory: Path, files: dict[str, bytes], force: bool) -> None:  # noqa: FBT001 the user's flag
    from certs.files import PRIVATE, PUBLIC, write_new, write_over

    write = write_over if force else write_new
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _refuse_overwriting(directory, () if force else tuple(files))
        for name, content in files.items():
            write(directory / name, content, PRIVATE if name.endswith(".key") else PUBLIC)
            write_out(f"{directory / name}\n")
    except OSError as error:
        problem = f"{error.filename2 or error.filename or directory}: {error.strerror}"
        raise CommandFailed(f"{problem}: name a directory that can be written with --dir") from error


def _refuse_overwriting(directory: Path, names: tuple[str, ...]) -> None:
    """Raise CommandFailed before the first write if any file exists."""
    there = [name for name in names if (directory / name).exists() or (directory / name).is_symlink()]
    if there:
        raise CommandFailed(
            f"{directory} holds {', '.join(sorted(there))} already: use --force to replace them"
        )


def _addresses(texts: list[str]) -> tuple[IPAddress, ...]:
    try:
        return tuple(ipaddress.ip_address(text) for text in texts)
    except ValueError as error:
        raise CommandFailed(f"--ip: {error}: write for example 127.0.0.1") from error


def _days(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= MOST_DAYS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days: write 1 to {MOST_DAYS}")
    return int(text)
