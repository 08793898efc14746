"""`corepin gate`: hold a pod back until the agent says that the CPUs which it must have are assigned.

It runs in pods of users before everything else in them, so it imports the standard library only, and starts at once.
"""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from corepin.errors import CommandFailed
from corepin.flags import add_flag
from corepin.terminal import harmless
from pinning.contract import GATE_FILE, GATE_FOLDER
from pinning.json_text import parse_json

if TYPE_CHECKING:
    import argparse
    from types import FrameType

DESCRIPTION = "Wait until the CPUs that the pod of this container must have are assigned to it."
EPILOG = """\
The webhook adds it to pods as the init container corepin-gate (key `gate` of its configuration). It reads what the
agent says of the pod (annotation status.corepin.io/cpus, as a file that the kubelet keeps up to date). It ends with 0
when no claim that must fit is refused, and with 1 when one is, with the refusal as its termination message; where the
restart policy is Never that would end the pod, so there it waits on.
"""
NEVER: Final = "Never"
RESTART_POLICIES: Final = ("Always", "OnFailure", NEVER)
REFUSED: Final = 1
POLL_SECONDS: Final = 0.2  # reading the file takes some 20 microseconds
VERSION: Final = 1  # of the annotation
MESSAGE_LIMIT: Final = 4096  # bytes that the kubelet takes
WAITING: Final = "waiting until the agent of this node says that the pod's CPUs are assigned"


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    """Add the verb to the command."""
    parser = subparsers.add_parser(
        "gate",
        help="in a pod: wait until its CPUs are assigned",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    policies = ", ".join(RESTART_POLICIES)
    add_flag(parser, "--restart-policy", "POLICY", f"the pod's: one of {policies}", RESTART_POLICIES[0])
    add_flag(parser, "--status", "FILE", "what the agent says of the pod", f"{GATE_FOLDER}/{GATE_FILE}")
    add_flag(parser, "--termination-log", "FILE", "where to write why it ends with 1", "/dev/termination-log")
    return parser


def run(args: argparse.Namespace) -> int:
    """Wait; return 0 when the containers of the pod may start, 1 when they may not."""
    if args.restart_policy not in RESTART_POLICIES:
        problem = f"--restart-policy: {args.restart_policy[:60]!r} is none"
        raise CommandFailed(f"{problem}: write one of {', '.join(RESTART_POLICIES)}")
    signal.signal(signal.SIGTERM, _leave)  # without a handler the first process of a container ignores it
    told = ""
    while (refusals := _look(Path(args.status))) != ():
        words = WAITING if refusals is None else "\n".join(refusals)
        if words != told:
            print(harmless(words), flush=True)
            told = words
        if refusals and args.restart_policy != NEVER:
            _write(Path(args.termination_log), words)
            return REFUSED
        time.sleep(POLL_SECONDS)
    print("the CPUs are assigned", flush=True)
    return 0


def read_refusals(text: str) -> tuple[str, ...] | None:
    """Return which containers may not start, and why; None while the agent has said nothing that can be read.

    The agent says at once what became of all claims of a pod, so where it refuses none, every one is assigned.
    """
    try:
        status = parse_json(text)
        if status["version"] != VERSION:
            return None
        refused = {name: it["refusal"] for name, it in status["containers"].items() if "refusal" in it}
        return tuple(f"{name}: {it['message']}" for name, it in refused.items() if it["blocksStart"])
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def _look(status: Path) -> tuple[str, ...] | None:
    try:
        return read_refusals(status.read_text(encoding="utf-8"))
    except OSError:
        return None


def _write(log: Path, words: str) -> None:
    """Leave a message for `kubectl describe`; where that cannot be written the kubelet takes what was printed."""
    with suppress(OSError):
        log.write_bytes(words.encode()[:MESSAGE_LIMIT])


def _leave(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signal.SIGTERM)
