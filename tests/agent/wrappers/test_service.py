"""Requests of real processes on a real socket, answered from an in-memory node with 4 cores."""

from __future__ import annotations

from pathlib import Path

from agent.wrappers.service import LOOK_SECONDS
from pinning.contract import PoolUse, SharedPool
from pinning.machine.cpuset import CPUSet
from pinning.planning.node_config import NodeConfig, StaticPools
from pinning.planning.observed import Owner
from tests.agent.wrappers.scene import Scene, cmk_pod, isolate, plain_pod

MAIN = Owner("p", "main")
BOTH = frozenset({PoolUse(SharedPool.SHARED), PoolUse(SharedPool.INFRA)})


async def test_a_wrapper_gets_cores_of_its_container(tmp_path: Path) -> None:
    """The answer has the assigned CPUs, their mask and the shared pools, after the process is pinned."""
    scene = Scene(tmp_path, cmk_pod(cores=2))
    async with scene.agent(), scene.container() as container:
        asked = await container.ask(isolate("exclusive", cores="1"))
        assert asked.environment == {
            "CMK_CPUS_ASSIGNED": "1,5",
            "CMK_CPUS_ASSIGNED_MASK": "22",
            "CMK_CPUS_SHARED": "0,4,3,7",
            "CMK_CPUS_INFRA": "0,4,3,7",
        }
        assert scene.masks.put == {asked.pid: CPUSet([1, 5])}
        assert scene.uses == {MAIN: BOTH}
        assert scene.tasks == {asked.pid: "1,5"}


async def test_cores_are_free_when_their_process_ends(tmp_path: Path) -> None:
    """Cores are freed when their process is killed; until then other requests are refused with its pid."""
    scene = Scene(tmp_path, cmk_pod(cores=2))
    async with scene.agent(), scene.container() as container:
        first = await container.ask(isolate("exclusive", cores="2"))
        full = await container.ask(isolate("exclusive"))
        assert (full.word, full.text) == (
            "error",
            "Not enough free cpu lists in pool exclusive: 1 wanted, 0 of the 2 that this container has are"
            f" free; process {first.pid} of the host has the others",
        )
        await container.kill(first)
        await scene.until(lambda: not scene.tasks)
        assert (await container.ask(isolate("exclusive", cores="2"))).word == "ok"


async def test_each_core_is_assigned_once_in_a_race(tmp_path: Path) -> None:
    """One of fifty concurrent requests succeeds for each core, and the others are refused."""
    scene = Scene(tmp_path, cmk_pod(cores=3))
    async with scene.agent(), scene.container() as container:
        asked = await container.asks(isolate("exclusive"), 50)
        won = [each.environment["CMK_CPUS_ASSIGNED"] for each in asked if each.word == "ok"]
        assert sorted(won) == ["1,5", "2,6", "3,7"]
        assert all("Not enough free cpu lists" in each.text for each in asked if each.word != "ok")
        assert sorted(scene.tasks.values()) == sorted(won)


async def test_a_thousand_requests_leak_nothing(tmp_path: Path) -> None:
    """A thousand requests get the same core and leave no claim, file descriptor or pass."""
    scene = Scene(tmp_path, cmk_pod(cores=1))
    async with scene.agent(), scene.container() as container:
        await container.cycle(isolate("exclusive"), 10)
        before, passes = _descriptors(), scene.passes
        answers = await container.cycle(isolate("exclusive"), 1000)
        await scene.until(lambda: not scene.tasks)
        assert [answer.splitlines()[1] for answer in answers] == ["CMK_CPUS_ASSIGNED=1,5"]
        await scene.until(lambda: _descriptors() == before)
        assert scene.passes == passes


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_container_without_the_resource_is_refused_with_its_name(tmp_path: Path) -> None:
    """The refusal names the missing resource and does not wait for a pass."""
    scene = Scene(tmp_path, cmk_pod(), plain_pod())
    async with scene.agent(), scene.container("q") as container, scene.container() as other:
        asked = await container.ask(isolate("exclusive"))
        assert asked.text == (
            "Not enough free cpu lists in pool exclusive: 1 wanted, this container has none; put"
            " cmk.intel.com/exclusive-cores into its resources, requests and limits alike"
        )
        asked = await other.ask(isolate("exclusive-non-isolcpus"))
        assert "cmk.intel.com/exclusive-non-isolcpus-cores" in asked.text


async def test_all_requests_for_shared_get_the_same_pool(tmp_path: Path) -> None:
    """All requests for `shared` get the same pool; on a socket without it they get the shared set there."""
    pools = StaticPools(exclusive_cores=1, shared_cores=1, shared_mode="packed")
    scene = Scene(tmp_path, cmk_pod(cores=1), plain_pod(), config=NodeConfig(pools=pools))
    async with scene.agent(), scene.container("q") as container:
        asked = await container.asks(isolate("shared", cores="7"), 3)
        assert [each.environment["CMK_CPUS_ASSIGNED"] for each in asked] == ["2,6"] * 3
        assert scene.uses == {Owner("q", "main"): frozenset({PoolUse(SharedPool.SHARED)})}
        there = await container.ask(isolate("shared", socket="0"))
        assert there.environment["CMK_CPUS_ASSIGNED"] == "0,4"
        infra = await container.ask(isolate("infra"))
        assert infra.environment["CMK_CPUS_ASSIGNED"] == "0,4,3,7"
        assert infra.environment["CMK_CPUS_SHARED"] == "2,6"
        nowhere = await container.ask(isolate("shared", socket="5"))
        assert nowhere.text == "Requested socket 5 does not exist: this node has 0, 1"


