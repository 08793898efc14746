"""The `local` runtime with real processes, with kernel cgroups and with affinity alone."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from agent.errors import Gone, Unsettled
from agent.kernel.cgroupfs import DEFAULT_ROOT, find_hierarchy
from agent.kernel.procfs import is_alive
from agent.local.affinity import MARK, AffinityCgroups
from agent.local.container import LocalContainer
from agent.local.finished_pods import write_finished
from agent.local.pods_dir import PodsDir
from agent.local.runtime import open_local
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.observed import State
from tests.agent.local.world import LAST, UID, World, agent_of, app, reap, running

LOOKS = 100  # one in nine reads of a process's environment meets an execve(2): all miss it once in a hundred thousand runs
TELL = "grep Cpus_allowed_list /proc/self/status"
GRACE_SECONDS = 3  # grace period in which even a starved shell logs the SIGTERM; the test waits for all of it


async def test_container_starts_on_the_sent_cpus(world: World) -> None:
    """A container that was sent CPUs while created runs its first instruction on them."""
    world.put(app(command=f"{TELL}; exec sleep 1000"))
    async with agent_of(world):
        found = await world.until(running("app"))
        container = found["app"]
        assert (container.pod_uid, container.namespace, container.pod, container.cgroup) == (
            UID,
            "default",
            "p",
            world.cgroup("app"),
        )
        await world.until_seen(lambda: bool(world.log("app")))
        assert world.log("app") == f"Cpus_allowed_list:\t{LAST}\n"
        await world.until_seen(
            lambda: world.cgroups.pids(world.cgroup("app")) == [container.pid]
        )  # printed after its `grep` has ended


async def test_container_without_sent_cpus_starts(world: World) -> None:
    """A container for which the agent sends no CPUs starts with the next listing."""
    world.put(app())
    world.sent = None
    async with agent_of(world):
        await _check_runs(world)


async def _check_runs(world: World) -> None:
    found = await world.until(running("app"))
    assert world.cpusets.read(str(found["app"].cgroup)) >= LAST


async def test_running_container_is_moved(world: World) -> None:
    """New CPUs apply to the process and its children at once."""
    world.put(app(command="sleep 1000 & wait"))
    async with agent_of(world):
        container = (await world.until(running("app")))["app"]
        await world.until_seen(lambda: len(world.cgroups.pids(world.cgroup("app"))) == 2)
        await world.runtime.update_cpus(container.id, CPUSet(os.sched_getaffinity(0)))
        assert [os.sched_getaffinity(pid) for pid in world.cgroups.pids(world.cgroup("app"))] == [
            os.sched_getaffinity(0)
        ] * 2
        assert world.tasks.stray_tasks(world.cgroup("app"), LAST).outside or len(os.sched_getaffinity(0)) == 1
        await world.runtime.update_cpus(container.id, LAST)
        assert world.tasks.stray_tasks(world.cgroup("app"), LAST).outside == ()


async def test_memory_is_bound_before_the_start(world: World) -> None:
    """A created container starts with memory of the sent node; with affinity alone memory is unknown."""
    world.sent_mems = CPUSet([0])
    world.put(app())
    async with agent_of(world):
        cgroup = str((await world.until(running("app")))["app"].cgroup)
        assert world.cpusets.mems(cgroup) == (CPUSet([0]) if world.cpusets.version else EMPTY)


async def test_containers_start_in_order_with_real_processes(world: World) -> None:
    """The init container ends before any later container starts."""
    init = [app("i", "sleep 0.05; echo i >> $OUT; exit 0"), app("s", restartPolicy="Always")]
    out = [{"name": "OUT", "value": str(world.folder / "order")}]
    init[0]["env"] = out
    world.put(app(command="echo m >> $OUT; exec sleep 1000", env=out), init=init)
    async with agent_of(world):
        await world.until(running("s", "app"))
        await world.until_seen(lambda: (world.folder / "order").read_text() == "i\nm\n")


async def test_removed_pod_leaves_no_process_or_cgroup(world: World) -> None:
    """All processes of a removed pod end, and its cgroups are deleted."""
    world.put(app(command="sleep 1000 & exec sleep 1000"), app("other"))
    async with agent_of(world):
        found = await world.until(running("app", "other"))
        await world.emptied()
        assert not any(is_alive(container.pid) for container in found.values())
        assert world.cgroups.found() == []
        with pytest.raises(Gone):
            await world.runtime.update_cpus(found["app"].id, LAST)


async def test_process_in_a_child_cgroup_is_killed(world: World) -> None:
    """Processes in child cgroups that the container made are killed, and these cgroups deleted."""
    world.put(app(command="sleep 1000 & exec sleep 1000"))
    async with agent_of(world):
        found = await world.until(running("app"))
        await world.until_seen(lambda: len(world.cgroups.pids(world.cgroup("app"))) == 2)
        pids = world.cgroups.pids(world.cgroup("app"))
        if world.kind == "cgroup":
            move_below(world.cgroup("app"), next(pid for pid in pids if pid != found["app"].pid))
        assert world.cgroups.pids(world.cgroup("app")) == pids
        await world.emptied()
        assert not any(is_alive(pid) for pid in pids)
        assert world.cgroups.found() == []


def move_below(cgroup: str, pid: int) -> None:
    """Move a process into a new child of its cgroup."""
    above = find_hierarchy(DEFAULT_ROOT).folder(cgroup)
    below = above / "inner"
    below.mkdir()
    for file in ("cpuset.cpus", "cpuset.mems"):
        if (below / file).exists():
            (below / file).write_text((above / file).read_text())
    (below / "cgroup.procs").write_text(str(pid))


def put_endless_exec(world: World) -> None:
    """Write a pod whose process calls execve(2) in a loop."""
    script = world.folder / "again.sh"
    script.write_text('#!/bin/sh\nexec "$0"\n')
    script.chmod(0o755)
    world.put({"name": "app", "command": [str(script)]})


async def test_process_is_found_during_execve(world: World) -> None:
    """During execve(2) a process has no environment for a moment, and is still found."""
    put_endless_exec(world)
    async with agent_of(world):
        found = await world.until(running("app"))
        pids = [found["app"].pid]
        assert {tuple(world.cgroups.pids(world.cgroup("app"))) for _ in range(LOOKS)} == {tuple(pids)}


async def test_process_that_ignores_sigterm_is_killed(world: World) -> None:
    """SIGTERM is followed by SIGKILL after the grace period."""
    world.put(
        app(command="trap 'echo asked' TERM; echo ready; while :; do sleep 0.01; done"),
        terminationGracePeriodSeconds=GRACE_SECONDS,
    )
    async with agent_of(world):
        await world.until(running("app"))
        # From now on the process ignores SIGTERM.
        await world.until_seen(lambda: world.log("app") == "ready\n")
        await world.emptied()
        assert world.log("app") == "ready\nasked\n"


async def test_finished_pod_has_the_phase_succeeded(world: World) -> None:
    """A pod that never restarts gets its phase, its sidecar is ended, and its cgroups are deleted."""
    world.put(app(command="exit 0"), init=[app("s", restartPolicy="Always")], restartPolicy="Never")
    async with agent_of(world):
        await world.until(lambda _: world.source.pods().get(UID, {}).get("status") == {"phase": "Succeeded"})
        found = await world.until(lambda found: running()(found) and not world.cgroups.found())
        assert {container.state for container in found.values()} == {State.EXITED}


async def test_renamed_container_is_started(world: World) -> None:
    """A renamed container in an edited manifest is started while the old one runs."""
    async with agent_of(world):
        world.put(app("old"))
        await world.until(running("old"))
        world.put(app("new"))
        await world.until(lambda found: "new" in found and found["new"].state is State.RUNNING)


async def test_ended_container_is_restarted(world: World) -> None:
    """The restarted container has a new id and the same cgroup."""
    world.put(app())
    async with agent_of(world):
        first = (await world.until(running("app")))["app"]
        os.kill(first.pid, signal.SIGKILL)
        second = (await world.until(lambda found: running("app")(found) and found["app"].id != first.id))[
            "app"
        ]
        assert second.cgroup == first.cgroup
        assert not is_alive(first.pid)


async def test_restarted_agent_takes_over_containers(world: World) -> None:
    """The next agent finds the same process and id, and does not rerun init containers."""
    world.put(app(), init=[app("i", "echo once; exit 0")])
    async with agent_of(world):
        first = (await world.until(running("app")))["app"]
        await world.stop()
        world.start()
        second = (await world.until(running("app")))["app"]
        assert (second.id, second.pid, second.cgroup) == (first.id, first.pid, first.cgroup)
        assert world.log("i") == "once\n"
        assert world.cpusets.read(str(second.cgroup)) == LAST
        await world.emptied()
        reap()
        assert not is_alive(first.pid)


async def test_restarted_agent_finds_a_process_during_execve(world: World) -> None:
    """An agent that starts during an execve(2) finds the container by its earlier id."""
    put_endless_exec(world)
    async with agent_of(world):
        first = (await world.until(running("app")))["app"]
        for _ in range(100):
            await world.stop()
            world.start()
            second = (await world.until(running("app")))["app"]
            assert (second.id, second.pid) == (first.id, first.pid)


@pytest.mark.parametrize(
    ("told", "is_believed"),
    [
        pytest.param("u/app/0123456789abcdef", True, id="own"),
        pytest.param("u/other/0123456789abcdef", False, id="other container"),
        pytest.param("v/app/0123456789abcdef", False, id="other pod"),
        pytest.param("u/app/0123456789abcde\n", False, id="no id"),
        pytest.param("", False, id="nothing"),
    ],
)
def test_forged_container_id_is_not_used(told: str, is_believed: bool) -> None:
    """A process can write any id into its environment, so one of another container is ignored."""
    container = LocalContainer.new("u", "app", "/u")
    assert (container.known_by(told) == told) is is_believed
    assert container.known_by(told).startswith("u/app/")


async def test_finished_pod_is_not_run_again_after_a_restart(world: World) -> None:
    """A finished pod stays finished over a restart, until its manifest is removed and written again."""
    world.put(app(command="echo ran; exit 3"), restartPolicy="Never")

    def phase() -> object:
        return (world.source.pods().get(UID) or {}).get("status")

    async with agent_of(world):
        await world.until(lambda _: phase() == {"phase": "Failed"})
        await world.stop()
        world.start()
        assert await world.until(lambda _: world.source.complete) == {}
        assert (phase(), world.log("app")) == ({"phase": "Failed"}, "ran\n")
        world.remove()
        await world.until(lambda _: not world.source.pods())
        world.put(app(command="echo ran again; exec sleep 1000"), restartPolicy="Never")
        await world.until(running("app"))


async def test_processes_of_a_finished_pod_are_killed_after_a_restart(world: World) -> None:
    """If an agent dies before it killed a finished pod's last process, the next agent kills it."""
    world.put(app())
    async with agent_of(world):
        container = (await world.until(running("app")))["app"]
        await world.stop()
        write_finished(world.folder / "finished.json", {UID: "Succeeded"})
        world.start()
        await world.until(lambda found: not found and world.source.complete)
        reap()
        assert not is_alive(container.pid)


