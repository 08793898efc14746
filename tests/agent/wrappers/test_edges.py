"""Failures while a request of `cmk isolate` is answered."""

from __future__ import annotations

import errno
from pathlib import Path

from agent.node_state import NodeState
from agent.wrappers.store import FILE, Kept
from pinning.contract import CMK_SOCKET
from tests.agent.wrappers.scene import Scene, cmk_pod, isolate, plain_pod


async def test_claim_that_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    """If a claim cannot be saved it is refused and its core is free; the next pass writes the file again."""
    scene = Scene(tmp_path, cmk_pod())
    beside = tmp_path / f"{FILE.removesuffix('.json')}.new"  # where the file is written first
    beside.mkdir()
    async with scene.agent(), scene.container() as container:
        asked = await container.ask(isolate("exclusive"))
        assert asked.text == "the agent cannot record it in its state directory: Is a directory"
        assert scene.tasks == {}
        beside.rmdir()
        scene.run_pass()
        asked = await container.ask(isolate("exclusive"))
        assert asked.word == "ok"
        assert [claim.process.pid for claim in scene.store.load().claims] == [asked.pid]


async def test_a_bug_in_one_answer_ends_that_answer(tmp_path: Path) -> None:
    """If a handler crashes, its process gets no answer and other requests are answered."""
    scene = Scene(tmp_path, cmk_pod())
    scene.texts["reconcile"] = _crash
    async with scene.agent(), scene.container() as container:
        assert (await container.ask("cmk 1 reconcile\n\n")).word == ""
        assert (await container.ask("cmk 1 describe\n\n")).word == "ok"


def _crash(_: NodeState) -> str:
    raise ZeroDivisionError


async def test_without_descriptors_one_connection_ends(tmp_path: Path) -> None:
    """If the agent is out of file descriptors one connection is closed; the next request is answered."""
    scene = Scene(tmp_path, plain_pod())
    failures = [OSError(errno.EMFILE, "Too many open files")]
    scene.peer_failures = failures
    async with scene.agent(), scene.container("q") as container:
        assert (await container.ask(isolate("infra"))).word == ""
        assert failures == []
        assert (await container.ask(isolate("infra"))).word == "ok"


async def test_an_observing_agent_refuses_cmk_isolate(tmp_path: Path) -> None:
    """An agent that observes refuses `cmk isolate`, because another program allocates the CPUs."""
    scene = Scene(tmp_path, plain_pod())
    scene.observes = True
    async with scene.agent(), scene.container("q") as container:
        assert "corepin only observes this node" in (await container.ask(isolate("infra"))).text


async def test_a_reset_leaves_nothing_behind(tmp_path: Path) -> None:
    """Reset removes the socket and the saved claims, and is idempotent."""
    scene = Scene(tmp_path, cmk_pod())
    async with scene.agent(), scene.container() as container:
        await container.ask(isolate("exclusive"))
    scene.keeper.reset()
    scene.keeper.reset()
    assert not (tmp_path / "install" / CMK_SOCKET).exists()
    scene.restart()
    assert scene.keeper.uses() == {}
    assert scene.store.load() == Kept()
