"""Virtual machines are found, read and pinned: by /proc, KVM's debugfs and cgroups in folders, with masks in memory."""

from __future__ import annotations

import socket
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from agent.kernel.affinity import Affinities
from agent.vm.machines import MISSING_SECONDS, MOST_PUT, NODE_SECONDS, ROUNDS, KernelVirtualMachines
from agent.vm.process import MOST_THREADS
from pinning.guests.masks import sandbox_masks
from pinning.guests.threads import Role
from pinning.machine.cpuset import EMPTY, CPUSet
from tests.agent.vm.fake_host import FakeHost, stat
from tests.agent.vm.launched import (
    ALL,
    COMPUTE,
    KATA,
    LAUNCHER,
    LIBVIRT,
    SANDBOX,
    THREADS,
    Masks,
    pin,
    start,
)

if TYPE_CHECKING:
    from pathlib import Path

    from agent.vm_interfaces import VMPlace


def test_nothing_is_there_before_it_starts(host: FakeHost, machines: KernelVirtualMachines) -> None:
    """A launcher without a machine yet is no error."""
    host.cgroup(COMPUTE)

    assert machines.read(LAUNCHER) is None
    assert (machines.count(LAUNCHER), machines.kind(LAUNCHER), machines.tasks(LAUNCHER)) == (
        0,
        "",
        frozenset(),
    )


@pytest.mark.parametrize("place", [LAUNCHER, SANDBOX])
def test_machine_is_read(
    host: FakeHost, machines: KernelVirtualMachines, masks: Masks, place: VMPlace
) -> None:
    """Its vCPUs in their order, its first thread, its iothreads; no vCPU can be added where the maximum is there."""
    start(host, place)
    masks.of = {302: CPUSet([2]), 303: CPUSet([3]), 301: CPUSet([4])}
    seen = machines.read(place)

    assert seen
    assert list(map(str, seen.vcpus)) == ["2", "3"]
    assert (seen.main, seen.allowed, str(seen.iothreads[0].cpus)) == (ALL, ALL, "4")
    assert seen.is_fixed is place.is_sandbox
    assert not seen.has_run
    assert machines.kind(place) == "qemu"
    assert machines.tasks(place) == {300, *THREADS}


def test_sandbox_whose_machine_is_not_found_is_looked_for_now_and_then(
    host: FakeHost, machines: KernelVirtualMachines, now: list[float]
) -> None:
    """It means to look at every process of the node; where it was looked for in vain again, that comes less often."""
    assert machines.read(SANDBOX) is None
    now[0] += MISSING_SECONDS
    assert machines.read(SANDBOX) is None
    start(host, SANDBOX)
    now[0] += MISSING_SECONDS
    assert machines.read(SANDBOX) is None

    now[0] += MISSING_SECONDS + NODE_SECONDS
    assert machines.read(SANDBOX)


def test_machine_without_a_cgroup_that_is_known(host: FakeHost, machines: KernelVirtualMachines) -> None:
    """A launcher is not looked for on the whole node."""
    start(host)

    assert machines.read(LAUNCHER._replace(cgroup=None)) is None


def test_threads_are_put_where_they_are_to_run(
    host: FakeHost, machines: KernelVirtualMachines, masks: Masks
) -> None:
    """Each vCPU by its rank, everything else where its role says; what is right already is not set again."""
    start(host, SANDBOX)
    pin(machines, SANDBOX, "6-7")
    assert {task: str(cpus) for task, cpus in masks.of.items()} == {
        300: "6-7",
        301: "6-7",
        302: "6",
        303: "7",
        304: "6-7",
    }

    before = masks.sets
    pin(machines, SANDBOX, "6-7")
    assert masks.sets == before


def test_threads_that_come_meanwhile_are_put_too(
    host: FakeHost, machines: KernelVirtualMachines, masks: Masks
) -> None:
    """The threads are listed again until there is no new one."""
    start(host, SANDBOX)
    host_set = masks.set

    def set_and_grow(task: int, cpus: CPUSet) -> CPUSet:
        if task == 304 and 305 not in masks.of:
            masks.of[305] = ALL
            host.thread(300, 305, "worker")
        return host_set(task, cpus)

    masks.set = set_and_grow  # type: ignore[method-assign]
    growing = KernelVirtualMachines(host.roots, Affinities(masks.read, set_and_grow, masks.is_movable))
    pin(growing, SANDBOX, "6-7")

    assert str(masks.of[305]) == "6-7"


