"""`unshare --pid --fork --mount-proc python -m tests.agent.wrappers.pid_reuse SOCKET`: a reused pid.

The first process connects, has a core and exits; the second one gets its pid before the agent sees the
exit.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from pathlib import Path

from agent.errors import Gone
from agent.kernel.procfs import started
from agent.wrappers.claims import LiveClaims
from agent.wrappers.peer import connected, held
from agent.wrappers.protocol import Pool, Want
from agent.wrappers.registry import Holder, OwnCore, Process
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import Owner

HOLDER = Holder("id", Owner("uid", "main"), "ns/pod/main")
OWN = (OwnCore(0, CPUSet([0, 4])), OwnCore(0, CPUSet([1, 5])))
ONE = Want(Pool.EXCLUSIVE)


def fork(path: str | None = None) -> Process:
    """Fork a process that sleeps, connected to the socket if one is given."""
    child = os.fork()
    if child:
        return Process(child, started(child))
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if path:
        connection.connect(path)
    while True:
        time.sleep(3600)


def end(process: Process) -> None:
    """Kill a process and reap it."""
    os.kill(process.pid, signal.SIGKILL)
    os.waitpid(process.pid, 0)


def fork_as(pid: int) -> Process:
    """Fork a process with this pid."""
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
    process = fork()
    assert process.pid == pid
    return process


def tell(what: str) -> None:
    """Write a fact that was verified."""
    sys.stdout.write(f"{what}\n")


async def play(path: str) -> None:
    """Check the core and the pid after each step."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(path)
        listening.listen()
        claims = LiveClaims()
        claims.watch(lambda: None)
        other = fork()
        claims.take(held(other), HOLDER, ONE, OWN)
        first = fork(path)
        connection, _ = listening.accept()
        claims.take(held(first), HOLDER, ONE, OWN)
        saved = tuple(claims.registry)
        await asyncio.sleep(0.05)  # the next tick of the clock in which start times are counted
        end(first)
        second = fork_as(first.pid)
        assert claims.registry.of(first) is not None  # the agent has not seen the exit yet
        assert claims.registry.of(second) is None
        with connection:  # the process with this pid has not connected
            try:
                connected(connection)
            except Gone:
                tell("the connection is nobody's")
        while claims.registry.of(first):
            await asyncio.sleep(0.001)
        assert claims.take(held(second), HOLDER, ONE, OWN).cpus == CPUSet([1, 5])
        tell("the core is free, and the second process may have it")
        following = LiveClaims()
        following.restore(saved)
        assert [claim.process for claim in following.registry] == [other]
        tell("the next agent takes the second process for another one")
        end(second)
        while claims.registry.of(second):
            await asyncio.sleep(0.001)
        assert [claim.process for claim in claims.registry] == [other]
        tell("its end frees its own core alone")
        end(other)


if __name__ == "__main__":
    asyncio.run(play(sys.argv[1]))
