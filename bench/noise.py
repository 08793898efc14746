"""Cost of counting noise on a large node: CPU time of one round, and its share of one CPU.

`python -m bench.noise` writes files like the kernel's into memory: 256 CPUs, interrupts of which some fired
since the last round, and containers with threads of which some ran. These figures do not include the kernel's
time for its files; a round on this machine's own /proc, which does, is measured too.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry

from agent.quiet.noise_metrics import NoiseMetrics
from agent.quiet.sample import Measured, Places
from agent.quiet.watch import REST, ROUND_SECONDS, NoiseWatch
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.observed import Owner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CPUS: Final = 256
ROUNDS: Final = 6
MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a folder of its own is made in it


@dataclass(frozen=True, slots=True)
class Load:
    """A node, and its activity between two rounds."""

    interrupts: int
    active: int  # interrupts that fired
    containers: int
    threads: int  # of each container
    running: int  # running threads of each container


LOADS: Final = (
    Load(interrupts=500, active=100, containers=64, threads=16, running=4),
    Load(interrupts=500, active=500, containers=125, threads=60, running=4),
    Load(interrupts=4000, active=300, containers=125, threads=60, running=4),
    Load(interrupts=4000, active=4000, containers=125, threads=256, running=256),
)


def write_node(proc: Path, load: Load, number: int) -> None:
    """Write the kernel's files of one round."""
    head = " " * 12 + " ".join(f"{f'CPU{cpu}':>10}" for cpu in range(CPUS)) + "\n"
    rows = []
    for at in range(load.interrupts):
        counts = [0] * CPUS
        counts[at % CPUS] = 1000 + number * (at < load.active)
        rows.append(f"{at:>4}: {_row(counts)}  PCI-MSI {at}-edge queue{at}\n")
    (proc / "interrupts").write_text(head + "".join(rows))
    (proc / "softirqs").write_text(head + "".join(f"S{at}: {_row([number] * CPUS)}\n" for at in range(10)))
    lines = (f"cpu{cpu} 0 0 0 0 0 0 1 1 {number}\n" for cpu in range(CPUS))
    (proc / "schedstat").write_text("version 15\n" + "".join(lines))
    for container in range(load.containers):
        for thread in range(load.threads if number == 0 else load.running):
            _write_thread(proc / str(container * 1000 + thread), number)


def _row(counts: list[int]) -> str:
    return " ".join(f"{count:>10}" for count in counts)


def _write_thread(folder: Path, number: int) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "stat").write_text("7 (thread) S " + " ".join(["1"] * 49))
    (folder / "schedstat").write_text(f"9 {number} {number}\n")
    allowed = "Cpus_allowed_list:\t0-255\n"
    (folder / "status").write_text(
        f"Name:\tx\n{'x' * 1000}\n{allowed}nonvoluntary_ctxt_switches:\t{number}\n"
    )


def measured_on(load: Load) -> tuple[Measured, ...]:
    """Return the containers of a node; together they own nearly all of its CPUs."""
    each = CPUS // load.containers
    return tuple(
        Measured(Owner(str(at), "main"), CPUSet(range(at * each, at * each + each)), EMPTY, str(at))
        for at in range(load.containers)
    )


def seconds_of(places: Places, containers: tuple[Measured, ...], between: Callable[[int], None]) -> float:
    """Return the median CPU time of a round."""
    watch = NoiseWatch(places, NoiseMetrics(CollectorRegistry()))
    took = []
    for number in range(ROUNDS):
        between(number)
        took.append(asyncio.run(watch.measure(containers))[1])
    return statistics.median(took[1:])


def main() -> int:
    """Print the CPU time of a round under each load, and its share of one CPU."""
    argparse.ArgumentParser(prog="python -m bench.noise", description=__doc__).parse_args()
    for load in LOADS:
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            proc = Path(folder)

            def tasks(cgroup: str, load: Load = load) -> Sequence[int]:
                return range(int(cgroup) * 1000, int(cgroup) * 1000 + load.threads)

            def between(number: int, proc: Path = proc, load: Load = load) -> None:
                write_node(proc, load, number)

            places = Places(proc, proc / "interrupts", tasks)
            _print(str(load), seconds_of(places, measured_on(load), between))
    real = Places(Path("/proc"), Path("/proc/interrupts"), lambda _: [])
    own = (Measured(Owner("0", "main"), CPUSet(range(CPUS)), EMPTY, ""),)
    _print("/proc of this machine, without threads", seconds_of(real, own, lambda _: None))
    return 0


def _print(name: str, took: float) -> None:
    pause = max(ROUND_SECONDS, REST * took)
    sys.stdout.write(f"{name}: {1000 * took:.1f} ms, every {pause:.0f} s, {took / pause:.3%} of one CPU\n")


if __name__ == "__main__":
    sys.exit(main())
