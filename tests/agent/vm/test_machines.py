"""Virtual machines are found, read and pinned, on a fake host, and the cost of it in function calls."""

from __future__ import annotations

import os
import socket
import sys
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from agent.kernel.affinity import Affinities
from agent.vm import process
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
    read,
    start,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType

    from agent.vm_interfaces import VMPlace


def test_launcher_without_a_machine_is_read_as_none(host: FakeHost, machines: KernelVirtualMachines) -> None:
    """A launcher without a machine is no error."""
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
    """The vCPUs in order, first thread and iothreads are read; a machine at its maximum is fixed."""
    start(host, place)
    masks.of = {302: CPUSet([2]), 303: CPUSet([3]), 301: CPUSet([4])}
    seen = read(machines, place)
    assert list(map(str, seen.vcpus)) == ["2", "3"]
    assert (seen.main, seen.allowed, str(seen.iothreads[0].cpus)) == (ALL, ALL, "4")
    assert seen.is_fixed is place.is_sandbox
    assert not seen.has_run
    assert machines.kind(place) == "qemu"
    assert machines.tasks(place) == {300, *THREADS}


def test_search_for_a_missing_machine_is_rate_limited(
    host: FakeHost, machines: KernelVirtualMachines, now: list[float]
) -> None:
    """Searching all processes of the node is rate limited, and less frequent after each failure."""
    assert machines.read(SANDBOX) is None
    now[0] += MISSING_SECONDS
    assert machines.read(SANDBOX) is None
    start(host, SANDBOX)
    now[0] += MISSING_SECONDS
    assert machines.read(SANDBOX) is None

    now[0] += MISSING_SECONDS + NODE_SECONDS
    assert machines.read(SANDBOX)


def test_launcher_without_a_cgroup_is_not_searched(host: FakeHost, machines: KernelVirtualMachines) -> None:
    """For a launcher the node's processes are not searched."""
    start(host)

    assert machines.read(LAUNCHER._replace(cgroup=None)) is None


def test_threads_are_pinned_by_role_and_rank(
    host: FakeHost, machines: KernelVirtualMachines, masks: Masks
) -> None:
    """Each vCPU is pinned by rank, other threads by role; correct affinities are not set again."""
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


def test_threads_that_start_during_a_pin_are_pinned(
    host: FakeHost, machines: KernelVirtualMachines, masks: Masks
) -> None:
    """Threads are listed again until there is no new one."""
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
def test_rounds_of_a_pin_are_limited(host: FakeHost, masks: Masks, threads: int, rounds: int) -> None:
    """If a thread starts in each round, the pin ends after a limited number of rounds and ids."""
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


def test_refused_affinities_are_reported_by_role(
    host: FakeHost, machines: KernelVirtualMachines, masks: Masks
) -> None:
    """Threads that cannot be moved and threads in a narrower cgroup are reported by role."""
    start(host)
    masks.bound, masks.cut = {304}, {303: CPUSet([0])}
    seen = read(machines, LAUNCHER)
    held = CPUSet.parse("6-7")
    pinned = machines.pin(LAUNCHER, sandbox_masks(seen, held, held))

    assert pinned
    assert pinned.refused == {Role.WORKER, Role.VCPU}
    assert pinned.seen.allowed == ALL  # the vCPU's affinity; the worker's is excluded
    masks.of[303] = CPUSet([7])
    assert str(machines.read(LAUNCHER).allowed) == "6-7"  # type: ignore[union-attr]


def test_changed_vcpus_are_not_pinned_with_stale_masks(
    host: FakeHost, machines: KernelVirtualMachines, masks: Masks
) -> None:
    """If a vCPU was added since, ranks have changed, and no vCPU is pinned."""
    start(host)
    seen = read(machines, LAUNCHER)
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
    """Finding, reading and pinning never connect to the monitor socket of the command line."""
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
        seen = read(machines, place, fully=True)
        assert len(seen.vcpus) == 3
        monitor.settimeout(0)
        with pytest.raises(BlockingIOError):
            monitor.accept()


