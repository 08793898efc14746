"""The application of `bench.benefit`: a 1 kHz timer, then a client of a small server in its container."""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Final

PERIOD_SECONDS: Final = 0.001
MESSAGE: Final = b"x" * 128


def timer(seconds: float) -> list[float]:
    """Return the lateness of each tick of a 1 kHz timer, in seconds."""
    late, due = [], time.monotonic()
    end = due + seconds
    while due < end:
        due += PERIOD_SECONDS
        if (left := due - time.monotonic()) > 0:
            time.sleep(left)
        late.append(time.monotonic() - due)
        due = max(due, time.monotonic() - PERIOD_SECONDS)  # missed ticks are skipped
    return late


def requests(seconds: float) -> list[float]:
    """Return the latency of each answer of a minimal server, at a thousand requests a second."""
    client, server = socket.socketpair()
    child = os.fork()
    if child == 0:
        client.close()
        while message := server.recv(len(MESSAGE)):
            server.sendall(message)
        os._exit(0)
    server.close()
    taken, end = [], time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        client.sendall(MESSAGE)
        client.recv(len(MESSAGE), socket.MSG_WAITALL)
        taken.append(time.monotonic() - began)
        time.sleep(PERIOD_SECONDS)
    client.close()
    os.waitpid(child, 0)
    return taken


def main() -> None:
    """Measure, write the result atomically, and keep running, so that CPUs are freed only with the pod."""
    result, seconds = Path(sys.argv[1]), float(sys.argv[2])
    gc.disable()
    time.sleep(1)
    found = {"timer": timer(seconds), "requests": requests(seconds)}
    partial = result.with_suffix(".partial")
    partial.write_text(json.dumps(found))
    partial.rename(result)
    time.sleep(3600)


if __name__ == "__main__":
    main()
