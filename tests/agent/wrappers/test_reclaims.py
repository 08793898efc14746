"""Entries of `cmk reconcile`: CPU lists of processes that were killed before they released them."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest

from agent.wrappers.store import FILE, MOST_RECLAIMED, Reclaims, claim_text
from pinning.cmk.pools import Reclaimed
from tests.agent.wrappers.scene import Scene, cmk_pod, isolate, plain_pod


async def test_ordinary_ends_make_no_entry(tmp_path: Path) -> None:
    """Commands that exit, and one ended by SIGTERM, make no entry, also after a restart."""
    scene = Scene(tmp_path, cmk_pod(cores=1))
    async with scene.container() as container:
        async with scene.agent():
            await container.cycle(isolate("exclusive"), 84)
            asked = await container.ask(isolate("exclusive"))
            await container.kill(asked, signal.SIGTERM)
            await scene.until(lambda: not scene.tasks)
            assert scene.reclaimed == []
        scene.restart()
        async with scene.agent():
            scene.run_pass()
            assert scene.reclaimed == []


async def test_a_killed_process_has_one_entry_for_each_core(tmp_path: Path) -> None:
    """A process ended by SIGKILL makes one entry for each core, and the next agents list the same."""
    scene = Scene(tmp_path, cmk_pod(cores=2))
    async with scene.container() as container:
        async with scene.agent():
            asked = await container.ask(isolate("exclusive", cores="2"))
            await container.kill(asked)
            await scene.until(lambda: not scene.tasks)
            entries = [(asked.pid, "exclusive", "1,5"), (asked.pid, "exclusive", "2,6")]
            assert scene.reclaimed == entries
        for _ in range(2):
            scene.restart()
            async with scene.agent():
                scene.run_pass()
                assert scene.reclaimed == entries


async def test_a_process_that_ended_while_no_agent_ran_has_entries(tmp_path: Path) -> None:
    """A process that ended while no agent ran makes entries, because its exit status is unknown."""
    scene = Scene(tmp_path, cmk_pod(cores=2), plain_pod())
    async with scene.container() as container, scene.container("q") as shared:
        async with scene.agent():
            scene.run_pass()
            asked = await container.ask(isolate("exclusive", cores="2"))
            other = await shared.ask(isolate("infra"))
        await container.kill(asked, signal.SIGTERM)
        await shared.kill(other, signal.SIGTERM)
        scene.pods = (*scene.pods, cmk_pod("r", cores=1))  # it takes core 3 from the pool
        entries = {
            (asked.pid, "exclusive", "1,5"),
            (asked.pid, "exclusive", "2,6"),
            (other.pid, "infra", "0,4"),
            (other.pid, "infra", "3,7"),
        }
        for _ in range(2):
            scene.restart()
            async with scene.agent():
                scene.run_pass()
                assert set(scene.reclaimed) == entries


async def test_an_entry_keeps_the_cpus_at_the_exit(tmp_path: Path) -> None:
    """The entry keeps the pool's CPUs at the time of the exit, though the pool changes later."""
    scene = Scene(tmp_path, plain_pod())
    async with scene.agent(), scene.container("q") as container:
        scene.run_pass()
        asked = await container.ask(isolate("shared"))
        await container.kill(asked)
        await scene.until(lambda: not scene.tasks)
        entries = [(asked.pid, "shared", "0,4,1,5"), (asked.pid, "shared", "2,6,3,7")]
        assert scene.reclaimed == entries
        scene.pods = (*scene.pods, cmk_pod("r", cores=2))
        scene.run_pass()
        assert scene.reclaimed == entries


async def test_upgrade_makes_no_entries_from_an_older_file(tmp_path: Path) -> None:
    """Claims in a file of a version that recorded no exits make no entries."""
    scene = Scene(tmp_path, cmk_pod(cores=2))
    async with scene.container() as container:
        async with scene.agent():
            asked = await container.ask(isolate("exclusive"))
        (claim,) = scene.store.load().claims
        (tmp_path / FILE).write_text('{"version":2,"bootID":"boot-1"}\n' + claim_text(claim))
        await container.kill(asked)
        scene.restart()
        async with scene.agent():
            scene.run_pass()
            assert (scene.tasks, scene.reclaimed) == ({}, [])


def test_a_tenant_that_kills_in_a_loop_evicts_its_own_entries() -> None:
    """Entries above the limit evict the oldest of the same namespace, and the evicted ones are counted."""
    reclaims = Reclaims()
    others = [Reclaimed(pid, f"ns-{pid}/p/main", "exclusive", "1,5") for pid in range(100)]
    for entry in others:
        reclaims.add(entry)
    for pid in range(10_000):
        reclaims.add(Reclaimed(pid, f"loop/p-{pid}/main", "exclusive", "2,6"))

    own = [entry.pid for entry in reclaims.entries if entry.container.startswith("loop/")]
    assert [entry for entry in reclaims.entries if entry in others] == others
    assert own == list(range(10_000 - len(own), 10_000))
    assert (len(reclaims.entries), reclaims.dropped) == (MOST_RECLAIMED, 10_100 - MOST_RECLAIMED)


async def test_saving_exits_on_a_full_disk_is_rate_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk saving is retried once a second at most, and the claims end anyway."""
    scene = Scene(tmp_path, cmk_pod(cores=1))
    async with scene.agent(), scene.container() as container:
        asked = await container.asks(isolate("infra"), 30)
        tries: list[object] = []

        def fail(texts: object, _: object) -> None:
            tries.append(texts)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(scene.store, "add", fail)
        for each in asked:
            await container.kill(each)
        await scene.until(lambda: not scene.tasks)
        assert 1 <= len(tries) < 30


async def test_a_wrapper_inside_of_another_keeps_the_outer_core(tmp_path: Path) -> None:
    """A nested wrapper runs in the pool and keeps its core; a kill makes entries of both."""
    scene = Scene(tmp_path, cmk_pod(cores=2))
    async with scene.container() as container:
        async with scene.agent():
            outer = await container.ask(isolate("exclusive"), later=isolate("infra"))
            inner = await container.ask_again(outer)
            assert inner.environment["CMK_CPUS_ASSIGNED"] == "0,4,3,7"
            assert str(scene.masks.put[outer.pid]) == "0,3-4,7"
            assert (await container.ask(isolate("exclusive", cores="2"))).word == "error"
            assert held(scene) == [("exclusive", "1,5"), ("infra", "0,3-4,7")]
        scene.restart()
        async with scene.agent():
            scene.run_pass()
            assert held(scene) == [("exclusive", "1,5"), ("infra", "0,3-4,7")]
            assert (await container.ask(isolate("exclusive"))).environment["CMK_CPUS_ASSIGNED"] == "2,6"
            await container.kill(outer)
            await scene.until(lambda: bool(scene.reclaimed))
            lists = [("exclusive", "1,5"), ("infra", "0,4"), ("infra", "3,7")]
            assert scene.reclaimed == [(outer.pid, *entry) for entry in lists]


def held(scene: Scene) -> list[tuple[str, str]]:
    """Return the pool and CPUs of each task."""
    return [(task.pool, str(task.cpus)) for task in scene.shown.tasks] if scene.shown else []