def test_housekeeping_is_read(host: FakeHost, machines: KernelVirtualMachines) -> None:
    """The emulator's housekeeping CPUs and the iothreads in that cgroup are read."""
    start(host)
    host.cgroup(f"{COMPUTE}/housekeeping", tasks=[300, 301, 304], cpus="5")
    seen = read(machines, LAUNCHER)
    assert (str(seen.housekeeping), seen.iothreads[0].is_housed) == ("5", True)


def test_new_vhost_threads_of_the_kernel_are_counted(
    host: FakeHost, machines: KernelVirtualMachines, now: list[float]
) -> None:
    """Before Linux 6.4 a hot-plugged network card has kernel threads outside the process."""
    start(host)
    host.kernel_thread(39, "kworker/0:1")
    seen = read(machines, LAUNCHER)
    assert (seen.vhost, machines.count(LAUNCHER)) == (EMPTY, 5)
    machines.read(LAUNCHER)

    now[0] += NODE_SECONDS
    host.kernel_thread(40, "vhost-300")
    host.kernel_thread(41, "vhost-999")
    assert machines.count(LAUNCHER) == 6
    seen = read(machines, LAUNCHER)
    assert (seen.vhost, machines.tasks(LAUNCHER)) == (ALL, frozenset({300, *THREADS, 40}))


def test_threads_are_listed_again_when_their_number_changes(
    host: FakeHost, machines: KernelVirtualMachines
) -> None:
    """After two equal listings only a changed thread count causes another, because names may be late."""
    host.process(300, LIBVIRT, threads=THREADS | {305: "qemu-system-x86"})
    host.cgroup(COMPUTE, [300])

    def iothreads_when(called: str) -> int:
        (host.roots.proc / "300/task/305/comm").write_text(f"{called}\n")
        seen = read(machines, LAUNCHER)
        return len(seen.iothreads)

    machines.read(LAUNCHER)
    assert iothreads_when("call_rcu") == 1
    assert iothreads_when("call_rcu") == 1
    assert iothreads_when("IO iothread2") == 1
    host.thread(300, 306, "worker")
    assert iothreads_when("IO iothread2") == 2


def test_unrelated_kernel_threads_are_reread_only_by_a_full_read(
    host: FakeHost, machines: KernelVirtualMachines, now: list[float]
) -> None:
    """A reused id of an unrelated kernel thread is noticed by the next full read."""
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


def test_guest_with_cpu_time_has_run(host: FakeHost, machines: KernelVirtualMachines, tmp_path: Path) -> None:
    """A vCPU of a paused machine has used almost no CPU time."""
    start(host)
    text = stat(302, "CPU 0/KVM").split(" ")
    text[14] = "5"  # utime, "CPU 0/KVM" being two words
    (host.roots.proc / "302").mkdir()
    (host.roots.proc / "302" / "stat").write_text(" ".join(text))
    seen = read(machines, LAUNCHER)
    assert seen.has_run


def test_exited_machine_is_not_found(host: FakeHost, machines: KernelVirtualMachines, masks: Masks) -> None:
    """Another process with the same pid is not taken for the machine."""
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


def test_unreadable_machine_is_not_pinned(
    host: FakeHost, machines: KernelVirtualMachines, masks: Masks
) -> None:
    """If its threads cannot be listed no affinity is set, because known ids may be reused."""
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


def test_machine_with_too_many_threads_keeps_its_pins(
    host: FakeHost, machines: KernelVirtualMachines
) -> None:
    """Known threads stay pinned, and a note says that the threads are too many to read."""
    start(host, SANDBOX)
    pin(machines, SANDBOX, "6-7")
    for number in range(MOST_THREADS):
        (host.roots.proc / f"300/task/{2000 + number}").mkdir()
    seen = read(machines, SANDBOX)
    assert (str(seen.allowed), *map(str, seen.vcpus)) == ("6-7", "6", "7")
    assert seen.notes[0].endswith("threads are too many to inspect")


