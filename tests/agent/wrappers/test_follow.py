"""Wrapped processes move with their container's cores and their pool."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from agent.kernel.affinity import EVERYWHERE, read_affinity
from agent.kernel.procfs import started
from agent.wrappers.isolate import move_process
from agent.wrappers.registry import Process
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.observed import Owner
from tests import thread_chains
from tests.agent.wrappers.scene import Scene, cmk_pod, isolate, plain_pod

MAIN = Owner("p", "main")


def own(scene: Scene, cpus: str) -> None:
    """Give the container other CPUs and run a pass."""
    assert scene.ledger is not None
    held = scene.ledger.of(MAIN)
    assert held is not None
    scene.ledger = scene.ledger.change(replace(held, cpus=CPUSet.parse(cpus), idle=EMPTY))
    scene.run_pass()


async def test_wrapper_moves_to_its_containers_new_cores(tmp_path: Path) -> None:
    """The process is moved, the state and its next answer have the new CPUs."""
    scene = Scene(tmp_path, cmk_pod(cores=1))
    async with scene.agent(), scene.container() as container:
        asked = await container.ask(isolate("exclusive"))
        own(scene, "3,7")
        assert scene.tasks == {asked.pid: "3,7"}
        assert scene.masks.put == {asked.pid: CPUSet([3, 7])}
        again = await container.ask_again(asked)
        assert again.environment["CMK_CPUS_ASSIGNED"] == "3,7"


async def test_affinity_that_the_process_chose_is_kept(tmp_path: Path) -> None:
    """A process that narrowed its affinity inside the pool is not moved when the pool changes."""
    scene = Scene(tmp_path, plain_pod())
    async with scene.agent(), scene.container("q") as container:
        mover, other = await container.asks(isolate("infra"), 2)
        scene.masks.put[mover.pid] = CPUSet([7])
        scene.pods = (cmk_pod(cores=1), plain_pod())
        scene.run_pass()
        assert scene.masks.put == {mover.pid: CPUSet([7]), other.pid: CPUSet([0, 2, 3, 4, 6, 7])}
        scene.pods = (plain_pod(),)
        scene.ledger = None
        scene.run_pass()
        assert scene.masks.put == {mover.pid: CPUSet([7]), other.pid: CPUSet(range(8))}


@pytest.mark.parametrize(
    ("request_", "few", "asked_for"),
    [
        pytest.param(isolate("infra"), "0,2-4,6-7", EVERYWHERE, id="all that the container has"),
        pytest.param(isolate("shared", socket="0"), "0,4", CPUSet([0, 4]), id="a part of it"),
    ],
)
async def test_wrapper_in_the_whole_pool_gets_all_cpus_as_affinity(
    tmp_path: Path, request_: str, few: str, asked_for: CPUSet
) -> None:
    """A process in the whole pool has no narrower affinity, so that its children follow the pool."""
    scene = Scene(tmp_path, plain_pod())
    scene.masks.allowed = CPUSet(range(8))
    async with scene.agent(), scene.container("q") as container:
        asked = await container.ask(request_)
        whole = scene.masks.read(asked.pid)
        scene.pods, scene.masks.allowed = (cmk_pod(cores=1), plain_pod()), CPUSet.parse("0,2-4,6-7")
        scene.run_pass()
        assert scene.masks.put == {asked.pid: asked_for}
        assert scene.masks.read(asked.pid) == CPUSet.parse(few)
        scene.pods, scene.ledger, scene.masks.allowed = (plain_pod(),), None, CPUSet(range(8))
        scene.run_pass()
        assert scene.masks.read(asked.pid) == whole


async def test_last_wrapper_loses_its_core_when_the_container_shrinks(tmp_path: Path) -> None:
    """If a container shrinks below its claims, the last claim is dropped and the others stay."""
    scene = Scene(tmp_path, cmk_pod(cores=2))
    async with scene.agent(), scene.container() as container:
        first = await container.ask(isolate("exclusive"))
        await container.ask(isolate("exclusive"))
        scene.pods = (cmk_pod(cores=1),)
        own(scene, "1,5")
        assert scene.tasks == {first.pid: "1,5"}


def test_incomplete_move_is_retried_by_the_next_pass(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A move that may have missed threads is logged and retried by the next pass."""

    async def talk() -> None:
        scene = Scene(tmp_path, cmk_pod(cores=1))
        everything = scene.masks.allowed
        async with scene.agent(), scene.container() as container:
            asked = await container.ask(isolate("exclusive"))
            before = scene.masks.put[asked.pid]
            scene.masks.allowed = EMPTY  # each listed thread exits before its affinity is read
            own(scene, "3,7")
            assert scene.masks.put == {asked.pid: before}
            scene.masks.allowed = everything
            scene.run_pass()
            assert scene.masks.put == {asked.pid: CPUSet([3, 7])}

    asyncio.run(talk())
    assert "retried with the next pass" in caplog.text


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU is none to be moved to")
def test_threads_that_start_each_other_are_all_moved(tmp_path: Path) -> None:
    """No thread stays on the old CPUs, although each starts the next before it is listed."""
    old, new = CPUSet([min(os.sched_getaffinity(0))]), CPUSet([max(os.sched_getaffinity(0))])
    program = thread_chains.build(tmp_path)
    with thread_chains.running(program, microseconds=200, threads=800) as pid:
        process = Process(pid, started(pid))
        assert any(move_process(process, frozenset({read_affinity(pid)}), old, old) for _ in range(20))
        assert any(move_process(process, frozenset({old}), new, new) for _ in range(20))
        thread_chains.wait_for_threads(pid, 800)
        assert thread_chains.masks(pid) == {frozenset(new)}


def test_process_of_another_start_is_not_moved() -> None:
    """A process with the same pid and another start time is not moved."""
    here = read_affinity(os.getpid())
    other = Process(os.getpid(), started(os.getpid()) + 1)

    assert move_process(other, frozenset({here}), CPUSet([max(here)]), CPUSet([max(here)]))
    assert read_affinity(os.getpid()) == here
