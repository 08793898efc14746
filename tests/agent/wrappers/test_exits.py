"""Exit status that the kernel no longer has: taken from the runtime, or unknown."""

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
    """Return a node whose kernel does not keep the exit status of processes."""
    scene = Scene(tmp_path, cmk_pod(cores=2))
    scene.forgets_ends = True
    return scene


async def first_process(scene: Scene, container: Forker) -> Asked:
    """Return a wrapped process that is its container's first process."""
    asked = await container.ask(isolate("exclusive", cores="2"))
    scene.first_pids[MAIN] = asked.pid
    scene.run_pass()
    return asked


async def exited(scene: Scene, container: Forker, asked: Asked, number: int = signal.SIGKILL) -> None:
    """Kill the process and run a pass after its container has exited."""
    await container.kill(asked, signal.Signals(number))
    await scene.until(lambda: not scene.tasks)
    scene.gone.add(MAIN)
    scene.run_pass()


async def test_exit_code_137_lists_a_killed_first_process(tmp_path: Path) -> None:
    """Each entry has the runtime as its source, also after a restart; the runtime is asked once."""
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
async def test_exit_that_is_no_kill_makes_no_entry(
    tmp_path: Path, said: ContainerExit | AgentError | None
) -> None:
    """An exit that is not known to be a kill makes no entry, and the runtime is not asked again."""
    scene = forgetful(tmp_path)
    scene.exits[MAIN] = said
    async with scene.container() as container, scene.agent():
        asked = await first_process(scene, container)
        await exited(scene, container, asked)
        await scene.until(lambda: scene.asked_exits == [MAIN])
        scene.run_pass()
        await asyncio.sleep(0)
        assert (scene.reclaimed, scene.asked_exits) == ([], [MAIN])


async def test_unavailable_runtime_is_asked_again_after_the_next_pass(tmp_path: Path) -> None:
    """While the runtime is unavailable there is no entry; the next pass retries."""
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


async def test_exit_code_counts_for_the_first_process_only(tmp_path: Path) -> None:
    """For other processes the runtime is not asked, because its exit code is the first process's."""
    scene = forgetful(tmp_path)
    scene.exits[MAIN] = KILLED
    scene.first_pids[MAIN] = 1
    async with scene.container() as container, scene.agent():
        asked = await container.ask(isolate("exclusive"))
        scene.run_pass()
        await exited(scene, container, asked)
        await asyncio.sleep(0)
        assert (scene.reclaimed, scene.asked_exits) == ([], [])


async def test_exit_code_is_requested_before_the_process_is_reclaimed(tmp_path: Path) -> None:
    """A container that exits before its process is reclaimed is still asked for its exit code."""
    scene = forgetful(tmp_path)
    scene.exits[MAIN] = KILLED
    async with scene.container() as container, scene.agent():
        asked = await first_process(scene, container)
        scene.gone.add(MAIN)
        scene.run_pass()
        await scene.until(lambda: len(scene.reclaimed) == 2)
        assert {pid for pid, *_ in scene.reclaimed} == {asked.pid}


async def test_exit_status_of_the_kernel_is_preferred(tmp_path: Path) -> None:
    """If the kernel has the exit status, the entry names the kernel and the runtime is not asked."""
    scene = Scene(tmp_path, cmk_pod(cores=1))
    async with scene.container() as container, scene.agent():
        asked = await container.ask(isolate("exclusive"))
        scene.first_pids[MAIN] = asked.pid
        scene.run_pass()
        await exited(scene, container, asked)
        assert scene.shown is not None
        assert [entry.source for entry in scene.shown.reclaimed] == [ExitSource.KERNEL]
        assert scene.asked_exits == []