def test_machine_without_any_listed_threads_is_none(host: FakeHost, machines: KernelVirtualMachines) -> None:
    """A machine whose threads could never be listed is read as None."""
    host.cgroup(COMPUTE, [300])
    (host.roots.proc / "300").symlink_to(host.roots.proc / "300")

    assert machines.read(LAUNCHER) is None


def test_exit_of_the_first_thread_ends_the_machine(
    host: FakeHost, machines: KernelVirtualMachines, masks: Masks
) -> None:
    """Missing vCPUs are a reason, and without its first thread the machine is None."""
    start(host)
    masks.ended = {303, 304}
    seen = read(machines, LAUNCHER)
    assert (seen.vcpus, seen.reason) == (
        (),
        "1 of its 2 vCPUs are found: the others are starting or ending",
    )

    masks.ended = {300}
    assert machines.read(LAUNCHER) is None


def test_moved_vcpu_or_first_thread_has_strayed(
    host: FakeHost, machines: KernelVirtualMachines, masks: Masks
) -> None:
    """A moved or ended thread has strayed until the next read."""
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


def test_records_of_other_machines_are_dropped(host: FakeHost, machines: KernelVirtualMachines) -> None:
    """`keep` drops the records of other machines."""
    start(host)
    machines.read(LAUNCHER)
    machines.keep([LAUNCHER])
    assert machines.kind(LAUNCHER) == "qemu"
    machines.keep([])
    assert machines.kind(LAUNCHER) == ""


CPUS = CPUSet.parse("6-7")


def calls_of(work: Callable[[], object], is_counted: Callable[[FrameType, object], bool]) -> int:
    """Count the calls of functions and generators that match."""
    count = 0

    def note(frame: FrameType, event: str, function: object) -> None:
        nonlocal count
        count += event in ("call", "c_call") and is_counted(frame, function)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def is_listing(frame: FrameType, function: object) -> bool:
    """Return whether a call lists the threads of a process."""
    return function in (os.scandir, os.listdir) and frame.f_code.co_filename == process.__file__


def calls_to_pin(host: FakeHost, machines: KernelVirtualMachines, pid: int, threads: int) -> int:
    """Return the calls of pinning a pinned machine with this many vCPUs."""
    place = SANDBOX._replace(key=f"{pid:064}", pid=pid, cgroup=f"/kubepods/pod{pid}/{pid:064}")
    names = {pid + 1 + number: f"CPU {number}/KVM" for number in range(threads)}
    command = ["/usr/bin/qemu-system-x86_64", "-name", f"sandbox-{pid:064}", "-smp", str(threads)]
    host.process(pid, command, threads=names)
    host.cgroup(place.cgroup or "", [pid], [pid, *names])
    seen = read(machines, place)
    asked = sandbox_masks(seen, CPUS, CPUS)
    machines.pin(place, asked)
    return calls_of(lambda: machines.pin(place, asked), lambda *_: True)


def test_calls_of_a_pin_grow_with_the_threads(host: FakeHost, machines: KernelVirtualMachines) -> None:
    """The calls grow linearly: eight times as many threads take less than ten times the calls."""
    few = calls_to_pin(host, machines, 10_000, 100)
    many = calls_to_pin(host, machines, 20_000, 800)

    assert many < 10 * few


def test_full_read_lists_the_threads_three_times(
    host: FakeHost, machines: KernelVirtualMachines, masks: Masks
) -> None:
    """Twice until no thread is new, and once after reading affinities, because ids may be reused."""
    start(host, SANDBOX)
    asked = pin(machines, SANDBOX, str(CPUS))

    def look() -> None:
        machines.read(SANDBOX, fully=True)
        machines.pin(SANDBOX, asked)

    look()  # reads what all machines of the node share
    sets = masks.sets
    assert calls_of(look, is_listing) == 3
    assert masks.sets == sets
