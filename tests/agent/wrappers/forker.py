"""`python -I forker.py`: makes processes that ask as a shim does, each as a child of its own. Standard library only.

Lines of JSON come in: {"ask": [SOCKET, REQUEST, LATER]} starts a process, which asks and then waits for its end;
{"kill": PID} ends it and leaves it uncollected, {"again": PID} lets it ask once more, for LATER, and {"cycle": [SOCKET, REQUEST, TIMES]} starts and ends as many, one after the other. A line of JSON goes out for each.
{"flood": [SOCKET, KEPT, REQUEST]} starts a process that connects without end, sends the request, reads nothing and keeps
so many connections open; nothing goes out.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time


def ask(path: str, request: str) -> str:
    """Return what is answered to a request."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(path)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(request.encode())
        content = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := connection.recv(65536):
                content += piece
    return content.decode()


def fork(path: str, request: str, later: str = "") -> int:
    """Return the pid of a process that asks, tells what it was answered, and stays."""
    child = os.fork()
    if child:
        return child
    signal.signal(signal.SIGUSR1, lambda *_: ask_and_tell(path, later or request))
    ask_and_tell(path, request)
    while True:
        time.sleep(3600)


def ask_and_tell(path: str, request: str) -> None:
    """Ask, and write what was answered."""
    try:
        answer = ask(path, request)
    except OSError as error:
        answer = f"no answer: {error}"
    tell({"pid": os.getpid(), "answer": answer, "cpus": sorted(os.sched_getaffinity(0))})


def tell(what: object) -> None:
    """Write one line at once: children share the pipe."""
    os.write(1, f"{json.dumps(what)}\n".encode())


def end(child: int, number: int) -> None:
    """End a process and leave its zombie, so that how it ended can be read on any kernel."""
    os.kill(child, number)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)


def cycle(path: str, request: str, times: int) -> None:
    """Let processes ask and end, one after the other."""
    answers = set()
    for _ in range(times):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.write(writing, ask(path, request).encode())
            os._exit(0)
        os.close(writing)
        answers.add(os.read(reading, 65536).decode())
        os.close(reading)
        os.waitpid(child, 0)
    tell({"answers": sorted(answers)})


def flood(path: str, kept: int, request: str) -> None:
    """Start a process that connects without end; at the lowest priority, so that it fills the queue and not the CPU."""
    if os.fork():
        return
    os.nice(19)
    connections: list[socket.socket] = []
    while True:
        with contextlib.suppress(OSError):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connections.append(connection)
            connection.connect(path)
            connection.sendall(request.encode())
        while len(connections) > kept:
            connections.pop(0).close()


def main() -> None:
    """Do what the lines say."""
    for line in sys.stdin:
        order = json.loads(line)
        if "ask" in order:
            fork(*order["ask"])
        elif "kill" in order:
            end(order["kill"], order.get("signal", signal.SIGKILL))
            tell({"killed": order["kill"]})
        elif "again" in order:
            os.kill(order["again"], signal.SIGUSR1)
        elif "flood" in order:
            flood(*order["flood"])
        else:
            cycle(*order["cycle"])


if __name__ == "__main__":
    main()