async def test_recreated_pod_waits_for_its_old_processes(world: World) -> None:
    """A manifest that is removed and written again starts a process after the old one has ended."""
    world.put(app())
    async with agent_of(world):
        first = (await world.until(running("app")))["app"]
        world.remove()
        await world.until(lambda _: not world.source.pods())
        world.put(app())
        found = await world.until(lambda found: running("app")(found) and found["app"].pid != first.pid)
        assert not is_alive(first.pid)
        assert world.cgroups.pids(world.cgroup("app")) == [found["app"].pid]


@pytest.mark.parametrize("command", ["no-such-program", "/"])
async def test_command_that_cannot_run_fails_the_pod(world: World, command: str) -> None:
    """The pod fails with the reason in its log, and the agent continues."""
    world.put({"name": "app", "command": [command]}, restartPolicy="Never")
    async with agent_of(world):
        await world.until(lambda _: world.source.pods().get(UID, {}).get("status") == {"phase": "Failed"})
        assert "exec" in world.log("app") or command in world.log("app")


async def test_pod_of_kata_is_a_sandbox(world: World) -> None:
    """Containers in a VM have no cgroup for the agent, and the sandbox has the pod's cgroup."""
    world.put(app(), runtimeClassName="kata-qemu")
    async with agent_of(world):
        container = (await world.until(running("app")))["app"]
        (sandbox,) = world.runtime.sandboxes()
        assert (container.in_vm, container.sandbox, container.cgroup) == (True, sandbox.id, None)
        assert (sandbox.pod_uid, sandbox.handler, sandbox.cgroup) == (UID, "kata-qemu", f"{world.root}/{UID}")
        assert world.cpusets.read(world.cgroup("app")) == LAST
        await world.emptied()
        assert world.runtime.sandboxes() == ()


