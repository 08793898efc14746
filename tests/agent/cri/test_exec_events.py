"""Exec events of a real containerd, as `kubectl exec` and the kubelet's probes cause them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from agent.cri.exec_events import ContainerdExecs
from agent.errors import Unimplemented
from agent.node_state import StartedExec
from tests.environments.node.containerd import FOREVER

if TYPE_CHECKING:
    from pathlib import Path

    from tests.environments.node.containerd import Containerd

EXECS = 25


def test_each_exec_is_reported_with_its_pid(containerd: Containerd) -> None:
    """Short execs are reported too, and the start of a container is not."""
    from cri_api.v1 import api_pb2  # gRPC takes a moment

    pod = containerd.run_pod("web", "uid-web")
    key = pod.create("main", FOREVER)

    def enter(*command: str) -> None:
        request = api_pb2.ExecSyncRequest(container_id=key, cmd=command, timeout=60)
        containerd.call("ExecSync", request, api_pb2.ExecSyncResponse)

    async def scenario() -> list[StartedExec]:
        found: list[StartedExec] = []

        async def follow() -> None:
            async for started in ContainerdExecs(containerd.socket).started():
                found.append(started)  # noqa: PERF401 - the stream does not end

        following = asyncio.create_task(follow())
        await asyncio.to_thread(pod.start, key)
        async with asyncio.timeout(120):
            while not found:  # a subscription is not confirmed before its first event
                await asyncio.to_thread(enter, "/bin/true")
                await asyncio.sleep(0)
            missed = len(found)
            for _ in range(EXECS):
                await asyncio.to_thread(enter, "/bin/true")
            while len(found) < missed + EXECS:
                await asyncio.sleep(0.01)
        following.cancel()
        await asyncio.wait([following])
        return found

    found = asyncio.run(scenario())
    assert {started.container_id for started in found} == {key}
    assert len({started.pid for started in found}) == len(found)


def test_runtime_without_events_refuses(tmp_path: Path) -> None:
    """A runtime without the events service, such as CRI-O, raises Unimplemented."""
    from tests.agent.cri.fake_cri import FakeRuntime

    async def scenario() -> None:
        runtime = FakeRuntime(tmp_path / "cri.sock")
        async with runtime.serving():
            with pytest.raises(Unimplemented):
                async for _ in ContainerdExecs(runtime.socket).started():
                    pass

    asyncio.run(scenario())
