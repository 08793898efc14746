"""A process with the agent's modules that lists containers and prints its cost as JSON.

Memory is in MiB: `start` before the first call, `peak` while it lists. `turn` is the longest time that the
event loop
was blocked.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import agent.main
import agent.nri.container_watch
import agent.report.event_recorder
import agent.report.node
import agent.report.pod_status
import apiserver.client
from agent.cri.lists import Lists
from agent.cri.runtime import CRI, SERVICE
from agent.grpc_calls import Calls
from tests.environments.waiting import background

# For a call: on a loaded machine lists of 15 MiB take longer than the agent's ten seconds.
DEADLINE_SECONDS = 120.0
MODULES = (agent.main, agent.nri.container_watch, agent.report, apiserver.client)  # loaded by the agent too


def peak_mib() -> float:
    """Return the peak memory of this process."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


async def longest_turn(stop: asyncio.Event) -> float:
    """Return the longest CPU time for which the event loop was blocked, until `stop`."""
    longest, last = 0.0, time.thread_time()
    while not stop.is_set():
        await asyncio.sleep(0)
        now = time.thread_time()
        longest, last = max(longest, now - last), now
    return longest


async def measure(socket: Path, rounds: int) -> dict[str, float]:
    """List several times as the agent does, while following events."""
    start = peak_mib()
    runtime = CRI(socket, timeout_seconds=DEADLINE_SECONDS, poll_seconds=0.05)
    stop, changed = asyncio.Event(), asyncio.Event()
    turns = asyncio.create_task(longest_turn(stop))
    async with background(runtime.watch(changed.set)):
        await changed.wait()
        for _ in range(rounds):
            found = await runtime.containers()
        stop.set()
        longest = await turns
    sandboxes = await Lists(Calls(socket, SERVICE, DEADLINE_SECONDS)).sandboxes()
    known = sum(container.cgroup is not None for container in found)
    return {
        "sandboxes": len(sandboxes),
        "containers": len(found),
        "known": known,
        "start": start,
        "peak": peak_mib(),
        "turn": longest,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(Path(sys.argv[1]), int(sys.argv[2])))))  # noqa: T201 - its result
