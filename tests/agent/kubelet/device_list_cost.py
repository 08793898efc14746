"""A process that asks a kubelet for devices and prints the cost as JSON.

`turn` is the longest CPU time for which the event loop was blocked, in milliseconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from agent.errors import AgentError
from agent.kubelet.device_list import DeviceList
from agent.kubelet.free_devices import FreeDeviceList
from tests.agent.cri.list_cost import longest_turn

SECONDS = 60.0  # for a call on a loaded machine


async def _listed(socket: Path, pods: int) -> int:
    found = await DeviceList(socket, SECONDS).ask({("ns", f"p{number}") for number in range(pods)})
    return sum(len(its or ()) for named in found.values() for its in named[0].values())


async def _free(socket: Path) -> int:
    kinds = await FreeDeviceList(socket, SECONDS).ask()
    return sum(number for kind in kinds.values() for number in kind.values())


async def measure(way: str, socket: Path, pods: int) -> dict[str, object]:
    """Return the number of devices that the kubelet names, or the class of the error, and the longest turn."""
    stop = asyncio.Event()
    turns = asyncio.create_task(longest_turn(stop))
    devices, error = 0, ""
    try:
        devices = await (_free(socket) if way == "free" else _listed(socket, pods))
    except AgentError as problem:
        error = type(problem).__name__
    stop.set()
    return {"devices": devices, "error": error, "turn": 1000 * await turns}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))))  # noqa: T201 - its result
