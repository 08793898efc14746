"""CRI-O with pod events, whose events carry no status of any container."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from agent.cri.runtime import CRI
from tests.agent.cri.playing import SECONDS, watching
from tests.environments.node.crio import RUNC, start_crio

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.environments.node.crio import Crio

NO_POLL = 10 * SECONDS  # seconds, longer than the test waits


@pytest.fixture
def containerd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crio]:
    """Return a CRI-O with pod events."""
    with start_crio(RUNC, tmp_path_factory.mktemp("events"), has_events=True) as crio:
        yield crio


async def known(runtime: CRI) -> set[str]:
    """Return the names of the known containers, with a new list if events require one."""
    found = await runtime.known_containers()
    return {each.name for each in (await runtime.containers() if found is None else found)}


def test_event_makes_a_new_container_known_before_any_poll(containerd: Crio) -> None:
    """An event of a pod without known containers makes the client list again, before any poll."""
    pod = containerd.run_pod("web", "uid-1")

    async def names() -> set[str]:
        runtime = CRI(containerd.socket, poll_seconds=NO_POLL)
        async with watching(runtime) as changes:
            await runtime.containers()
            await asyncio.to_thread(containerd.run_pod, "first", "uid-2")
            await asyncio.wait_for(changes.acquire(), SECONDS)  # events arrive
            await runtime.containers()
            await asyncio.to_thread(pod.run, "one")
            found: set[str] = set()
            async with asyncio.timeout(SECONDS):
                while not found:  # an event of the other pod may be left
                    await changes.acquire()
                    found = await known(runtime)
            return found

    assert asyncio.run(names()) == {"one"}
