"""A restarted agent keeps the claims of running wrappers."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, islice
from pathlib import Path

from agent.kernel.procfs import started
from agent.wrappers.claims import LiveClaims
from agent.wrappers.protocol import Pool, Want
from agent.wrappers.registry import Claim, Holder, Process
from agent.wrappers.store import FILE, Store
from pinning.contract import PoolUse, SharedPool
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import Owner
from tests.agent.wrappers.scene import Scene, cmk_pod, isolate

BOTH = frozenset({PoolUse(SharedPool.SHARED), PoolUse(SharedPool.INFRA)})


async def test_claims_survive_a_restart(tmp_path: Path) -> None:
    """Claims of running processes are kept, freed at their exit, and confirmed on a second request."""
    scene = Scene(tmp_path, cmk_pod(cores=2))
    async with scene.container() as container:
        async with scene.agent():
            first = await container.ask(isolate("exclusive"))
        scene.restart()
        assert scene.keeper.uses() == {
            Owner("p", "main"): BOTH
        }  # read before the first pass, so that it narrows no container
        async with scene.agent():
            assert (await container.ask(isolate("exclusive", cores="2"))).word == "error"
            assert (await container.ask_again(first)).environment == first.environment
            await container.kill(first)
            await scene.until(lambda: not scene.tasks)
            assert (await container.ask(isolate("exclusive", cores="2"))).word == "ok"


async def test_unanswered_request_is_repeated_with_the_same_result(tmp_path: Path) -> None:
    """If the agent exits before the answer, the claim is saved and the repeated request gets it."""
    scene = Scene(tmp_path, cmk_pod(cores=2))
    async with scene.container() as container:
        scene.is_right = False
        async with scene.agent():
            container.begin(isolate("exclusive", cores="2"))
            await scene.until(lambda: bool(scene.tasks))
        unanswered = await container.answer()
        assert unanswered.word == ""
        scene.restart()
        scene.is_right = True
        async with scene.agent():
            scene.run_pass()
            assert scene.tasks == {unanswered.pid: "1-2,5-6"}
            assert (await container.ask(isolate("exclusive"))).word == "error"
            again = await container.ask_again(unanswered)
            assert again.environment["CMK_CPUS_ASSIGNED"] == "1,5,2,6"


async def test_the_newest_claim_to_a_core_counts(tmp_path: Path) -> None:
    """If two running processes claim a core in the file, the newer claim counts."""
    scene = Scene(tmp_path, cmk_pod(cores=1))
    async with scene.container() as container:
        scene.masks.allowed = CPUSet([5])
        async with scene.agent():
            assert (await container.ask(isolate("exclusive"))).word == "error"
            scene.masks.allowed = CPUSet(range(8))
            asked = await container.ask(isolate("exclusive"))
        scene.restart()
        async with scene.agent():
            scene.run_pass()
            assert scene.tasks == {asked.pid: "1,5"}


async def test_repeated_request_writes_no_file(tmp_path: Path) -> None:
    """A repeated request does not write the file."""
    scene = Scene(tmp_path, cmk_pod(cores=2))
    async with scene.agent(), scene.container() as container:
        asked = await container.ask(isolate("exclusive"))
        before = (tmp_path / FILE).stat()
        assert (await container.ask_again(asked)).word == "ok"
        after = (tmp_path / FILE).stat()
        assert (before.st_ino, before.st_size) == (after.st_ino, after.st_size)


async def test_claim_of_an_exited_process_is_dropped_at_start(tmp_path: Path) -> None:
    """Cores of a process that exited while no agent ran are free at once."""
    scene = Scene(tmp_path, cmk_pod(cores=2))
    async with scene.container() as container:
        async with scene.agent():
            asked = await container.ask(isolate("exclusive", cores="2"))
        await container.kill(asked)
        assert '{"process":[' in (tmp_path / FILE).read_text()  # no agent has seen the end
        scene.restart()
        async with scene.agent():
            assert (await container.ask(isolate("exclusive", cores="2"))).word == "ok"


async def test_a_process_that_has_the_number_now_has_nothing(tmp_path: Path) -> None:
    """A process with a claim's pid and another start time holds nothing, and its exit frees nothing."""
    scene = Scene(tmp_path, cmk_pod(cores=2))
    store = Store(tmp_path / FILE, "boot-1")
    async with scene.container() as container:
        async with scene.agent():
            other = await container.ask(isolate("infra"))
            owner = await container.ask(isolate("exclusive", cores="2"))
        kept = store.load()
        claims = tuple(claim for claim in kept.claims if claim.process.pid == owner.pid)
        stale = replace(claims[0], process=Process(other.pid, started(other.pid) - 1))
        store.save(kept._replace(claims=(stale, *claims)))
        scene.restart()
        async with scene.agent():
            scene.run_pass()
            assert scene.tasks == {owner.pid: "1-2,5-6"}
            await container.kill(other)
            assert (await container.ask(isolate("exclusive"))).word == "error"


@contextmanager
def free_files(number: int) -> Iterator[None]:
    """Lower the soft limit so that this process can open this many more files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = {int(entry.name) for entry in Path("/proc/self/fd").iterdir()}
    last = next(islice((fd for fd in count() if fd not in taken), number, None))
    resource.setrlimit(resource.RLIMIT_NOFILE, (last, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_restart_opens_more_files_than_the_soft_limit(tmp_path: Path) -> None:
    """A restarted agent keeps all wrappers although they need more files than the soft limit."""
    scene = Scene(tmp_path, cmk_pod(cores=2))
    async with scene.container() as container:
        async with scene.agent():
            asked = await container.asks(isolate("shared"), 6)
        with free_files(4):
            scene.restart()
        async with scene.agent():
            scene.run_pass()
            assert scene.tasks.keys() == {each.pid for each in asked}
            assert scene.reclaimed == []


def test_claims_are_kept_while_no_file_can_be_opened() -> None:
    """While the agent cannot open files, the cores of saved claims are not assigned to other processes."""
    sleeper = subprocess.Popen(["sleep", "1000"])
    process, holder = (
        Process(sleeper.pid, started(sleeper.pid)),
        Holder("c", Owner("p", "main"), "test/p/main"),
    )
    claim, live = Claim(process, holder, Want(Pool.EXCLUSIVE), CPUSet([1, 5])), LiveClaims()
    try:
        with free_files(0):
            assert live.restore((claim,)) == ()
        assert tuple(live.registry) == (claim,)
    finally:
        sleeper.kill()
        sleeper.wait()
