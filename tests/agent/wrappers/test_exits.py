"""Ends that the kernel has forgotten: the runtime's exit code of the container, or not known."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.errors import Gone, Refused, TooLarge, Unavailable
from agent.interfaces import ContainerExit
from pinning.cmk.pools import ExitSource
from tests.agent.wrappers.scene import Scene, cmk_pod, isolate

if TYPE_CHECKING:
    from agent.errors import AgentError
    from tests.agent.wrappers.scene import Asked, Forker

MAIN = "p/main"
KILLED = ContainerExit(137, "Error", 1_790_000_000.0)


def forgetful(tmp_path: Path) -> Scene:
    """Return a node whose kernel forgets how processes ended."""
    scene = Scene(tmp_path, cmk_pod(cores=2))
    scene.forgets_ends = True
    return scene


async def first_process(scene: Scene, container: Forker) -> Asked:
    """Return a wrapped process that passes know as the first of its container."""
    asked = await container.ask(isolate("exclusive", cores="2"))
    scene.first_pids[MAIN] = asked.pid
    scene.run_pass()
    return asked


async def exited(scene: Scene, container: Forker, asked: Asked, number: int = signal.SIGKILL) -> None:
    """End the process, and let a pass see that its container has exited."""
    await container.kill(asked, signal.Signals(number))
    await scene.until(lambda: not scene.tasks)
    scene.gone.add(MAIN)
    scene.run_pass()


def test_exit_code_137_lists_a_killed_first_process(tmp_path: Path) -> None:
    """Each entry names the runtime as its source, for the next agent too; the runtime is asked once."""

    async def talk() -> None:
        scene = forgetful(tmp_path)
        scene.exits[MAIN] = KILLED
        async with scene.container() as container:
            async with scene.agent():
                asked = await first_process(scene, container)
                await exited(scene, container, asked)
                entries = [(asked.pid, "exclusive", "1,5"), (asked.pid, "exclusive", "2,6")]
                await scene.until(lambda: scene.reclaimed == entries)
                scene.run_pass()
            scene.restart()
            async with scene.agent():
                scene.run_pass()
                assert scene.reclaimed == entries
        assert scene.shown is not None
        assert {entry.source for entry in scene.shown.reclaimed} == {ExitSource.RUNTIME}
        assert scene.asked_exits == [MAIN]

    asyncio.run(talk())


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(ContainerExit(0, "Completed", 1.0), id="ordinary"),
        pytest.param(ContainerExit(143, "Error", 1.0), id="SIGTERM"),
        pytest.param(ContainerExit(1, "OOMKilled", 1.0), id="another process met the OOM killer"),
        pytest.param(ContainerExit(255, "Unknown", 1.0), id="the runtime's word for unknown"),
        pytest.param(None, id="not exited"),
        pytest.param(Gone("removed"), id="removed"),
        pytest.param(Refused("no"), id="refused"),
        pytest.param(TooLarge("16 MiB"), id="too large"),
    ],
)
def test_any_other_word_of_the_runtime_lists_nothing(
    tmp_path: Path, said: ContainerExit | AgentError | None
) -> None:
    """An end that is not known is no kill; the runtime is not asked again."""

    async def talk() -> None:
        scene = forgetful(tmp_path)
        scene.exits[MAIN] = said
        async with scene.container() as container, scene.agent():
            asked = await first_process(scene, container)
            await exited(scene, container, asked)
            await scene.until(lambda: scene.asked_exits == [MAIN])
            scene.run_pass()
            await asyncio.sleep(0)
            assert (scene.reclaimed, scene.asked_exits) == ([], [MAIN])

    asyncio.run(talk())


def test_runtime_that_is_away_is_asked_after_the_next_pass(tmp_path: Path) -> None:
    """Until it answers the end is not known."""

    async def talk() -> None:
        scene = forgetful(tmp_path)
        scene.exits[MAIN] = Unavailable("restarting")
        async with scene.container() as container, scene.agent():
            asked = await first_process(scene, container)
            await exited(scene, container, asked)
            await scene.until(lambda: scene.asked_exits == [MAIN])
            assert scene.reclaimed == []
            scene.exits[MAIN] = KILLED
            scene.run_pass()
            await scene.until(lambda: len(scene.reclaimed) == 2)

    asyncio.run(talk())


def test_exit_code_is_of_the_first_process_alone(tmp_path: Path) -> None:
    """A wrapped process beside it, whose end the kernel forgot, may have ended in any way: nobody is asked."""

    async def talk() -> None:
        scene = forgetful(tmp_path)
        scene.exits[MAIN] = KILLED
        scene.first_pids[MAIN] = 1
        async with scene.container() as container, scene.agent():
            asked = await container.ask(isolate("exclusive"))
            scene.run_pass()
            await exited(scene, container, asked)
            await asyncio.sleep(0)
            assert (scene.reclaimed, scene.asked_exits) == ([], [])

    asyncio.run(talk())


def test_container_that_exits_before_its_process_is_seen_to_end_is_asked_about(tmp_path: Path) -> None:
    """A pass may take its claim back first; the first process is known from the passes before."""

    async def talk() -> None:
        scene = forgetful(tmp_path)
        scene.exits[MAIN] = KILLED
        async with scene.container() as container, scene.agent():
            asked = await first_process(scene, container)
            scene.gone.add(MAIN)
            scene.run_pass()
            await scene.until(lambda: len(scene.reclaimed) == 2)
            assert {pid for pid, *_ in scene.reclaimed} == {asked.pid}

    asyncio.run(talk())


def test_kernels_word_goes_before_the_runtimes(tmp_path: Path) -> None:
    """Where the kernel remembers the end, the entry says so, and the runtime is not asked."""

    async def talk() -> None:
        scene = Scene(tmp_path, cmk_pod(cores=1))
        async with scene.container() as container, scene.agent():
            asked = await container.ask(isolate("exclusive"))
            scene.first_pids[MAIN] = asked.pid
            scene.run_pass()
            await exited(scene, container, asked)
            assert scene.shown is not None
            assert [entry.source for entry in scene.shown.reclaimed] == [ExitSource.KERNEL]
            assert scene.asked_exits == []

    asyncio.run(talk())