@pytest.mark.parametrize(("threads", "rounds"), [(5, ROUNDS), (2_000, MOST_PUT // 2_000 + 1)])
def test_machine_that_makes_threads_all_the_time_is_left_to_the_next_look(
    host: FakeHost, masks: Masks, threads: int, rounds: int
) -> None:
    """A look has so many rounds, and fewer at thousands of threads, though a new thread comes with each."""
    start(host, SANDBOX)
    for tid in range(1_000, 1_000 + threads):
        host.thread(300, tid, "worker")
    made: list[int] = []

    def set_and_grow(task: int, cpus: CPUSet) -> CPUSet:
        if task in {304, *made}:
            made.append(host.thread(300, 10_000 + len(made), "worker"))
        return masks.set(task, cpus)

    growing = KernelVirtualMachines(
        host.roots, Affinities(masks.read, set_and_grow, masks.is_movable), cpu_seconds=lambda: 0.0
    )
    pin(growing, SANDBOX, "6-7")
    assert len(made) == rounds


def test_what_is_refused_is_told_by_role(
    host: FakeHost, machines: KernelVirtualMachines, masks: Masks
) -> None:
    """A thread that nobody can move runs where it runs, and counts for nobody; one in a narrower cgroup counts."""
    start(host)
    masks.bound, masks.cut = {304}, {303: CPUSet([0])}
    seen = machines.read(LAUNCHER)
    assert seen
    held = CPUSet.parse("6-7")
    pinned = machines.pin(LAUNCHER, sandbox_masks(seen, held, held))

    assert pinned
    assert pinned.refused == {Role.WORKER, Role.VCPU}
    assert pinned.seen.allowed == ALL  # the vCPU's; the worker's is left out
    masks.of[303] = CPUSet([7])
    assert str(machines.read(LAUNCHER).allowed) == "6-7"  # type: ignore[union-attr]


def test_other_vcpus_than_the_masks_are_for_are_not_touched(
    host: FakeHost, machines: KernelVirtualMachines, masks: Masks
) -> None:
    """One that was added meanwhile changes the ranks of the others: whoever asked has to ask anew."""
    start(host)
    seen = machines.read(LAUNCHER)
    assert seen
    asked = sandbox_masks(seen, CPUSet.parse("6-7"), CPUSet.parse("6-7"))
    host.thread(300, 299, "CPU 7/KVM")
    machines.read(LAUNCHER)
    pinned = machines.pin(LAUNCHER, asked)

    assert pinned
    assert len(pinned.seen.vcpus) == 3
    assert masks.of.keys() == {300, 301, 304}


@pytest.mark.parametrize(("place", "command"), [(LAUNCHER, LIBVIRT), (SANDBOX, KATA)])
def test_monitor_is_never_opened(
    host: FakeHost, machines: KernelVirtualMachines, place: VMPlace, command: list[str]
) -> None:
    """It is named on the command line, which is read; nobody comes when the machine is found, pinned and looked at again."""
    with TemporaryDirectory(prefix="vm-") as folder, socket.socket(socket.AF_UNIX) as monitor:
        monitor.bind(f"{folder}/monitor.sock")
        monitor.listen()
        chardev = f"socket,id=charmonitor,path={folder}/monitor.sock,server=on,wait=off"
        words = [*command, "-chardev", chardev, "-qmp", f"unix:path={folder}/monitor.sock,server=on,wait=off"]
        host.process(300, words, threads=THREADS)
        host.cgroup(place.cgroup or "", [300], [300, *THREADS])
        pin(machines, place, "6-7")
        host.thread(300, 305, "CPU 2/KVM")
        assert (machines.count(place), machines.has_strayed(place)) == (6, True)
        seen = machines.read(place, fully=True)
        assert seen
        assert len(seen.vcpus) == 3
        monitor.settimeout(0)
        with pytest.raises(BlockingIOError):
            monitor.accept()


def test_housekeeping_is_read(host: FakeHost, machines: KernelVirtualMachines) -> None:
    """KubeVirt's cgroup for the emulator: its CPUs, and the iothreads that were moved there."""
    start(host)
    host.cgroup(f"{COMPUTE}/housekeeping", tasks=[300, 301, 304], cpus="5")
    seen = machines.read(LAUNCHER)

    assert seen
    assert (str(seen.housekeeping), seen.iothreads[0].is_housed) == ("5", True)


def test_vhost_threads_outside_that_come_later_are_counted_and_read(
    host: FakeHost, machines: KernelVirtualMachines, now: list[float]
) -> None:
    """A network card that is plugged has kernel threads, which the process does not count (Linux before 6.4)."""
    start(host)
    host.kernel_thread(39, "kworker/0:1")
    seen = machines.read(LAUNCHER)
    assert seen
    assert (seen.vhost, machines.count(LAUNCHER)) == (EMPTY, 5)
    machines.read(LAUNCHER)

    now[0] += NODE_SECONDS
    host.kernel_thread(40, "vhost-300")
    host.kernel_thread(41, "vhost-999")
    assert machines.count(LAUNCHER) == 6
    seen = machines.read(LAUNCHER)
    assert seen
    assert (seen.vhost, machines.tasks(LAUNCHER)) == (ALL, frozenset({300, *THREADS, 40}))


def test_machine_that_was_listed_the_same_twice_is_listed_when_its_count_changes(
    host: FakeHost, machines: KernelVirtualMachines
) -> None:
    """A name may come a moment after its thread, so one listing is not enough; then the count tells of new threads."""
    host.process(300, LIBVIRT, threads=THREADS | {305: "qemu-system-x86"})
    host.cgroup(COMPUTE, [300])

    def iothreads_when(called: str) -> int:
        (host.roots.proc / "300/task/305/comm").write_text(f"{called}\n")
        seen = machines.read(LAUNCHER)
        assert seen
        return len(seen.iothreads)

    machines.read(LAUNCHER)
    assert iothreads_when("call_rcu") == 1
    assert iothreads_when("call_rcu") == 1
    assert iothreads_when("IO iothread2") == 1
    host.thread(300, 306, "worker")
    assert iothreads_when("IO iothread2") == 2


def test_kernel_threads_of_nobody_are_asked_again_with_a_whole_look_alone(
    host: FakeHost, machines: KernelVirtualMachines, now: list[float]
) -> None:
    """A kernel has hundreds of them; only the number of one that ended may be that of another since."""
    start(host)
    host.kernel_thread(40, "kworker/0:1")
    machines.read(LAUNCHER)
    host.end(40)
    host.process(40, name="vhost-300", started=501, parent=2)
    now[0] += NODE_SECONDS
    assert machines.count(LAUNCHER) == 5

    now[0] += NODE_SECONDS
    machines.read(LAUNCHER, fully=True)
    assert machines.count(LAUNCHER) == 6


def test_guest_that_used_the_cpu_has_run(
    host: FakeHost, machines: KernelVirtualMachines, tmp_path: Path
) -> None:
    """A vCPU of a paused machine has used next to none."""
    start(host)
    text = stat(302, "CPU 0/KVM").split(" ")
    text[14] = "5"  # utime, "CPU 0/KVM" being two words
    (host.roots.proc / "302").mkdir()
    (host.roots.proc / "302" / "stat").write_text(" ".join(text))
    seen = machines.read(LAUNCHER)

    assert seen
    assert seen.has_run


def test_machine_that_ended_is_gone(host: FakeHost, machines: KernelVirtualMachines, masks: Masks) -> None:
    """Whoever got its number is not taken for it."""
    start(host)
    asked = pin(machines, LAUNCHER, "6-7")
    host.end(300)
    assert (machines.count(LAUNCHER), machines.pin(LAUNCHER, asked), machines.read(LAUNCHER)) == (
        0,
        None,
        None,
    )

    host.process(300, ["/bin/sleep"], name="sleep", started=900)
    assert machines.read(LAUNCHER) is None


def test_machine_that_cannot_be_listed_is_not_moved(
    host: FakeHost, machines: KernelVirtualMachines, masks: Masks
) -> None:
    """It runs on, and its known ids may be those of other processes: none is set, and no move of it is settled."""
    start(host, SANDBOX)
    pin(machines, SANDBOX, "6-7")
    folder = host.roots.proc / "300"
    folder.rename(host.roots.proc / "aside")
    folder.symlink_to(folder)
    seen, elsewhere = machines.read(SANDBOX), CPUSet.parse("4-5")
    assert seen
    pinned = machines.pin(SANDBOX, sandbox_masks(seen, elsewhere, elsewhere))
    seen = machines.read(SANDBOX)

    assert pinned
    assert not pinned.is_settled
    assert seen
    assert (str(seen.allowed), *map(str, seen.vcpus)) == ("6-7", "6", "7")
    assert seen.notes == ("process 300 cannot be read: Too many levels of symbolic links",)

    folder.unlink()
    (host.roots.proc / "aside").rename(folder)
    host.thread(300, 305, "worker")
    assert (machines.read(SANDBOX).notes, 305 in machines.tasks(SANDBOX)) == ((), True)  # type: ignore[union-attr]


def test_machine_that_makes_threads_without_end_keeps_its_pins(
    host: FakeHost, machines: KernelVirtualMachines
) -> None:
    """It is not taken for one that ended: its known threads stay where they are to run, and it is told why no others."""
    start(host, SANDBOX)
    pin(machines, SANDBOX, "6-7")
    for number in range(MOST_THREADS):
        (host.roots.proc / f"300/task/{2000 + number}").mkdir()
    seen = machines.read(SANDBOX)

    assert seen
    assert (str(seen.allowed), *map(str, seen.vcpus)) == ("6-7", "6", "7")
    assert seen.notes[0].endswith("threads are too many to look at")


def test_machine_that_never_could_be_listed_is_none(host: FakeHost, machines: KernelVirtualMachines) -> None:
    """Nothing is known of it."""
    host.cgroup(COMPUTE, [300])
    (host.roots.proc / "300").symlink_to(host.roots.proc / "300")

    assert machines.read(LAUNCHER) is None


def test_first_thread_that_ended_ends_the_machine(
    host: FakeHost, machines: KernelVirtualMachines, masks: Masks
) -> None:
    """Between two calls anything may end."""
    start(host)
    masks.ended = {303, 304}
    seen = machines.read(LAUNCHER)
    assert seen
    assert (seen.vcpus, seen.reason) == (
        (),
        "1 of its 2 vCPUs are found: the others start or end just now",
    )

    masks.ended = {300}
    assert machines.read(LAUNCHER) is None


def test_thread_that_somebody_moved_has_strayed(
    host: FakeHost, machines: KernelVirtualMachines, masks: Masks
) -> None:
    """A vCPU or the first thread, until it is looked at; one that ended is not asked about again and again."""
    start(host)
    assert not machines.has_strayed(LAUNCHER)
    machines.read(LAUNCHER)
    assert not machines.has_strayed(LAUNCHER)
    for tid in (300, 303):
        masks.of[tid] = CPUSet.parse("3")
        assert machines.has_strayed(LAUNCHER)
        machines.read(LAUNCHER)
        assert not machines.has_strayed(LAUNCHER)
    masks.ended.add(303)
    assert machines.has_strayed(LAUNCHER)
    machines.read(LAUNCHER)
    assert not machines.has_strayed(LAUNCHER)


def test_forgotten_machines_are_looked_for_anew(host: FakeHost, machines: KernelVirtualMachines) -> None:
    """Whoever is not kept is forgotten."""
    start(host)
    machines.read(LAUNCHER)
    machines.keep([LAUNCHER])
    assert machines.kind(LAUNCHER) == "qemu"
    machines.keep([])
    assert machines.kind(LAUNCHER) == ""
