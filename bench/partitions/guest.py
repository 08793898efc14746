"""Inside the guest: a busy owner beside other load, and the counters on its CPUs in each step."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.quiet.cpu_counts import Reading, Table, growth, read_table, total
from agent.quiet.thread_times import NO_THREADS, Threads, lost, read_threads
from bench.partitions.answers import answers
from bench.partitions.cgroups import CGROUPS, move_all, partition, process
from pinning.contract import CRANE_CPU_MANAGER, NOISE_POLICY
from pinning.machine.cpuset import CPUSet
from tests.environments.guest.inside import WORK, Node, report, running_node
from tests.environments.guest.polling import wait_until
from tests.environments.node.containerd import VERSIONS
from tests.smt.quiet_files import IRQ, WORKQUEUES, affinities, place_interrupts, reaches

if TYPE_CHECKING:
    from collections.abc import Callable

CONFIG: Final = "reserved: 0-1\nstrictReserved: true\nquiet: {interrupts: true, workqueues: true}\n"
EXCLUSIVE: Final = {CRANE_CPU_MANAGER: "exclusive"}
QUIET: Final = {**EXCLUSIVE, f"{NOISE_POLICY}/pod": "quiet"}
RESERVED: Final = "0-1"
STEPS: Final = {
    "exclusive": "exclusive",
    "quiet": "quiet",
    "confined": "quiet, system.slice off",
    "root": "quiet, partition root",
    "isolated": "quiet, isolated",
}
COUNTED: Final = ("device interrupts", "of disk queues", "NET_RX", "RES", "waited ms", "preempted")
SYSTEM_SLICE: Final = CGROUPS / "system.slice"
CONFINED: Final = (
    CGROUPS / "confined"
)  # stands for the slice with AllowedCPUs=, which cannot be unset before Linux 7
SPIN: Final = "while :; do :; done"
# A daemon computes for about 10 ms at a time.
DAEMON: Final = "while :; do i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done; sleep 0.02; done"
WRITER: Final = "while :; do dd if=/dev/zero of=/dev/nvme0n1 bs=64k count=512 conv=fsync 2>/dev/null; done"
PING: Final = "exec busybox ping -A -q 10.0.2.2 >/dev/null"  # to QEMU, which answers
IN_SLICE: Final = (*[DAEMON] * 6, WRITER)
IN_ROOT: Final = (*[DAEMON] * 3, PING)  # in the root cgroup, like services of a host without systemd


class Sample(NamedTuple):
    """Counters at one moment."""

    interrupts: Reading
    softirqs: Reading
    threads: Threads


def main() -> None:
    """Report the counters of each step of each round, and then the kernel's answers."""
    report("boot", kernel=os.uname().release)
    bring_up_devices()
    with running_node(VERSIONS[-1]) as node, ExitStack() as stack:
        start_agent(node)
        cpus, container = CPUSet.parse(node.cpuset("owner")), node.cgroup("owner")
        place_interrupts(cpus)
        originals = affinities()
        owner = [
            stack.enter_context(process(f"exec taskset -c {cpu} sh -c '{SPIN}'", container)) for cpu in cpus
        ]
        stack.enter_context(process(SPIN, node.cgroup("neighbour")))
        for folder in (SYSTEM_SLICE, CONFINED):
            folder.mkdir()
        (CONFINED / "cpuset.cpus").write_text(RESERVED)
        for script in IN_SLICE:
            stack.enter_context(process(script, SYSTEM_SLICE))
        for script in IN_ROOT:
            stack.enter_context(process(script, CGROUPS))
        for _ in range(int(os.environ["ROUNDS"])):
            one_round(node, cpus, owner, originals)
        answers(container, node.cgroup("neighbour"), cpus, owner)


def bring_up_devices() -> None:
    """Load the drivers of the network card and of the disk."""
    for module in ("virtio_net", "nvme"):
        subprocess.run(["modprobe", module], check=True)
    while not Path("/dev/nvme0n1").exists():
        time.sleep(0.1)
    (name,) = (path.parent.name for path in Path("/sys/class/net").glob("*/device"))
    for words in (f"address add 10.0.2.15/24 dev {name}", f"link set {name} up", "link set lo up"):
        subprocess.run(["ip", *words.split()], check=True)


