"""Cost of reading and pinning a virtual machine, in function calls."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from agent.vm import process
from pinning.guests.masks import sandbox_masks
from pinning.machine.cpuset import CPUSet
from tests.agent.vm.launched import SANDBOX, Masks, pin, read, start

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from agent.vm.machines import KernelVirtualMachines
    from tests.agent.vm.fake_host import FakeHost

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
