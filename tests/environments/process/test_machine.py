"""The simulated machine behaves as kernel and runtime do, and survives faulty clients."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from agent.errors import Gone, Refused, Unavailable
from agent.kernel.sysfs import read_topology
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.ledger import Ledger
from pinning.planning.node_config import DEFAULT
from pinning.planning.observed import Observed, Owner, SeenContainer, SeenPod, State
from pinning.planning.plan import plan
from tests.environments.process.client import (
    REPOSITORY,
    SimulatedCgroups,
    SimulatedMachine,
    SimulatedRuntime,
    running_machine,
)
from tests.environments.process.tree import regular, write_tree
from tests.pinning.world import Wish, pod_document

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(name="machine", scope="module")
def _machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedMachine]:
    """Return a machine of 16 CPUs."""
    with running_machine(tmp_path_factory.mktemp("m")) as machine:
        yield machine


@pytest.mark.parametrize(("cpus", "threads"), [(16, 2), (64, 1), (256, 2), (512, 4)])
def test_sysfs_shows_the_machine(tmp_path: Path, cpus: int, threads: int) -> None:
    """The agent's reader sees exactly the topology that was written."""
    topology = regular(cpus, threads)
    write_tree(tmp_path, topology)
    assert read_topology(tmp_path) == topology
    assert len(topology.cpus) == cpus
    assert topology.smt == threads


def test_an_offline_cpu_disappears_and_comes_back(machine: SimulatedMachine) -> None:
    """An offline CPU has no topology, and a cpuset without online CPUs gets all online ones until its CPU is back."""
    machine.call("create", id="o1", pod_uid="o", name="c")
    cgroups = SimulatedCgroups(machine)
    cgroups.write("/kubepods/podo/o1", CPUSet([3]))
    whole = read_topology(machine.root)
    machine.call("online", cpus="0-2,4-15")
    now = read_topology(machine.root)
    assert (3 in now.cpus, str(now.siblings(11)), str(now.online)) == (False, "11", "0-2,4-15")
    assert str(cgroups.read("/kubepods/podo/o1")) == "0-2,4-15"
    machine.call("online", cpus="0-15")
    assert read_topology(machine.root) == whole
    assert str(cgroups.read("/kubepods/podo/o1")) == "3"


def test_a_container_lives_and_dies(machine: SimulatedMachine) -> None:
    """A container is created on all CPUs, starts on the updated ones, and loses its cgroup when it stops."""
    runtime, cgroups = SimulatedRuntime(machine), SimulatedCgroups(machine)
    machine.call("create", id="a1", pod_uid="a", name="c")
    asyncio.run(runtime.update_cpus("a1", CPUSet.parse("4-5")))
    assert machine.call("start", id="a1") == "4-5"
    (seen,) = [container for container in asyncio.run(runtime.containers()) if container.id == "a1"]
    assert (seen.pod_uid, seen.name, seen.state, seen.cgroup) == (
        "a",
        "c",
        State.RUNNING,
        "/kubepods/poda/a1",
    )
    machine.call("stop", id="a1")
    with pytest.raises(Gone, match="no cgroup"):
        cgroups.read("/kubepods/poda/a1")
    with pytest.raises(Gone, match="has exited"):
        asyncio.run(runtime.update_cpus("a1", CPUSet([1])))
    machine.call("remove", id="a1")
    assert "a1" not in {container.id for container in asyncio.run(runtime.containers())}


def test_what_it_refuses(machine: SimulatedMachine) -> None:
    """Offline CPUs, empty sets and unknown names raise the errors of the real interfaces."""
    machine.call("create", id="r1", pod_uid="r", name="c")
    for error, op, values in (
        (Refused, "create", {"id": "r1", "pod_uid": "r", "name": "c"}),
        (Refused, "update", {"id": "r1", "cpus": "99"}),
        (Gone, "update", {"id": "nobody", "cpus": "1"}),
        (ValueError, "write", {"cgroup": "/kubepods/podr/r1", "cpus": ""}),
        (ValueError, "write", {"cgroup": "/kubepods/podr/r1", "cpus": "99"}),
        (ValueError, "online", {"cpus": ""}),
        (ValueError, "fault", {"of": "create", "kind": "fail"}),
        (ValueError, "dance", {}),
        (ValueError, "read", {}),
    ):
        with pytest.raises(error):
            machine.call(op, **values)
    machine.call("update", id="r1", cpus="")
    assert SimulatedCgroups(machine).read("/kubepods/podr/r1") == CPUSet(range(16))
    machine.call("start", id="r1")
    with pytest.raises(Refused, match="is running"):
        machine.call("start", id="r1")


