"""Flags with an environment variable as default, so that manifests can set either."""

from __future__ import annotations

import argparse
import os
from typing import Final

from corepin.errors import CommandFailed

PREFIX: Final = "COREPIN_"
HIGHEST_PORT: Final = 65535


def variable(flag: str) -> str:
    """Return the environment variable of a flag, e.g. COREPIN_TLS_CERT of --tls-cert."""
    return PREFIX + flag.removeprefix("--").replace("-", "_").upper()


def add_flag(parser: argparse._ActionsContainer, flag: str, metavar: str, text: str, default: str) -> None:
    """Add a flag whose default is its environment variable, then `default`."""
    parser.add_argument(
        flag,
        metavar=metavar,
        default=os.environ.get(variable(flag)) or default,
        help=f"{text} (default: {default}; {variable(flag)})",
    )


def add_optional_flag(parser: argparse._ActionsContainer, flag: str, metavar: str, text: str) -> None:
    """Add a flag that is None if neither it nor its environment variable is set."""
    parser.add_argument(
        flag,
        metavar=metavar,
        default=os.environ.get(variable(flag)) or None,
        help=f"{text} ({variable(flag)})",
    )


def filled(text: str) -> str:
    """Return a flag's value; raise an error if it is empty, as from an unset shell variable."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty: write a name, or leave the flag out")
    return text


def add_output_flag(parser: argparse._ActionsContainer, json: str) -> None:
    """Add the flag that chooses between text and machine-readable output."""
    parser.add_argument(
        "-o",
        "--output",
        choices=("text", "json"),
        default="text",
        help=f"text for people (default), or {json}",
    )


def add_noise_flag(parser: argparse._ActionsContainer) -> None:
    """Add the flag of the doctor that measures noise on exclusive CPUs."""
    text = "for how many seconds to count what disturbs exclusive CPUs: interrupts, kernel threads, probes, waits; default: not counted"
    parser.add_argument("--noise", metavar="SECONDS", help=text)


def add_list_flag(parser: argparse._ActionsContainer, flag: str, metavar: str, text: str) -> None:
    """Add a repeatable flag; its environment variable has a comma-separated list."""
    parser.add_argument(
        flag,
        metavar=metavar,
        action="append",
        help=f"{text} ({variable(flag)}, separated by commas)",
    )


def listed(flag: str, given: list[str] | None) -> frozenset[str]:
    """Return the values of a list flag, or of its environment variable."""
    names = os.environ.get(variable(flag), "").split(",") if given is None else given
    return frozenset(name.strip() for name in names if name.strip())


def address(flag: str, text: str, example: str) -> tuple[str, int]:
    """Read `HOST:PORT`, `:PORT` or `[IPv6]:PORT`; raise CommandFailed with an example for anything else."""
    host, colon, port = text.rpartition(":")
    is_number = port.isascii() and port.isdecimal() and len(port) <= len(str(HIGHEST_PORT))
    if not colon or not is_number or int(port) > HIGHEST_PORT:
        raise _no_address(flag, text, example)
    return host.removeprefix("[").removesuffix("]"), int(port)


def optional_address(flag: str, text: str, example: str) -> tuple[str, int] | None:
    """Return a listening address; None for the value `off`."""
    return None if text in {"", "off"} else address(flag, text, f"{example}, or off")


def remote_address(flag: str, text: str, example: str) -> tuple[str, int]:
    """Return the address of another server: host and port are required."""
    host, port = address(flag, text, example)
    if not host or not port:
        raise _no_address(flag, text, example)
    return host, port


def _no_address(flag: str, text: str, example: str) -> CommandFailed:
    return CommandFailed(f"{flag}: {text[:60]!r} is not HOST:PORT: write for example {example}")
