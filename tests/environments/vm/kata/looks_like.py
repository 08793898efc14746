"""A process with another program's name in /proc: `looks_like.py NAME ARGUMENT...` prints a mark and sleeps."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from pathlib import Path

_SET_DEATH_SIGNAL, _SET_NAME = 1, 15  # options of prctl(2)
_STAT_ARGUMENTS = 45  # in /proc/PID/stat after the name: start of the arguments


def prctl(*numbers: int | ctypes.c_char_p | ctypes.c_ulong) -> None:
    """Call prctl."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(*numbers, *(0,) * (5 - len(numbers))) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def look_like(name: str, arguments: list[str]) -> None:
    """Change name and command line of this process; the new line must not be longer, and is padded with null bytes."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = (int(field) for field in fields[_STAT_ARGUMENTS : _STAT_ARGUMENTS + 2])
    text = b"".join(argument.encode() + b"\0" for argument in arguments)
    assert len(text) <= end - begin, f"{len(text)} bytes do not fit into {end - begin}"
    with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
        memory.seek(begin)
        memory.write(text.ljust(end - begin, b"\0"))
    prctl(_SET_NAME, ctypes.c_char_p(name.encode()))


def main() -> None:
    """Take another program's name and command line, in a forked child too; print a mark, and sleep."""
    prctl(_SET_DEATH_SIGNAL, ctypes.c_ulong(signal.SIGKILL))
    look_like(sys.argv[1], sys.argv[2:])
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    if os.fork() == 0:
        prctl(_SET_DEATH_SIGNAL, ctypes.c_ulong(signal.SIGKILL))
        sys.stdout.write("!")  # the mark is written after the fork, so that both processes exist
        sys.stdout.flush()
    threading.Event().wait()


if __name__ == "__main__":
    main()
