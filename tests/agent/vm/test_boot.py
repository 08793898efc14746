"""Machines that boot: their processes are found by the pod's cgroup, and confined thread by thread."""

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
    """Return an empty node."""
    return FakeHost(tmp_path)


@pytest.fixture
def masks() -> Masks:
    """Return masks of threads that may run everywhere."""
    return Masks()


def confine(host: FakeHost, masks: Masks, scope: BootScope | None = None) -> tuple[ConfinedBoot, ...]:
    """Look once, 5 s after what FakeHost starts."""
    boots = KernelBootingMachines(
        host.roots,
        ("/kubepods", "/kubepods.slice"),
        Affinities(masks.read, masks.set, masks.is_movable),
        lambda: 10.0,
    )
    return boots.confine(scope or BootScope(frozenset({UID})), SHARED)


@pytest.mark.parametrize("cgroup", PLACES)
def test_machine_is_confined_wherever_kata_puts_it(host: FakeHost, masks: Masks, cgroup: str) -> None:
    """Every thread of VMM and shim gets the shared CPUs, by both cgroup drivers, also in a cgroup for overhead."""
    host.process(300, KATA, threads=THREADS)
    host.process(400, SHIM, name="containerd-shim", threads={401: "containerd-shim"})
    host.cgroup(cgroup, [300, 400])
    found = confine(host, masks)
    assert masks.of == dict.fromkeys((300, *THREADS, 400, 401), SHARED)
    assert found == (ConfinedBoot(300, ALL, 5.0),)


def test_second_look_moves_only_what_is_new(host: FakeHost, masks: Masks) -> None:
    """A thread that is confined is not set again, and its machine is reported once."""
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
    """A container's process may call itself a VMM: it is in a pid namespace, as Kata's never are."""
    host.process(300, command, ids=ids, threads=THREADS)
    host.cgroup(PLACES[0], [300])
    assert confine(host, masks) == ()
    assert masks.of == {}


def test_other_pods_and_listed_sandboxes_are_left_alone(host: FakeHost, masks: Masks) -> None:
    """A pod that does not start is not looked at, and neither is the overhead of a listed sandbox."""
    host.process(300, KATA, threads=THREADS)
    host.cgroup(f"/kubepods/podother/{SANDBOX_ID}", [300])
    host.cgroup(f"/kata_overhead/{SANDBOX_ID}", [300])
    confine(host, masks, BootScope(frozenset({UID}), frozenset({SANDBOX_ID})))
    assert masks.of == {}


@pytest.mark.parametrize("uid", ["../other", "/", "", "x/../podother", "a" * 65])
def test_uid_that_a_user_wrote_names_no_path(host: FakeHost, masks: Masks, uid: str) -> None:
    """The uid of a static pod is an annotation: one that is no uid finds no cgroup."""
    host.process(300, KATA, threads=THREADS)
    host.cgroup(f"/kubepods/podother/{SANDBOX_ID}", [300])
    confine(host, masks, BootScope(frozenset({uid})))
    assert masks.of == {}


def test_thread_that_its_cgroup_keeps_elsewhere_is_not_reported(host: FakeHost, masks: Masks) -> None:
    """The kernel refuses CPUs outside of the cgroup: the machine is exposed for longer, and looked at again."""
    host.process(300, KATA)
    host.cgroup(PLACES[0], [300])
    masks.cut[300] = CPUSet.parse("6-7")
    masks.of[300] = CPUSet.parse("6-7")
    assert confine(host, masks) == ()
    masks.cut.clear()
    assert confine(host, masks) == (ConfinedBoot(300, CPUSet.parse("6-7"), 5.0),)


def test_threads_that_never_end_coming_do_not_hold_a_look_up(host: FakeHost, masks: Masks) -> None:
    """A look lists a process at most eight times, however fast it makes threads."""
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
