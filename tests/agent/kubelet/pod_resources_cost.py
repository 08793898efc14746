"""A process that asks a kubelet once and prints its memory in MiB, at start and at the peak."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from agent.kubelet.pod_resources import PodResources
from tests.agent.cri.list_cost import peak_mib


def measure(socket: Path) -> dict[str, float]:
    """Ask the kubelet; return the memory at start and at the peak."""
    start = peak_mib()
    found = asyncio.run(PodResources(socket, timeout_seconds=60).ask())
    return {"containers": len(found), "start": start, "peak": peak_mib()}


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]))))  # noqa: T201 - its result
