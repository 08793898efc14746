"""Agents that keep CPUs quiet on files like the kernel's, each killed at a random moment; run as a program.

A folder and a seed are its arguments. It prints what is wrong, and how many agents were killed in the middle of a round.
"""

from __future__ import annotations

import os
import random
import select
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from agent.quiet.balancer import Balancer
from agent.quiet.idle_states import IdleStatePart, KernelIdleStates
from agent.quiet.interfaces import Part, RecordFile
from agent.quiet.interrupts import KernelInterrupts
from agent.quiet.irqbalance import Irqbalance
from agent.quiet.keeper import QuietKeeper
from agent.quiet.mover import InterruptMover
from agent.quiet.taken import TakenStore
from agent.quiet.workqueue_mover import WorkqueueMover
from agent.quiet.workqueues import KernelWorkqueues
from agent.reconcile.restorable import Restorable
from pinning.contract import QuietWord
from pinning.machine.cpuset import CPUSet
from tests.agent.quiet.fakes import kept_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

KILLS = 200
WIDTH = 64  # length of written texts: the kernel's files keep no rest of an earlier text
QUIETS = ("4-5", "4", "2-3,6", "", "0-5", "5-7")
AFFINITIES = ("0-7", "4", "0-1", "5-6", "4-5")
_write = os.write


def padded(descriptor: int, text: Buffer) -> int:
    """Write a text over the whole of an earlier one, in one call."""
    return _write(descriptor, bytes(text).ljust(WIDTH))


def write_node(folder: Path) -> dict[Path, str]:
    """Write the files of a node, and return what they hold."""
    files = {f"irq/{10 + at}/smp_affinity_list": AFFINITIES[at % len(AFFINITIES)] for at in range(30)}
    files |= {"irq/default_smp_affinity": "ff", "wq/cpumask": "ff", "wq/writeback/cpumask": "30"}
    bounds = ("0", "100", "5", "n/a")
    files |= {f"cpu/cpu{cpu}/power/pm_qos_resume_latency_us": bounds[cpu % 4] for cpu in range(8)}
    for name, text in {**files, "sys/devices/system/cpu/online": "0-7"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for number in range(10, 40):
        (folder / f"irq/{number}/queue").mkdir()
        (folder / f"sys/kernel/irq/{number}").mkdir(parents=True)
    (folder / "state").mkdir()
    return {folder / name: text for name, text in files.items()}


def keeper_of(folder: Path) -> QuietKeeper:
    """Return the keeper of a new agent; no irqbalance runs."""

    def saved(name: str) -> Restorable:
        return Restorable(folder / "state" / name, "boot")

    now = time.monotonic
    interrupts = KernelInterrupts(folder / "irq", folder / "sys")
    irqbalance = Irqbalance(folder / "run", folder / "proc")
    balancer, kept = (
        Balancer(irqbalance, saved(RecordFile.BANNED_CPUS), now),
        kept_of(interrupts, irqbalance, folder / "state", now),
    )
    workqueues = WorkqueueMover(
        KernelWorkqueues(folder / "wq"), TakenStore(saved(RecordFile.WORKQUEUES)), now
    )
    bounds = IdleStatePart(KernelIdleStates(folder / "cpu"), saved(RecordFile.IDLE_STATES), now, 20)
    parts: dict[QuietWord, Part] = {QuietWord.WORKQUEUES: workqueues, QuietWord.IDLE_STATES: bounds}
    mover = InterruptMover(interrupts, TakenStore(saved(RecordFile.INTERRUPTS)), now)
    return QuietKeeper(interrupts, mover, balancer, kept, parts)


def run_agent(folder: Path, chance: random.Random, says: int) -> None:
    """Follow random quiet CPUs until killed; report when a round begins and ends."""
    keeper = keeper_of(folder)
    while True:
        _write(says, b"(")
        quiet = CPUSet.parse(chance.choice(QUIETS))
        keeper.round(quiet, quiet)
        _write(says, b")")


def killed_agent(folder: Path, chance: random.Random) -> bool:
    """Start an agent and kill it; return whether that was in the middle of a round."""
    hears, says = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            run_agent(folder, random.Random(chance.random()), says)  # noqa: S311 - moments, no secrets
        finally:
            os._exit(1)
    os.close(says)
    select.select([hears], [], [])  # waits until the agent has begun
    time.sleep(chance.random() / 50)  # the kill may come at any moment
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    said = b""
    while part := os.read(hears, 2**16):
        said += part
    os.close(hears)
    return said.endswith(b"(")


def wrong_state(folder: Path, quiet: CPUSet) -> list[str]:
    """Return the settings that are not restored or not quiet after the restart of a killed agent."""
    result = keeper_of(folder).round(quiet, quiet)
    found = [] if result and not result.why_not else [f"round: {result}"]
    lists = {it: CPUSet.parse(it.read_text()) for it in folder.glob("irq/*/smp_affinity_list")}
    masks = (folder / "irq/default_smp_affinity", folder / "wq/cpumask", folder / "wq/writeback/cpumask")
    lists |= {it: CPUSet.parse_mask(it.read_text().strip()) for it in masks}
    found += [f"{it} has {cpus} of {quiet}" for it, cpus in lists.items() if not cpus.isdisjoint(quiet)]
    bounds = {cpu: folder / f"cpu/cpu{cpu}/power/pm_qos_resume_latency_us" for cpu in quiet}
    texts = {cpu: file.read_text().strip() for cpu, file in bounds.items()}
    return found + [f"bound of CPU {cpu}: {it}" for cpu, it in texts.items() if it not in {"20", "5", "n/a"}]


def main(folder: Path, seed: int) -> None:
    """Kill agents, check after every twentieth kill that the next agent repairs the settings, and restore them."""
    os.write = padded
    originals = write_node(folder)
    chance, wrong, amid = random.Random(seed), list[str](), 0  # noqa: S311 - moments, no secrets
    for kill in range(1, KILLS + 1):
        amid += killed_agent(folder, chance)
        if not kill % 20:
            wrong += wrong_state(folder, CPUSet.parse(QUIETS[kill // 20 % 3]))
    if not keeper_of(folder).restore():
        wrong.append("not everything is restored")
    seen = {file: file.read_text().strip() for file in originals}
    wrong += [
        f"{file} is {text}, and was {originals[file]}"
        for file, text in seen.items()
        if text != originals[file]
    ]
    wrong += [f"{file} is left" for file in (folder / "state").iterdir() if file.suffix != ".new"]
    sys.stdout.write("\n".join([*wrong, f"killed in the middle of a round: {amid}"]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