def test_faults_fail_or_lose_calls(machine: SimulatedMachine) -> None:
    """A lost update succeeds without effect, a failing call raises; after that calls work again."""
    machine.call("create", id="f1", pod_uid="f", name="c")
    cgroups, runtime = SimulatedCgroups(machine), SimulatedRuntime(machine)
    machine.call("fault", of="update", kind="lose")
    asyncio.run(runtime.update_cpus("f1", CPUSet([1])))
    assert len(cgroups.read("/kubepods/podf/f1")) == 16
    machine.call("fault", of="list", kind="fail", times=2)
    for _ in range(2):
        with pytest.raises(Unavailable, match="list fails"):
            asyncio.run(runtime.containers())
    assert asyncio.run(runtime.containers())


def test_watchers_hear_of_foreign_writes_only(machine: SimulatedMachine) -> None:
    """Watchers report the writes of other clients, not the agent's own."""
    cgroup = "/kubepods/podw/w1"
    machine.call("create", id="w1", pod_uid="w", name="c")

    async def watched() -> tuple[list[str], int]:
        written: list[str] = []
        changes: list[None] = []
        cgroups = SimulatedCgroups(machine)
        cgroups.follow([cgroup])
        tasks = [
            asyncio.create_task(cgroups.watch(written.append)),
            asyncio.create_task(SimulatedRuntime(machine).watch(lambda: changes.append(None))),
        ]
        await asyncio.sleep(0.05)
        cgroups.write(cgroup, CPUSet([2]))
        machine.call("write", cgroup=cgroup, cpus="7")
        async with asyncio.timeout(60):
            while not written or len(changes) < 2:
                await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        return written, len(changes)

    assert asyncio.run(watched()) == ([cgroup], 2)
    cgroups = SimulatedCgroups(machine)
    assert cgroups.stray_tasks(cgroup, CPUSet([2])).outside
    assert not cgroups.stray_tasks(cgroup, CPUSet([7])).outside


def test_it_survives_a_killed_client(machine: SimulatedMachine) -> None:
    """A client that is killed during its work leaves the machine unchanged."""
    code = (
        "import pathlib, sys; from tests.environments.process.client import SimulatedMachine; m = SimulatedMachine(pathlib.Path(sys.argv[1]));"
        "m.call('create', id='k1', pod_uid='k', name='c'); print('made', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(machine.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
    ) as client:
        assert client.stdout
        assert client.stdout.readline() == b"made\n"
        os.kill(client.pid, signal.SIGKILL)
    again = SimulatedMachine(machine.root)
    assert "k1" in {container["id"] for container in again.call("list")}
    assert again.call("events")[-1]["op"] == "create"
    again.close()


def test_a_plan_can_be_carried_out_on_it(machine: SimulatedMachine) -> None:
    """The machine has the planned CPUs after the actions of a plan, and a second plan has no actions."""
    cgroups = SimulatedCgroups(machine)
    pods = tuple(
        SeenPod.of(pod_document(uid, [Wish("2", smt=smt)]))  # type: ignore[arg-type]
        for uid, smt in (("p1", "require"), ("p2", "isolate"), ("p3", None))
    )
    for pod in pods:
        machine.call("create", id=f"x-{pod.uid}", pod_uid=pod.uid, name="c0")
        machine.call("start", id=f"x-{pod.uid}")

    def observe() -> Observed:
        topology = read_topology(machine.root)
        seen = tuple(
            SeenContainer(
                container["id"],
                Owner(container["pod_uid"], container["name"]),
                State(container["state"]),
                cgroups.read(container["cgroup"]),
            )
            for container in machine.call("list")
            if container["state"] != "exited"
        )
        return Observed(topology, topology.online, pods, seen)

    planned = plan(observe(), Ledger(), DEFAULT)
    for action in planned.actions:
        cgroups.write(f"/kubepods/pod{action.owner.pod_uid}/{action.container_id}", action.cpus)
    again = plan(observe(), planned.ledger, DEFAULT)
    assert again.actions == ()
    assert str(cgroups.read("/kubepods/podp1/x-p1")) == "1,9"
    assert str(cgroups.read("/kubepods/podp2/x-p2")) == "2-3"
    assert planned.ledger.exclusive & cgroups.read("/kubepods/podp3/x-p3") == EMPTY


def test_connection_is_closed_when_the_block_fails(tmp_path: Path) -> None:
    """A test that fails leaves neither a socket nor a process behind."""
    with pytest.raises(RuntimeError, match="failed"), running_machine(tmp_path) as machine:
        raise RuntimeError("the test failed")
    with pytest.raises(ValueError, match="closed file"):
        machine.call("list")
