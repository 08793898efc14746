"""`corepin gate`: delay a pod's containers until the agent has assigned the CPUs that they require.

It runs in users' pods before their containers, so it imports the standard library only and starts fast.
"""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from corepin.errors import CommandFailed
from corepin.flags import add_flag
from logs.printable import harmless
from pinning.contract import GATE_FILE, GATE_FOLDER
from pinning.json_text import parse_json

if TYPE_CHECKING:
    import argparse
    from types import FrameType

DESCRIPTION = "Wait until the agent has assigned the CPUs that this container's pod requires."
EPILOG = """\
The webhook adds it to pods as the init container corepin-gate (key `gate` of its configuration). It reads the agent's
status annotation of the pod (status.corepin.io/cpus) from a file that the kubelet updates. It exits with 0 if no
container is refused the CPUs that it requires, and with 1 if one is, with the refusal as its termination message. Under
the restart policy Never that would end the pod, so there it keeps waiting.
"""
NEVER: Final = "Never"
RESTART_POLICIES: Final = ("Always", "OnFailure", NEVER)
REFUSED: Final = 1
POLL_SECONDS: Final = 0.2  # pause between two reads of the file, each of which takes about 20 microseconds
VERSION: Final = 1  # version of the annotation's format
MESSAGE_LIMIT: Final = 4096  # bytes of a termination message that the kubelet keeps
WAITING: Final = "waiting until the agent of this node has assigned the pod's CPUs"


def add_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    """Add the verb `gate` to the command."""
    parser = subparsers.add_parser(
        "gate",
        help="in a pod: wait until its CPUs are assigned",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    policies = f"{', '.join(RESTART_POLICIES[:-1])} or {NEVER}"
    add_flag(
        parser, "--restart-policy", "POLICY", f"the pod's restart policy, {policies}", RESTART_POLICIES[0]
    )
    add_flag(
        parser, "--status", "FILE", "file with the pod's status annotation", f"{GATE_FOLDER}/{GATE_FILE}"
    )
    add_flag(
        parser, "--termination-log", "FILE", "file for the reason of exit code 1", "/dev/termination-log"
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Wait; return 0 if the containers of the pod may start, 1 if one is refused the CPUs that it requires."""
    if args.restart_policy not in RESTART_POLICIES:
        problem = f"--restart-policy: {args.restart_policy[:60]!r} is not a restart policy"
        raise CommandFailed(f"{problem}: write one of {', '.join(RESTART_POLICIES)}")
    signal.signal(signal.SIGTERM, _leave)  # without a handler pid 1 of a container ignores SIGTERM
    printed = ""
    while (refusals := _look(Path(args.status))) != ():
        words = WAITING if refusals is None else "\n".join(refusals)
        if words != printed:
            print(harmless(words), flush=True)
            printed = words
        if refusals and args.restart_policy != NEVER:
            _write(Path(args.termination_log), words)
            return REFUSED
        time.sleep(POLL_SECONDS)
    print("the CPUs are assigned", flush=True)
    return 0


def read_refusals(text: str) -> tuple[str, ...] | None:
    """Return the refused claims with reasons; None while the status annotation is absent or unreadable.

    The agent writes the result of all claims of a pod at once, so if there is no refusal, every claim has CPUs. If the
    pool is refused, the refusal is that of the pod, because the pool's containers have no claims of their own.
    """
    try:
        status = parse_json(text)
        if status["version"] != VERSION:
            return None
        refused = {"the pod": status["refusal"]} if "refusal" in status else {}
        refused |= {name: it["refusal"] for name, it in status["containers"].items() if "refusal" in it}
        return tuple(f"{name}: {it['message']}" for name, it in refused.items() if it["blocksStart"])
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def _look(status: Path) -> tuple[str, ...] | None:
    try:
        return read_refusals(status.read_text(encoding="utf-8"))
    except OSError:
        return None


def _write(log: Path, words: str) -> None:
    """Write the termination message; if that fails the kubelet shows the last output."""
    with suppress(OSError):
        log.write_bytes(harmless(words).encode()[:MESSAGE_LIMIT])


def _leave(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signal.SIGTERM)
