"""Delay of the agent's event loop while 4,000 interrupts are kept off quiet CPUs.

`python -m bench.quiet` writes a tree like /proc/irq into memory, and runs rounds as the agent does, beside a task
that sleeps for a millisecond at a time; seven repeats. The figure is the CPU time that the round's thread uses
between the task's wake-up time and its run, because only that delays the loop. Other programs are not included,
nor is the kernel's work for each file, because the agent does not hold the GIL during system calls.

Finally a quiet pod is added or removed every 30 ms, and the rounds and writes are counted.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import statistics
import sys
import tempfile
import threading
import time
from contextlib import suppress
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from agent.quiet.balancer import Balancer
from agent.quiet.interfaces import RecordFile
from agent.quiet.interrupt_ban import InterruptBan
from agent.quiet.interrupts import DEFAULT, KernelInterrupts
from agent.quiet.irqbalance import Irqbalance
from agent.quiet.keeper import Kept, QuietKeeper
from agent.quiet.kept import KeptLookup
from agent.quiet.mover import InterruptMover
from agent.quiet.quieting import Quieting, in_daemon_thread
from agent.quiet.taken import TakenStore
from agent.reconcile.restorable import Restorable
from pinning.machine.cpuset import EMPTY, CPUSet
from tests.agent.quiet.quieting.scene import EMPTY_STATE, STATE

if TYPE_CHECKING:
    from collections.abc import Callable

CPUS: Final = 256
INTERRUPTS: Final = 4000
QUIET: Final = CPUSet(range(4, CPUS))
TICK_SECONDS: Final = 0.001
CHURN_SECONDS: Final = 20.0
CHANGE_SECONDS: Final = 0.03
REPEATS: Final = 7
MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a folder of its own is made in it


Value = TypeVar("Value")


def write_node(folder: Path) -> None:
    """Write interrupts, each with one action and on all CPUs."""
    cpu = folder / "sys/devices/system/cpu"
    cpu.mkdir(parents=True)
    (cpu / "online").write_text(f"0-{CPUS - 1}\n")
    for number in range(INTERRUPTS):
        actions = folder / "irq" / str(number) / f"queue{number}"
        actions.mkdir(parents=True)
        (actions.parent / "smp_affinity_list").write_text(f"0-{CPUS - 1}\n")
        (actions.parent / "node").write_text("-1\n")
        (folder / "sys/kernel/irq" / str(number)).mkdir(parents=True)
    (folder / "irq" / "default_smp_affinity").write_text(",".join(["ffffffff"] * (CPUS // 32)) + "\n")


class MemoryInterrupts(KernelInterrupts):
    """Interrupts whose files are truncated by each write, because files in memory keep the rest of a longer text."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "irq", folder / "sys")
        self._folder = folder / "irq"
        self.writes = 0

    def move(self, number: str, cpus: CPUSet, identity: int | None = None) -> None:
        """Set the affinity of an interrupt."""
        name = "default_smp_affinity" if number == DEFAULT else f"{number}/smp_affinity_list"
        self.writes += 1
        os.truncate(self._folder / name, 0)
        super().move(number, cpus, identity)


def keeper_of(folder: Path, interrupts: MemoryInterrupts) -> QuietKeeper:
    """Return a keeper on a tree, without irqbalance."""
    store = TakenStore(Restorable(folder / RecordFile.INTERRUPTS, "boot"))
    irqbalance, now = Irqbalance(folder / "run", folder / "proc"), time.monotonic
    balancer = Balancer(irqbalance, Restorable(folder / RecordFile.BANNED_CPUS, "boot"), now)
    ban = InterruptBan(irqbalance, Restorable(folder / RecordFile.BANNED_INTERRUPTS, "boot"), now)
    mover = InterruptMover(interrupts, store, now)
    return QuietKeeper(interrupts, mover, balancer, Kept(KeptLookup(interrupts, now), ban))


async def longest_hold(work: Callable[[], Value]) -> tuple[Value, float, float]:
    """Run work in a thread; return its result, its CPU time, and the longest delay of the loop that it causes."""
    clocks: list[int] = []

    def clocked() -> tuple[Value, float]:
        clocks.append(time.pthread_getcpuclockid(threading.get_ident()))
        value = work()
        return value, time.thread_time()

    task = asyncio.ensure_future(in_daemon_thread(clocked))
    held = 0.0
    while not task.done():
        due = time.perf_counter() + TICK_SECONDS
        before, waited = _clock(clocks), _waited()
        await asyncio.sleep(TICK_SECONDS)
        late = time.perf_counter() - due
        held = max(held, min(late - (_waited() - waited), _clock(clocks) - before))
    value, took = await task
    return value, took, held


def _clock(clocks: list[int]) -> float:
    """Return the CPU time of the thread; 0 before it runs and when it has ended."""
    with suppress(OSError):
        return time.clock_gettime(clocks[0]) if clocks else 0.0
    return 0.0


def _waited() -> float:
    """Return the run-queue wait of the loop's thread."""
    return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9


def measure(folder: Path) -> None:
    """Print the figures of rounds that move all interrupts, find no work, and restore all."""
    keeper = keeper_of(folder, MemoryInterrupts(folder))
    rounds = {
        "all moved": QUIET,
        "nothing to do": QUIET,
        "one CPU less": QUIET - CPUSet([4]),
        "all given back": EMPTY,
    }
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in rounds}
    for _ in range(REPEATS):
        for name, quiet in rounds.items():
            result, took, held = asyncio.run(longest_hold(partial(keeper.round, quiet, quiet)))
            if result is None or result.reason:
                raise SystemExit(f"{name}: {result}")
            figures[name].append((1000 * took, 1000 * held))
    for name, found in figures.items():
        took, held = (statistics.median(each) for each in zip(*found, strict=True))
        worst = max(held for _, held in found)
        sys.stdout.write(
            f"{name}: {took:.0f} ms of CPU time, loop held for {held:.1f} ms at once, {worst:.1f} in the worst round\n"
        )


async def churn(folder: Path) -> None:
    """Print the number of rounds and writes while a quiet pod is added and removed repeatedly."""
    interrupts = MemoryInterrupts(folder)
    quieting, rounds = Quieting(keeper_of(folder, interrupts)), 0

    def ended() -> None:
        nonlocal rounds
        rounds += 1

    work = asyncio.create_task(quieting.run(ended))
    cost, end = time.process_time(), time.monotonic() + CHURN_SECONDS
    for state in cycle((STATE, EMPTY_STATE)):
        quieting.add(state)
        await asyncio.sleep(CHANGE_SECONDS)
        if time.monotonic() > end:
            break
    share = (time.process_time() - cost) / CHURN_SECONDS
    work.cancel()
    sys.stdout.write(
        f"a thousand pods a minute: a round with changes every {CHURN_SECONDS / rounds:.1f} s,"
        f" {interrupts.writes / CHURN_SECONDS:.0f} writes of affinities a second, {share:.1%} of one CPU\n"
    )


def main() -> int:
    """Measure on a tree in memory."""
    argparse.ArgumentParser(prog="python -m bench.quiet", description=__doc__).parse_args()
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        write_node(Path(folder))
        gc.collect()
        gc.freeze()  # as the agent's process does
        measure(Path(folder))
        asyncio.run(churn(Path(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
