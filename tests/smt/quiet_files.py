"""Inside the guest: the kernel's settings for quiet CPUs, their expected values, and devices that cause interrupts."""

from __future__ import annotations

import errno
import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

from pinning.machine.cpuset import CPUSet
from tests.environments.guest.inside import CPUS, online

IRQ: Final = Path("/proc/irq")
WORKQUEUES: Final = Path("/sys/devices/virtual/workqueue")
BOUND: Final = "power/pm_qos_resume_latency_us"
KERNELS: Final = frozenset({"0", "2"})  # timer and cascade, which the kernel does not move
QUEUE: Final = re.compile(
    r"nvme\d+q[1-9]\d*"
)  # of a disk; its interrupt is managed: the kernel alone places it
REQUESTS: Final = 200
NET: Final = Path("/sys/class/net")
PCI: Final = Path("/sys/bus/pci/devices")
HERE, GATEWAY = "10.0.2.15/24", "10.0.2.2"  # QEMU answers
PINGS: Final = 100


def affinities() -> dict[str, str]:
    """Return the CPUs on which each interrupt may fire."""
    return {
        file.parent.name: file.read_text().strip() for file in sorted(IRQ.glob("[0-9]*/smp_affinity_list"))
    }


def managed() -> dict[str, str]:
    """Return the names of the interrupts that the kernel alone places, by number."""
    names = {number: [entry.name for entry in (IRQ / number).iterdir()] for number in affinities()}
    return {number: name for number, found in names.items() for name in found if QUEUE.fullmatch(name)}


def refusal(number: str) -> str:
    """Return the kernel's error when an interrupt is moved, or an empty string."""
    file = IRQ / number / "smp_affinity_list"
    try:
        file.write_text(file.read_text())
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return ""


def reaches(cpus: CPUSet) -> dict[str, str]:
    """Return the movable interrupts with a driver that may fire on these CPUs."""
    return {
        number: text
        for number, text in affinities().items()
        if number not in KERNELS
        and not CPUSet.parse(text).isdisjoint(cpus)
        and any(entry.is_dir() for entry in (IRQ / number).iterdir())
        and number not in managed()
    }


def default_affinity() -> CPUSet:
    """Return the default affinity of interrupts requested later."""
    return CPUSet.of_mask(int((IRQ / "default_smp_affinity").read_text().replace(",", ""), 16))


def masks() -> dict[str, str]:
    """Return the CPUs of unbound workqueues by file."""
    files = [WORKQUEUES / "cpumask", *sorted(WORKQUEUES.glob("*/cpumask"))]
    return {
        str(file.relative_to(WORKQUEUES)): str(CPUSet.parse_mask(file.read_text().strip())) for file in files
    }


def bounds() -> dict[str, str]:
    """Return the latency bound of each CPU by its number; empty if the kernel has no such file."""
    files = CPUS.glob(f"cpu[0-9]*/{BOUND}")
    return {file.parts[-3].removeprefix("cpu"): file.read_text().strip() for file in files}


def limit(cpu: int, bound: str) -> None:
    """Set the latency bound of a CPU for idle states."""
    (CPUS / f"cpu{cpu}" / BOUND).write_text(bound)


def place_interrupts(cpus: CPUSet) -> None:
    """Move every movable interrupt to these CPUs."""
    for number in affinities():
        with suppress(OSError):
            (IRQ / number / "smp_affinity_list").write_text(str(cpus))


def counts() -> dict[str, dict[str, int]]:
    """Return the count of each device interrupt by CPU; its key includes its names."""
    header, *rows = Path("/proc/interrupts").read_text().splitlines()
    columns = [name.removeprefix("CPU") for name in header.split()]
    split = [row.split() for row in rows]
    return {
        f"{words[0]} {words[-1]}": dict(zip(columns, map(int, words[1:]), strict=False))
        for words in ((row[0], *row[1 : len(columns) + 1], row[-1]) for row in split)
        if words[0].rstrip(":").isdecimal()
    }


def grown(before: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """Return how often each interrupt has fired on each CPU since; interrupts that did not fire are left out."""
    rows = {
        name: {cpu: count - before.get(name, {}).get(cpu, 0) for cpu, count in row.items()}
        for name, row in counts().items()
    }
    fired = {name: {cpu: count for cpu, count in row.items() if count} for name, row in rows.items()}
    return {name: row for name, row in fired.items() if row}


def traffic() -> None:
    """Query the host's file system, which answers each query with an interrupt."""
    for _ in range(REQUESTS):
        os.statvfs("/")


def busiest() -> str:
    """Return the interrupt that fires most while the host's file system is queried."""
    before = counts()
    traffic()
    sums = {key: sum(row.values()) for key, row in grown(before).items()}
    return max(sums, key=lambda key: sums[key]).partition(":")[0]


def settings() -> dict[str, str]:
    """Return all settings that are changed for quiet CPUs."""
    fixed = KERNELS | managed().keys()
    return {
        **{f"irq {number}": cpus for number, cpus in affinities().items() if number not in fixed},
        "irq default": str(default_affinity()),
        **masks(),
        **{f"cpu {number}": bound for number, bound in bounds().items()},
    }


def quieted(originals: dict[str, str], quiet: CPUSet, most: int) -> dict[str, str]:
    """Return the expected settings while CPUs are quiet, with this latency bound."""
    return {name: _quieted(name, text, quiet, most) for name, text in originals.items()}


def _quieted(name: str, text: str, quiet: CPUSet, most: int) -> str:
    kind, _, number = name.partition(" ")
    if kind == "cpu":
        return str(min(int(text) or most, most)) if int(number) in quiet else text
    rest = CPUSet.parse(text) - quiet
    return str(rest or CPUSet.parse(online()) - quiet)


def cards() -> list[str]:
    """Return the names of network interfaces that belong to devices."""
    return [path.parent.name for path in NET.glob("*/device")]


def one_card() -> str:
    """Return the name of the only card."""
    (name,) = cards()
    return name


def pci_device(card: str) -> Path:
    """Return the folder of a card on the PCI bus: that of a virtio device is its parent's."""
    device = (NET / card / "device").resolve()
    return next(folder for folder in (device, *device.parents) if (PCI / folder.name).exists())


def bring_up(card: str) -> None:
    """Give a card an address, so that it can be used."""
    for words in (f"address add {HERE} dev {card}", f"link set {card} up"):
        subprocess.run(["ip", *words.split()], check=True)


def ping() -> None:
    """Send packets one after the other over the card, if there is one, and wait for each answer."""
    if cards():
        words = ["busybox", "ping", "-A", "-q", "-c", str(PINGS), GATEWAY]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
