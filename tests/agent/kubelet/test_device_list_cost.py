"""Lists of very many devices: for how long they block the event loop, and from which size on they are not read."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.kubelet.podresources_pb2 import AllocatableResourcesResponse
from tests.agent.kubelet.fake_kubelet import GPU, FakeKubelet, entry, listed

POD_DEVICES = 250  # of one container, which is just read


def cost(tmp_path: Path, way: str, devices: int, digits: int) -> Any:
    """Return what a process finds that asks a kubelet with this many devices."""
    names = [f"{number:0{digits}}" for number in range(devices)]
    parts = [names[at : at + POD_DEVICES] for at in range(0, devices, POD_DEVICES)]
    pods = [
        listed(f"p{number}", *(entry(GPU, name, number % 2) for name in part))
        for number, part in enumerate(parts)
    ]

    async def ask() -> Any:
        fake = FakeKubelet(tmp_path / "kubelet.sock")
        if way == "free":
            free = [entry(GPU, name, number % 2) for number, name in enumerate(names)]
            fake.allocatable = AllocatableResourcesResponse(devices=free).SerializeToString()
        else:
            fake.lists(*pods)
        async with fake.serving():
            module = "tests.agent.kubelet.device_list_cost"
            command = [
                sys.executable,
                "-m",
                module,
                way,
                str(fake.socket),
                str(len(pods) if way == "listed" else 1),
            ]
            done = await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
        return json.loads(done.stdout)

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("way", "devices", "digits", "found", "most"),
    [
        pytest.param("listed", 10_000, 32, (10_000, ""), 10, id="10,000"),
        pytest.param("free", 10_000, 32, (10_000, ""), 10, id="10,000 free"),
        pytest.param("listed", 100_000, 32, (0, "TooLarge"), 60, id="100,000"),
        pytest.param("free", 100_000, 32, (0, "TooLarge"), 60, id="100,000 free"),
        # With names of five characters the list has less than 4 MiB.
        pytest.param("one pod's", 100_000, 5, (POD_DEVICES, ""), 60, id="100,000 with short names"),
        pytest.param("free", 100_000, 5, (0, "Refused"), 60, id="100,000 free with short names"),
    ],
)
def test_the_event_loop_is_not_blocked(
    tmp_path: Path, way: str, devices: int, digits: int, found: tuple[int, str], most: float
) -> None:
    """10,000 devices block it for 10 ms at most and 100,000 for 60 ms; those of pods that do not wait are not read."""
    result = cost(tmp_path, way, devices, digits)
    assert (result["devices"], result["error"]) == found
    assert result["turn"] < most
