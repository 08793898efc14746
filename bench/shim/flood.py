"""Floods of `cmk.sock`: the agent's CPU cost, and the answer time of another pod's requests in the meantime.

`python -m bench.shim.flood` (as root) runs the agent's server of wrappers, 200 flooding containers of one pod
(one process each), and a container of another pod that sends 25 requests a second. Flooders have one CPU, the
agent another.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from statistics import quantiles
from typing import Final

from agent.kernel.cgroupfs import V2, Hierarchy
from agent.wrappers.peer import cgroup_of, connected
from agent.wrappers.service import Dependencies, WrapperService
from pinning.contract import CMK_SOCKET
from tests.agent.states import bound
from tests.agent.wrappers.scene import Scene, cmk_pod, isolate
from tests.pods import container

FLOODERS: Final = 200
SETTLE_SECONDS: Final = 8.0  # time until the rate limiter's initial burst is used up
SECONDS: Final = 15.0  # duration of the measurement
PAUSE_SECONDS: Final = 0.04  # pause between two requests of the other container
CPU_LIMIT: Final = 0.1  # of a core
P99_LIMIT: Final = 0.02  # seconds
REQUEST: Final = isolate("infra").encode()
KEPT: Final = 900  # open connections per flooder


def request(path: str) -> None:
    """Send requests and read whole answers, in a loop."""
    while True:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            exchange(connection)


def exchange(connection: socket.socket) -> bytes:
    """Return the answer to one request."""
    content = b""
    try:
        connection.sendall(REQUEST)
        while piece := connection.recv(65536):
            content += piece
    except OSError:
        pass
    return content


def silent(path: str) -> None:
    """Connect without sending, and connect again when the agent closes."""
    while True:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            with suppress(OSError):
                connection.recv(1)


def hoard(path: str) -> None:
    """Open connections without waiting, and drop the oldest."""
    kept: list[socket.socket] = []
    while True:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        kept.append(connection)
        if len(kept) > KEPT:
            kept.pop(0).close()


def hang_up(path: str) -> None:
    """Connect and close without sending, in a tight loop."""
    while True:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)


KINDS: Final = {"none": None, "request": request, "silent": silent, "hoard": hoard, "hang-up": hang_up}


def fork_flooder(kind: str, path: str) -> int:
    """Return the pid of a process that floods."""
    pid = os.fork()
    if pid:
        return pid
    flood = KINDS[kind]
    if flood is None:
        raise ValueError(f"{kind} does not flood")
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    time.sleep(1.0)
    while True:
        try:
            flood(path)
        except OSError:
            time.sleep(0.01)


def fork_victim(path: str, seconds: float) -> tuple[int, int]:
    """Return the pid of a process that sends requests and measures, and a descriptor with its figures."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    favour(2)
    time.sleep(SETTLE_SECONDS)
    took, lost, end = [], 0, time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            answer = exchange(connection)
        took.append(time.monotonic() - began)
        lost += not answer.startswith(b"ok ")
        time.sleep(PAUSE_SECONDS)
    os.write(writing, json.dumps([took, lost]).encode())
    os._exit(0)


def favour(priority: int) -> None:
    """Run this process with real-time priority on another CPU than the flooders."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))


async def measure(kind: str, folder: Path) -> tuple[float, float, float, int, int]:
    """Return the agent's share of a core, the other container's p50 and p99, its answers, and those without one."""
    scene = Scene(folder, cmk_pod(), bound("flood", *(container(str(number)) for number in range(FLOODERS))))
    cgroups: dict[int, str] = {}
    edges = Dependencies(
        Hierarchy(V2, folder, folder),
        connected,
        lambda pid, version: cgroup_of(pid, version) and cgroups.get(pid, "/pods/p/main"),
        scene.masks.as_affinities,
    )
    scene.keeper = WrapperService(folder / "install", edges, scene.store, scene.texts)
    scene.show = lambda: None  # type: ignore[method-assign]  # a state made anew, which agents do once for many
    path = str(folder / "install" / CMK_SOCKET)
    pids: list[int] = []
    try:
        if KINDS[kind]:
            for number in range(FLOODERS):
                pids.append(fork_flooder(kind, path))
                cgroups[pids[-1]] = f"/pods/flood/{number}"
        victim, reading = fork_victim(path, SECONDS)
        pids.append(victim)
        favour(1)
        async with scene.agent():
            scene.run_pass()
            await asyncio.sleep(SETTLE_SECONDS)
            used, began = time.process_time(), time.monotonic()
            await asyncio.sleep(SECONDS - 1.0)
            share = (time.process_time() - used) / (time.monotonic() - began)
            content = b""
            while piece := await asyncio.to_thread(os.read, reading, 2**20):
                content += piece
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    took, lost = json.loads(content)
    cuts = quantiles(took, n=100)
    return share, cuts[49], cuts[98], len(took), lost


def main() -> int:
    """Measure each kind in a process of its own; return 0 if all are within the limits."""
    parser = argparse.ArgumentParser(prog="python -m bench.shim.flood", description=__doc__)
    parser.add_argument("kinds", nargs="*", default=list(KINDS))
    is_good = True
    for kind in parser.parse_args().kinds:
        child = os.fork()
        if not child:
            with tempfile.TemporaryDirectory() as name:
                share, p50, p99, answers, lost = asyncio.run(measure(kind, Path(name)))
            holds = share <= CPU_LIMIT and p99 <= P99_LIMIT and not lost
            print(
                f"{'holds ' if holds else 'MISSED'}  {kind:<8} {share:6.1%} of a core, another container:"
                f" p50 {p50 * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms, {answers} asked, {lost} without an answer",
                flush=True,
            )
            os._exit(not holds)
        is_good &= os.waitpid(child, 0)[1] == 0
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