@pytest.mark.parametrize(
    ("resources", "has_quota"),
    [({"limits": {"cpu": "1"}}, True), ({"limits": {"memory": "1Gi"}}, False), ({}, False)],
)
async def test_sandbox_has_a_quota_if_a_container_has_a_cpu_limit(
    world: World, resources: dict[str, Any], has_quota: bool
) -> None:
    """`has_quota` follows the CPU limits, because Kata derives vCPUs from cpusets without one."""
    world.put(app(resources=resources), app("beside"), runtimeClassName="kata-qemu")
    async with agent_of(world):
        await world.until(running("app", "beside"))
        (sandbox,) = world.runtime.sandboxes()
        assert sandbox.has_quota is has_quota
        await world.emptied()


def test_two_agents_have_different_cgroup_roots(tmp_path: Path) -> None:
    """The root depends on the state folder, so that no agent kills another one's processes."""
    roots = []
    for name in ("a", "b", "a"):
        runtime, cgroups = open_local(PodsDir(tmp_path), tmp_path / "no-cgroups", tmp_path / name)
        assert isinstance(cgroups.cpusets, AffinityCgroups)
        assert "affinity only" in runtime.name
        roots.append(runtime._root)

    assert roots[0] == roots[2] != roots[1]


def test_affinity_has_no_empty_set_and_no_unknown_cgroup() -> None:
    """An empty set and an unknown cgroup raise the same errors as with cgroups."""
    affinity = AffinityCgroups("/corepin-test")

    assert affinity.read("/") == CPUSet(os.sched_getaffinity(0))
    with pytest.raises(Gone):
        affinity.read("/corepin-test/a/b")
    with pytest.raises(ValueError, match="empty set"):
        affinity.write("/corepin-test/a/b", CPUSet())