async def test_strict_threads_keep_a_container_on_its_own_cores(tmp_path: Path) -> None:
    """With strict threads a container with cores gets no other pool, and one without cores may share."""
    scene = Scene(tmp_path, cmk_pod(), plain_pod(), config=NodeConfig(strict_threads=True))
    async with scene.agent(), scene.container() as container, scene.container("q") as other:
        own = await container.ask(isolate("exclusive"))
        assert own.environment["CMK_CPUS_ASSIGNED"] == "1,5"
        assert {own.environment[f"CMK_CPUS_{pool}"] for pool in ("SHARED", "INFRA")} == {""}
        assert scene.uses == {}
        for pool in ("shared", "infra"):
            assert (
                f"Pool {pool} is not for a container with cores" in (await container.ask(isolate(pool))).text
            )
        assert (await other.ask(isolate("infra"))).word == "ok"


async def test_strict_threads_list_the_shared_set_where_the_pod_may_use_it(tmp_path: Path) -> None:
    """With strict threads the `shared-cpus` annotation adds the shared set, but no static pool."""
    pools = StaticPools(exclusive_cores=1, shared_cores=1)
    config = NodeConfig(strict_threads=True, pools=pools)
    pod = cmk_pod(cores=1, annotations={"shared-cpus.corepin.io/pod": "true"})
    scene = Scene(tmp_path, pod, plain_pod(), config=config)
    async with scene.agent(), scene.container() as container, scene.container("q") as other:
        own = (await container.ask(isolate("exclusive"))).environment
        assert (own["CMK_CPUS_SHARED"], own["CMK_CPUS_INFRA"]) == ("", "0,4,3,7")
        infra = (await other.ask(isolate("infra"))).environment
        assert (infra["CMK_CPUS_SHARED"], infra["CMK_CPUS_INFRA"]) == ("", "0,4,3,7")
        shared = (await other.ask(isolate("shared"))).environment
        assert (shared["CMK_CPUS_SHARED"], shared["CMK_CPUS_INFRA"]) == ("2,6", "0,4,3,7")


async def test_without_affinity_nothing_is_pinned(tmp_path: Path) -> None:
    """With `affinity=no` the cores are assigned and the process is not pinned."""
    scene = Scene(tmp_path, cmk_pod())
    async with scene.agent(), scene.container() as container:
        asked = await container.ask(isolate("exclusive", affinity="no"))
        assert asked.environment["CMK_CPUS_ASSIGNED"] == "1,5"
        assert scene.masks.put == {}


async def test_failed_pinning_frees_the_core(tmp_path: Path) -> None:
    """If the kernel pins the process elsewhere it is refused with these CPUs, and its core is freed."""
    scene = Scene(tmp_path, cmk_pod())
    async with scene.agent(), scene.container() as container:
        scene.masks.allowed = CPUSet([5])
        asked = await container.ask(isolate("exclusive"))
        assert asked.text == (
            "the kernel lets the process run on 5 and not on 1,5: its container is on other CPUs"
        )
        assert scene.tasks == {}


async def test_request_waits_until_the_container_is_listed(tmp_path: Path) -> None:
    """A request waits until its container is listed and has its CPUs."""
    scene = Scene(tmp_path, plain_pod())
    async with scene.agent(), scene.container() as container:
        container.begin(isolate("exclusive"))
        await scene.until(lambda: scene.passes > 1)
        scene.pods, scene.is_right = (cmk_pod(), plain_pod()), False
        scene.run_pass()
        await scene.until(lambda: bool(scene.tasks))
        scene.is_right = True
        scene.run_pass()
        assert (await container.answer()).word == "ok"


async def test_other_verbs_are_answered_with_a_text(tmp_path: Path) -> None:
    """`describe` is answered with the current state of the node."""
    scene = Scene(tmp_path, cmk_pod())
    async with scene.agent(), scene.container() as container:
        await container.ask(isolate("exclusive"))
        assert (await container.ask("cmk 1 describe\n\n")).text == "1\n"


async def test_a_process_of_no_container_gets_no_cpus(tmp_path: Path) -> None:
    """A process outside containers is refused after one more pass; `describe` is answered for every process."""
    scene = Scene(tmp_path, cmk_pod())
    async with scene.agent(), scene.container("unknown") as container:
        asked = await container.ask(isolate("infra"))
        assert asked.text == "your process is in no container of a pod of this node, by its cgroup"
        assert scene.passes > 0
        assert (await container.ask("cmk 1 describe\n\n")).text == "0\n"


async def test_claims_are_dropped_when_their_container_exits(tmp_path: Path) -> None:
    """The claims of an exited container are dropped, although its process still runs."""
    scene = Scene(tmp_path, cmk_pod())
    async with scene.agent(), scene.container() as container:
        await container.ask(isolate("exclusive"))
        scene.gone.add("p/main")
        scene.run_pass()
        assert scene.tasks == {}
        assert scene.keeper.uses() == {}


async def test_a_socket_that_was_taken_away_is_made_anew(tmp_path: Path) -> None:
    """A removed or replaced socket is created again at the next look."""
    scene = Scene(tmp_path, cmk_pod())
    place = tmp_path / "install/cmk.sock"
    async with scene.agent(), scene.container() as container:
        place.unlink()
        place.symlink_to("/dev/null")
        assert scene.keeper.look() == LOOK_SECONDS
        await scene.until(place.is_socket)
        assert not place.is_symlink()
        assert (await container.ask(isolate("infra"))).word == "ok"
