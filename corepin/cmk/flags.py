"""Flags of Intel CMK's commands: the supported ones, and ignored ones with a warning."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from corepin.documents import write_error
from corepin.errors import CommandFailed
from logs.printable import plain

if TYPE_CHECKING:
    import argparse

HELP_OBSOLETE: Final = "a flag of CMK, accepted without effect"
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
NODE_VARIABLE: Final = "NODE_NAME"  # environment variable in CMK's pods with the name of the node


def add_obsolete(parser: argparse.ArgumentParser, *flags: str, value: bool = True) -> None:
    """Add flags of CMK that are accepted without effect; with `value` each takes a value."""
    for flag in flags:
        if value:
            parser.add_argument(flag, metavar="...", help=HELP_OBSOLETE)
        else:
            parser.add_argument(flag, nargs="?", const="true", metavar="BOOL", help=HELP_OBSOLETE)


def warn_obsolete(args: argparse.Namespace, reasons: dict[str, str]) -> None:
    """Print a warning for each given flag without effect, with its replacement."""
    for flag, reason in reasons.items():
        if getattr(args, flag.removeprefix("--").replace("-", "_")) is not None:
            note(f"{flag} has no effect: {reason}")


def note(text: str) -> None:
    """Print a note on standard error."""
    write_error(f"corepin cmk: {plain(text)}")


def name(flag: str, text: str) -> str:
    """Return a flag's value if it is a Kubernetes name; raise CommandFailed otherwise."""
    if not _NAME.fullmatch(text):
        problem = f"{flag}: {text[:60]!r} is not a valid Kubernetes name"
        raise CommandFailed(f"{problem}: write lower-case letters, digits, - and dots, for example node-1")
    return text


def node_name(given: str | None) -> str | None:
    """Return the node named by a flag or by CMK's variable."""
    return given or os.environ.get(NODE_VARIABLE) or None


def cores(flag: str, text: str) -> int:
    """Return a flag's value as a number of physical cores; raise CommandFailed if it is none."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 5):
        raise CommandFailed(f"{flag}: {text[:60]!r} is not a number of cores: write for example 4")
    return int(text)


def mode(flag: str, text: str) -> str:
    """Return a flag's value if it is an order in which cores are taken from sockets; raise CommandFailed otherwise."""
    if text not in {"packed", "spread"}:
        problem = f"{flag}: {text[:60]!r} is unknown"
        raise CommandFailed(f"{problem}: write packed (one socket after the other) or spread (in turns)")
    return text


def listed_cores(flag: str, text: str) -> str:
    """Return a flag's list of cores, empty for CMK's -1; raise CommandFailed for an invalid list."""
    from pinning.errors import BadCPUList
    from pinning.machine.cpuset import CPUSet

    if text.strip() == "-1":
        return ""
    try:
        return str(CPUSet.parse(text))
    except BadCPUList as problem:
        raise CommandFailed(f'{flag}: {problem}: write for example "0,3-5", or -1 for none') from problem


def reserved_cpus(text: str | None) -> str | None:
    """Return the list of reserved CPUs, None if the flag is not given; raise CommandFailed for an invalid list."""
    if text is None:
        return None
    cpus = listed_cores("--reserved-cpus", text) if text.strip() != "-1" else ""
    if not cpus:
        problem = f"--reserved-cpus: {text[:60]!r} names no CPU"
        raise CommandFailed(f'{problem}: write for example "0,8", or leave the flag out for the default')
    return cpus


def add_pool_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the sizes of CMK's pools."""
    parser.add_argument(
        "--num-exclusive-cores",
        metavar="N",
        help="physical cores of the exclusive pool (default: 4)",
    )
    parser.add_argument(
        "--num-shared-cores", metavar="N", help="physical cores of the shared pool (default: 1)"
    )
    parser.add_argument(
        "--reserved-cpus",
        "--reserved",
        metavar="LIST",
        help="CPUs whose cores are reserved for the pool infra (default: the core of the lowest CPU outside of isolcpus)",
    )
    for pool in ("exclusive", "shared"):
        parser.add_argument(
            f"--{pool}-mode",
            metavar="packed|spread",
            help=f"take the {pool} cores from one socket after the other, or in turns (default: packed)",
        )
    parser.add_argument(
        "--excl-non-isolcpus",
        metavar="LIST",
        help="CPUs outside of isolcpus whose cores form the pool exclusive-non-isolcpus, e.g. 0,3-5; -1: none (default)",
    )
