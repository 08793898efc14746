"""A process named like QEMU in a pid namespace, whose threads end and whose ids other processes reuse.

`python -m tests.agent.vm.reused_ids CASE` fails if pinning moves a process that is not the machine's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from agent.vm.machines import KernelVirtualMachines
from agent.vm.shared_reads import Roots
from agent.vm_interfaces import VMPlace
from pinning.guests.masks import sandbox_masks
from pinning.machine.cpuset import CPUSet

SANDBOX = "5" * 64
NAMES = ("CPU 0/KVM", "CPU 1/KVM", "worker")
FIRST, LAST = CPUSet([min(os.sched_getaffinity(0))]), CPUSet([max(os.sched_getaffinity(0))])
ALL = FIRST | LAST
# Reads `start NAME` and `end NAME`, and answers with the thread's id.
VMM = """
import os, sys, threading
threads = {}
def run(name, ready, end):
    with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as comm:
        comm.write(name)
    ready.set()
    end.wait()
for line in sys.stdin:
    verb, name = line.rstrip("\\n").split(" ", 1)
    if verb == "start":
        ready, end = threading.Event(), threading.Event()
        threads[name] = threading.Thread(target=run, args=(name, ready, end)), end
        threads[name][0].start()
        ready.wait()
        print(threads[name][0].native_id, flush=True)
    else:
        thread, end = threads.pop(name)
        end.set()
        thread.join()
        while os.path.exists(f"/proc/self/task/{thread.native_id}"):
            pass
        print(thread.native_id, flush=True)
"""


os.sched_setaffinity(0, ALL)


class Machine:
    """A process that looks like Kata's QEMU, and the agent's records of it."""

    def __init__(self) -> None:
        words = ["qemu-system-x86_64", "-c", VMM, "-name", f"sandbox-{SANDBOX}", "-smp", "2,maxcpus=2"]
        self.process = subprocess.Popen(
            words, executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.ids = {name: self.tell("start", name) for name in NAMES}
        self.place = VMPlace(SANDBOX, self.process.pid, f"/kubepods/pod1/{SANDBOX}", is_sandbox=True)
        self.machines = KernelVirtualMachines(Roots(Path("/proc"), Path("/nowhere")))
        self.look()
        assert self.vcpus() == [FIRST, LAST], self.vcpus()

    def tell(self, verb: str, name: str) -> int:
        """Start or end a thread; return its id."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{verb} {name}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def end(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.communicate()

    def look(self) -> None:
        """Read and pin the machine as polls do: vCPUs one to one, other threads on all CPUs."""
        for _ in range(2):
            seen = self.machines.read(self.place)
            assert seen, "no machine is found"
            pinned = self.machines.pin(self.place, sandbox_masks(seen, ALL, ALL))
            assert pinned
            assert pinned.is_settled, (self.ids, seen, pinned)

    def vcpus(self) -> list[CPUSet]:
        """Return the affinity of each vCPU."""
        return [CPUSet(os.sched_getaffinity(self.ids[name])) for name in NAMES[:2]]


def next_id(number: int) -> None:
    """Set the id of the next process or thread of the namespace."""
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(number - 1))


def stranger_with(number: int) -> subprocess.Popen[bytes]:
    """Start another program with this id, with retries until the kernel releases it."""
    while True:
        next_id(number)
        process = subprocess.Popen(["sleep", "1000"])
        if process.pid == number:
            return process
        process.kill()
        process.wait()


def stranger() -> None:
    """End each thread between a read and a pin, and give its id to another process, which must not move."""
    for name in NAMES:
        machine = Machine()
        seen = machine.machines.read(machine.place)
        assert seen
        other = stranger_with(machine.tell("end", name))
        there = LAST if name == NAMES[0] else FIRST
        machine.machines.pin(machine.place, sandbox_masks(seen, there, there))
        assert CPUSet(os.sched_getaffinity(other.pid)) == ALL, name
        rest = {machine.ids[each] for each in NAMES if each != name}
        assert {CPUSet(os.sched_getaffinity(tid)) for tid in rest} == {there}, name
        other.kill()
        other.wait()
        machine.end()


def replaced() -> None:
    """Replace each vCPU by a thread with another id, or the same id: the next poll pins it."""
    for name in NAMES[:2]:
        for is_same in (False, True):
            machine = Machine()
            before = machine.ids[name]
            while True:
                machine.tell("end", name)
                if is_same:
                    next_id(before)
                machine.ids[name] = machine.tell("start", name)
                if (machine.ids[name] == before) is is_same:
                    break
            assert machine.machines.has_strayed(machine.place), (name, is_same)
            machine.look()
            assert machine.vcpus() == [FIRST, LAST], (name, is_same)
            assert not machine.machines.has_strayed(machine.place), (name, is_same)
            machine.end()


if __name__ == "__main__":
    {"stranger": stranger, "replaced": replaced}[sys.argv[1]]()