CGROUP = f"/corepin-test-affinity-{os.getpid()}/p/app"
ALL = CPUSet(os.sched_getaffinity(0))


class Outrunning(AffinityCgroups):
    """A cgroup in which each listing starts another process."""

    def __init__(self, stack: ExitStack) -> None:
        super().__init__(CGROUP.rpartition("/p/")[0])
        self._stack = stack
        self.starts = True

    def tasks(self, cgroup: str) -> list[int]:
        """Start another process and return all tasks."""
        if self.starts:
            started = subprocess.Popen(["sleep", "1000"], env={**os.environ, MARK: CGROUP})
            self._stack.callback(started.wait)
            self._stack.callback(started.kill)
        return super().tasks(cgroup)


@pytest.fixture
def outrunning() -> Iterator[Outrunning]:
    """Return such a cgroup; its processes are killed afterwards."""
    with ExitStack() as stack:
        made = Outrunning(stack)
        made.make(CGROUP)
        yield made
        made.starts = False


@pytest.mark.skipif(len(ALL) == 1, reason="one CPU is all there is")
def test_incomplete_move_of_a_cgroup_raises(outrunning: Outrunning) -> None:
    """The old CPUs are still reported, so that others wait, until a retry moves all processes."""
    with pytest.raises(Unsettled, match="start threads faster than these are moved"):
        outrunning.write(CGROUP, LAST)
    assert outrunning.read(CGROUP) == ALL

    outrunning.starts = False
    outrunning.write(CGROUP, LAST)
    assert outrunning.read(CGROUP) == LAST
    assert {tuple(os.sched_getaffinity(pid)) for pid in outrunning.pids(CGROUP)} == {tuple(LAST)}
