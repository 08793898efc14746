"""`python -I forker.py`: forks processes that send requests as the shim does. Standard library only.

Each line of JSON on standard input is a command. One line of JSON is written for each, except for the flood.
{"ask": [SOCKET, REQUEST, LATER]} forks a process, which sends the request and then sleeps.
{"kill": PID} kills it and leaves its zombie.
{"again": PID} makes it send LATER.
{"cycle": [SOCKET, REQUEST, TIMES]} forks so many processes, one after the other, which send the request.
{"flood": [SOCKET, KEPT, REQUEST]} forks a process that connects in a loop, sends the request, reads nothing
and keeps so many connections open.
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
    """Return the answer to a request."""
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
    """Fork a process that sends a request, writes the answer and sleeps; return its pid."""
    child = os.fork()
    if child:
        return child
    signal.signal(signal.SIGUSR1, lambda *_: ask_and_tell(path, later or request))
    ask_and_tell(path, request)
    while True:
        time.sleep(3600)


def ask_and_tell(path: str, request: str) -> None:
    """Send a request and write the answer."""
    try:
        answer = ask(path, request)
    except OSError as error:
        answer = f"no answer: {error}"
    tell({"pid": os.getpid(), "answer": answer, "cpus": sorted(os.sched_getaffinity(0))})


def tell(what: object) -> None:
    """Write one line in one call, because children share the pipe."""
    os.write(1, f"{json.dumps(what)}\n".encode())


def end(child: int, number: int) -> None:
    """Kill a process and leave its zombie, so that every kernel still has its exit status."""
    os.kill(child, number)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)


def cycle(path: str, request: str, times: int) -> None:
    """Fork processes that send a request and exit, one after the other."""
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
    """Fork a process that connects in a loop, at low priority so that it does not use up the CPU."""
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
    """Execute the commands on standard input."""
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
