"""Booting machines are found by the pod's cgroup, and their threads confined."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.kernel.affinity import Affinities
from agent.vm.boot import KernelBootingMachines
from agent.vm_interfaces import BootScope, ConfinedBoot
from pinning.machine.cpuset import CPUSet
from tests.agent.vm.fake_host import FakeHost
from tests.agent.vm.launched import ALL, KATA, SANDBOX_ID, THREADS, Masks

SHARED = CPUSet.parse("0-3")
UID = "8b2e3a4c-0d1f-4f6a-9c58-000000000001"
SLICE = UID.replace("-", "_")
SHIM = ["/opt/kata/bin/containerd-shim-kata-v2", "-namespace", "k8s.io", "-id", SANDBOX_ID, "start"]
PLACES = [
    f"/kubepods/pod{UID}/kata_{SANDBOX_ID}",
    f"/kubepods/burstable/pod{UID}/{SANDBOX_ID}",
    f"/kubepods.slice/kubepods-pod{SLICE}.slice/cri-containerd-{SANDBOX_ID}.scope",
    f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SLICE}.slice/crio-{SANDBOX_ID}.scope",
    f"/kata_overhead/{SANDBOX_ID}",
    f"/kata.slice/kata-overhead.slice/runtime-rs-{SANDBOX_ID}.scope",
]


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    """Return a host without processes."""
    return FakeHost(tmp_path)


@pytest.fixture
def masks() -> Masks:
    """Return affinities of threads that may run on every CPU."""
    return Masks()


def confine(host: FakeHost, masks: Masks, scope: BootScope | None = None) -> tuple[ConfinedBoot, ...]:
    """Confine once, 5 s after the processes started."""
    boots = KernelBootingMachines(
        host.roots,
        ("/kubepods", "/kubepods.slice"),
        Affinities(masks.read, masks.set, masks.is_movable),
        lambda: 10.0,
    )
    return boots.confine(scope or BootScope(frozenset({UID})), SHARED)


@pytest.mark.parametrize("cgroup", PLACES)
def test_machine_is_confined_in_every_cgroup_that_kata_uses(
    host: FakeHost, masks: Masks, cgroup: str
) -> None:
    """Every thread of VMM and shim gets the shared CPUs, in pod and overhead cgroups of both drivers."""
    host.process(300, KATA, threads=THREADS)
    host.process(400, SHIM, name="containerd-shim", threads={401: "containerd-shim"})
    host.cgroup(cgroup, [300, 400])
    found = confine(host, masks)
    assert masks.of == dict.fromkeys((300, *THREADS, 400, 401), SHARED)
    assert found == (ConfinedBoot(300, ALL, 5.0),)


def test_second_look_confines_only_new_threads(host: FakeHost, masks: Masks) -> None:
    """A confined thread is not set again, and its machine is reported once."""
    host.process(300, KATA, threads=THREADS)
    host.cgroup(PLACES[0], [300])
    confine(host, masks)
    masks.sets = 0
    assert confine(host, masks) == ()
    host.thread(300, 309, "worker")
    confine(host, masks)
    assert (masks.sets, masks.of[309]) == (1, SHARED)


@pytest.mark.parametrize(
    ("command", "ids"),
    [(["/usr/bin/stress"], ()), (KATA, (300, 7)), ((), ())],
    ids=["another program", "in a pid namespace", "a kernel thread"],
)
def test_processes_of_containers_are_left_alone(
    host: FakeHost, masks: Masks, command: list[str], ids: tuple[int, ...]
) -> None:
    """A container's process named like a VMM is not moved, because it is in a pid namespace."""
    host.process(300, command, ids=ids, threads=THREADS)
    host.cgroup(PLACES[0], [300])
    assert confine(host, masks) == ()
    assert masks.of == {}


def test_other_pods_and_listed_sandboxes_are_left_alone(host: FakeHost, masks: Masks) -> None:
    """Other pods and the overhead of a listed sandbox are not confined."""
    host.process(300, KATA, threads=THREADS)
    host.cgroup(f"/kubepods/podother/{SANDBOX_ID}", [300])
    host.cgroup(f"/kata_overhead/{SANDBOX_ID}", [300])
    confine(host, masks, BootScope(frozenset({UID}), frozenset({SANDBOX_ID})))
    assert masks.of == {}


@pytest.mark.parametrize("uid", ["../other", "/", "", "x/../podother", "a" * 65])
def test_invalid_uid_matches_no_cgroup(host: FakeHost, masks: Masks, uid: str) -> None:
    """An invalid uid, such as a static pod's annotation can have, matches no cgroup."""
    host.process(300, KATA, threads=THREADS)
    host.cgroup(f"/kubepods/podother/{SANDBOX_ID}", [300])
    confine(host, masks, BootScope(frozenset({uid})))
    assert masks.of == {}


def test_machine_outside_the_shared_cpus_is_not_reported_as_confined(host: FakeHost, masks: Masks) -> None:
    """A thread whose cgroup lacks the CPUs cannot be confined, and is tried again at the next look."""
    host.process(300, KATA)
    host.cgroup(PLACES[0], [300])
    masks.cut[300] = CPUSet.parse("6-7")
    masks.of[300] = CPUSet.parse("6-7")
    assert confine(host, masks) == ()
    masks.cut.clear()
    assert confine(host, masks) == (ConfinedBoot(300, CPUSet.parse("6-7"), 5.0),)


def test_confining_lists_threads_a_limited_number_of_times(host: FakeHost, masks: Masks) -> None:
    """A process that keeps starting threads is listed eight times at most in one look."""
    host.process(300, KATA)
    host.cgroup(PLACES[0], [300])
    asked: list[int] = []

    def read(task: int) -> CPUSet:
        if task >= 1000 or not asked:
            host.thread(300, 1000 + len(asked), "worker")
            asked.append(task)
        return masks.read(task)

    boots = KernelBootingMachines(host.roots, ("/kubepods",), Affinities(read, masks.set, masks.is_movable))
    boots.confine(BootScope(frozenset({UID})), SHARED)
    assert len(asked) == 8
