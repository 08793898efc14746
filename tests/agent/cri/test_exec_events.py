"""Exec events of a real containerd, as `kubectl exec` and the kubelet's probes cause them.

`COREPIN_EXECS=1000` counts a thousand of them.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from agent.cri.exec_events import ContainerdExecs
from agent.errors import Unimplemented
from agent.node_state import StartedExec
from tests.environments.node.containerd import FOREVER
from tests.environments.waiting import background

if TYPE_CHECKING:
    from pathlib import Path

    from tests.environments.node.containerd import Containerd

EXECS = int(os.environ.get("COREPIN_EXECS", "100"))
SECONDS_EACH = 5  # far above the time that one exec takes


def enter(containerd: Containerd, key: str) -> None:
    """Run a short command in a container."""
    from cri_api.v1 import api_pb2  # gRPC takes a moment

    request = api_pb2.ExecSyncRequest(container_id=key, cmd=["/bin/true"], timeout=60)
    containerd.call("ExecSync", request, api_pb2.ExecSyncResponse)


async def test_each_exec_is_reported_with_its_pid(containerd: Containerd) -> None:
    """Short execs are reported too, each once, and the start of a container is not."""
    pod = containerd.run_pod("web", "uid-web")
    key = pod.create("main", FOREVER)
    found: list[StartedExec] = []
    is_reported = asyncio.Event()

    async def follow() -> None:
        async for started in ContainerdExecs(containerd.socket).started():
            found.append(started)
            is_reported.set()

    async with background(follow()):
        await asyncio.to_thread(pod.start, key)
        async with asyncio.timeout(100 + SECONDS_EACH * EXECS):
            while not found:  # a subscription is not confirmed before its first event
                await asyncio.to_thread(enter, containerd, key)
                with suppress(TimeoutError):
                    await asyncio.wait_for(is_reported.wait(), SECONDS_EACH)
            before = len(found)
            for _ in range(EXECS):
                await asyncio.to_thread(enter, containerd, key)
            while len(found) < before + EXECS:
                is_reported.clear()
                await is_reported.wait()
    found = found[before:]
    assert len(found) == EXECS
    assert {started.container_id for started in found} == {key}
    assert len({started.pid for started in found}) == len(found)


async def test_runtime_without_events_refuses(tmp_path: Path) -> None:
    """A runtime without the events service, such as CRI-O, raises Unimplemented."""
    from tests.agent.cri.fake_cri import FakeRuntime

    runtime = FakeRuntime(tmp_path / "cri.sock")
    async with runtime.serving():
        with pytest.raises(Unimplemented):
            async for _ in ContainerdExecs(runtime.socket).started():
                pass
