"""`python -m bench.partitions` (as root): noise that a cgroup v2 partition would additionally remove for a busy owner.

An emulated machine of six CPUs (Debian's kernel, no KVM) runs the real agent with a real containerd. Beside
the owner of two CPUs run nine daemons, a busy pod, pings through a network card and writes to a disk. The
same counters are read in turns: with exclusive CPUs, with `noise-policy: quiet`, with system.slice confined
too, and with a manual partition. The kernel's answers to partitions of containers are printed below. Emulated
time differs from real time, so only the order of magnitude is meaningful.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from bench.partitions.guest import COUNTED, STEPS
from tests.environments.guest.guest import GuestMachine, boot
from tests.environments.node.containerd import VERSIONS, find_programs
from tests.environments.server.build import cache_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MACHINE: Final = GuestMachine(
    "6,sockets=1,cores=3,threads=2",
    "2G",
    devices=(
        *("-netdev", "user,id=card,restrict=on", "-device", "virtio-net-pci,netdev=card"),
        *(
            "-drive",
            "file=null-co://,if=none,id=empty,format=raw",
            "-device",
            "nvme,drive=empty,serial=empty",
        ),
    ),
)


def table(counted: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table: medians of all rounds, with the smallest and the largest in brackets."""
    yield f"{'':<26}" + "".join(f"{name:>20}" for name in COUNTED)
    for step, title in STEPS.items():
        rounds = [it["counts"] for it in counted if it["step"] == step]
        cells = [[it[name] for it in rounds if not isinstance(it[name], str)] for name in COUNTED]
        shown = (f"{median(it):.0f} ({min(it):.0f}-{max(it):.0f})" if it else "unknown" for it in cells)
        yield f"{title:<26}" + "".join(f"{cell:>20}" for cell in shown)


def main() -> None:
    """Print the table, and the kernel's answers."""
    parser = argparse.ArgumentParser(prog="python -m bench.partitions", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of all steps; default: 3")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each step, in the guest; default: 10")
    args = parser.parse_args()
    find_programs(VERSIONS[-1])
    before = os.getloadavg()[0]
    options = f"COREPIN_CACHE={cache_folder().parent} ROUNDS={args.rounds} STEP_SECONDS={args.seconds}"
    with tempfile.TemporaryDirectory(prefix="partitions-") as folder:
        report = boot("bench.partitions.guest", Path(folder), machine=MACHINE, kernel_options=options)
    print(f"Linux {report.one('boot')['kernel']}, {args.rounds} rounds of {args.seconds} s")
    for line in table(report.all("counted")):
        print(line)
    for answer in report.all("answer"):
        print(f"{answer['to']}: {answer['says']}")
    print(f"load of the machine {before:.1f} before, {os.getloadavg()[0]:.1f} after, {os.cpu_count()} CPUs")


if __name__ == "__main__":
    main()