def start_agent(node: Node) -> None:
    """Start the agent, the owner of two CPUs and a pod without CPUs of its own."""
    (WORK / "config.yaml").write_text(CONFIG)
    node.agent.arguments += ["--irq", str(IRQ), "--workqueues", str(WORKQUEUES)]
    node.agent.arguments += ["--config", str(WORK / "config.yaml")]
    node.agent.start()
    node.add("owner", 2, EXCLUSIVE)
    node.add("neighbour", 0, {})
    node.settle()


def one_round(node: Node, cpus: CPUSet, owner: list[int], originals: dict[str, str]) -> None:
    """Count in each step, and restore the initial state."""
    count("exclusive", cpus, owner)
    node.edit("owner", 2, QUIET)
    until_quiet(cpus)
    count("quiet", cpus, owner)
    move_all(SYSTEM_SLICE, CONFINED)
    count("confined", cpus, owner)
    move_all(CONFINED, SYSTEM_SLICE)
    for kind in ("root", "isolated"):
        with partition(kind, cpus, owner, node.cgroup("owner")):
            count(kind, cpus, owner)
    node.edit("owner", 2, EXCLUSIVE)
    until_original(originals)


def until_quiet(cpus: CPUSet) -> None:
    """Wait until only managed interrupts, those of the disk's queues, can fire on the CPUs."""
    if not wait_until(lambda: all(map(has_disk, reaches(cpus)))):
        raise TimeoutError(reaches(cpus))


def until_original(originals: dict[str, str]) -> None:
    """Wait until interrupts have their original affinities."""
    if not wait_until(lambda: originals.items() <= affinities().items()):
        raise TimeoutError(str(affinities()))


def has_disk(number: str) -> bool:
    """Return whether an interrupt is one of the disk."""
    return any(it.name.startswith("nvme") for it in (IRQ / number).iterdir())


def count(step: str, cpus: CPUSet, owner: list[int]) -> None:
    """Report the counters of the owner's CPUs and threads over a period."""
    time.sleep(1)  # a new affinity takes effect at the next interrupt
    before = sample(owner)
    time.sleep(float(os.environ["STEP_SECONDS"]))
    report("counted", step=step, counts=counts(before, sample(owner), cpus))


def sample(owner: list[int]) -> Sample:
    """Read all counters."""
    interrupts, softirqs = (read_table(Path("/proc", name)) for name in ("interrupts", "softirqs"))
    return Sample(interrupts, softirqs, read_threads("/proc", owner, NO_THREADS))


def counts(before: Sample, after: Sample, cpus: CPUSet) -> dict[str, int | str]:
    """Return the count of each kind, or the reason why it is unknown."""

    def grown(table: str, keep: Callable[[bytes, bytes], bool]) -> int | str:
        found = growth(chosen(getattr(before, table), keep), chosen(getattr(after, table), keep), cpus)
        return total(cpus, found)

    taken = lost(before.threads, after.threads, cpus)
    values = (
        grown("interrupts", lambda name, row: name.isdigit() and b"nvme" not in row),
        grown("interrupts", lambda name, row: name.isdigit() and b"nvme" in row),
        grown("softirqs", lambda name, _: name == b"NET_RX"),
        grown("interrupts", lambda name, _: name == b"RES"),
        taken.waited_ns // 1_000_000 if taken else "no thread",
        taken.switches if taken else "no thread",
    )
    return dict(zip(COUNTED, values, strict=True))


def chosen(table: Reading, keep: Callable[[bytes, bytes], bool]) -> Reading:
    """Return some rows of a table."""
    if isinstance(table, str):
        return table
    return Table(table.columns, {name: row for name, row in table.rows.items() if keep(name, row)})


if __name__ == "__main__":
    main()
