"""Boot an emulated machine, run one scenario in it, and return the facts that it reported."""

from __future__ import annotations

import compileall
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import randrange
from typing import TYPE_CHECKING, Any

from tests.environments.guest.runnable import RunnableClock
from tests.environments.guest.setup import install, modules_of, virtme_run
from tests.environments.server.daemon import plain_environment, terminated_with_parent

if TYPE_CHECKING:
    from collections.abc import Iterator

CHECKOUT = Path(__file__).parents[3]
SILENT_SECONDS = 180.0  # maximum silence of a booting kernel; the usual one is below 10 s on a busy host
BOOTS = 3
# RCU stall: the emulated timers have stopped. The kernel repeats it each minute of one grace period.
STALLED = re.compile(r"rcu_preempt kthread starved for (\d+) jiffies! (g\d+)")
JIFFIES = 250.0  # clock ticks per second in the guest
# Soft lockup: a CPU waits for an interrupt that the emulation has lost. The kernel repeats it for each CPU.
LOCKED = re.compile(r"soft lockup - CPU#\d+ stuck for (\d{3,})s")
# Panic by a stale int3 of the kernel's text patching: an emulated CPU runs the breakpoint after its removal.
# Linux 6.12 does so in one of two boots.
TRAPPED = re.compile(r"\bint3: 0000 \[#\d+\]")
# The kernel logs stalls and lockups also when the host starves the machine. They count only if the machine could
# run for this share of the time; 16 busy vCPUs beside four loops on two CPUs get 0.1 each.
LEAST_SHARE = 0.03
BOOTED = "booted"  # message of the first program
PORT = "corepin.facts"  # the virtio port on which the scenario reports
_SPEED = "mitigations=off audit=0 nmi_watchdog=0 rcupdate.rcu_expedited=1 cryptomgr.notests=1"  # the guest runs no untrusted code
_CONSOLE = "earlyprintk=ttyS1 console=ttyS1"  # safe: no untrusted code runs
# Skip two checks that need punctual ticks, which a busy host delays: the timer check, which panics, and each
# CPU's delay-loop calibration. The value is that of a 4 GHz CPU, so delays are never too short.
_TIMER = "no_timer_check lpj=16000000"
BACKSTOP = 10.0  # wall time, as a multiple of `seconds`, after which `timeout` kills the machine
_POLL_SECONDS = 0.2
_NOISE = "TCG doesn't support requested feature"


class GuestFailed(AssertionError):
    """The scenario did not finish; the message has the end of the console."""


@dataclass(frozen=True)
class GuestMachine:
    """The emulated machine: QEMU's arguments for CPUs, memory and its NUMA nodes."""

    cpus: str
    memory: str
    numa: tuple[str, ...] = ()
    seconds: float = 2400.0  # run time limit, six times the usual duration
    devices: tuple[str, ...] = ()  # QEMU's arguments for further devices


def _words(option: str, *values: str) -> tuple[str, ...]:
    return tuple(word for value in values for word in (option, value))


TWO_SOCKETS = GuestMachine("16,sockets=2,cores=4,threads=2", "3G", ("1536M,cpus=0-7", "1536M,cpus=8-15"))
# TWO_SOCKETS with a memory-only NUMA node near the second socket, and one or two PCI devices on each node.
_DISTANCES = ((0, 1, 20), (0, 2, 40), (1, 2, 12))
_PORTS = ((10, 0), (11, 1), (12, 1), (13, 2))
WITH_DEVICES = replace(
    TWO_SOCKETS,
    memory="3584M",
    numa=(*TWO_SOCKETS.numa, "512M"),
    devices=(
        *_words("-numa", *(f"dist,src={one},dst={other},val={far}" for one, other, far in _DISTANCES)),
        *("-drive", "file=null-co://,if=none,id=empty,format=raw"),
        *_words(
            "-device",
            *(
                f"pxb-pcie,id=pxb{node},bus_nr={32 * (node + 1)},numa_node={node},bus=pcie.0"
                for node in range(3)
            ),
            *(f"pcie-root-port,id=port{port},bus=pxb{node},chassis={port}" for port, node in _PORTS),
            "virtio-balloon-pci,bus=port10",
            "e1000e,bus=port11",
            "nvme,drive=empty,serial=empty,bus=port12",
            "virtio-rng-pci,bus=port13",
        ),
    ),
)


@dataclass(frozen=True)
class Report:
    """What one boot reported: facts by name, each with all its values in order."""

    facts: dict[str, list[dict[str, Any]]]
    console: str

    def all(self, name: str) -> list[dict[str, Any]]:
        """Return every value of a fact; fail with the end of the console when there is none."""
        if name not in self.facts:
            raise GuestFailed(f"the guest reported no {name!r}; its console ended with\n{self.console}")
        return self.facts[name]

    def one(self, name: str) -> dict[str, Any]:
        """Return the value of a fact that is reported once."""
        (value,) = self.all(name)
        return value


def boot(
    scenario: str, directory: Path, *, machine: GuestMachine = TWO_SOCKETS, kernel_options: str = ""
) -> Report:
    """Run the module `scenario` in a guest until the guest exits.

    A boot is retried, up to three boots, if the machine does not reach our init program, if its kernel stalls, or
    after a stale breakpoint; the console is printed. Other failures are not retried. On a busy host 3 of 50
    boots do not reach init.
    """
    kernel, options = _prepare(scenario, kernel_options)
    for attempt in range(BOOTS):
        files = _Files(directory / str(attempt))
        _run(_command(kernel, machine, files, options, BACKSTOP), files, machine.seconds)
        if files.has_booted() and not files.has_stalled and not files.has_trapped():
            return Report(read_facts(files.facts.read_text()), last_lines(files.said()))
        sys.stderr.write(f"start {attempt + 1} of the machine came to nothing:\n{last_lines(files.said())}\n")
    raise GuestFailed(f"none of {BOOTS} starts came to its end:\n{last_lines(files.said())}")


@contextmanager
def running_guest(
    scenario: str, directory: Path, *, machine: GuestMachine, kernel_options: str = ""
) -> Iterator[Guest]:
    """Run the module `scenario` in a guest until the block ends; the block starts after init's first message."""
    kernel, options = _prepare(scenario, kernel_options)
    for attempt in range(BOOTS):
        files = _Files(directory / str(attempt))
        with _running(_command(kernel, machine, files, options), files) as process:
            clock = RunnableClock(process.pid)
            if _comes_up(process, files, clock):
                yield Guest(process, files, clock)
                return
    raise GuestFailed(f"none of {BOOTS} starts came up:\n{last_lines(files.said())}")


def _prepare(scenario: str, kernel_options: str) -> tuple[Path, str]:
    """Return kernel and options; first compile the modules of the guest, which cannot write files."""
    for package in CHECKOUT.glob("*/__init__.py"):
        compileall.compile_dir(package.parent, quiet=2)
    kernel = install()
    return kernel, f"{_kernel_options(scenario, kernel)} {kernel_options}"


@dataclass(frozen=True)
class Guest:
    """A machine that runs in the background."""

    process: subprocess.Popen[bytes]
    _files: _Files
    _clock: RunnableClock

    def facts(self) -> dict[str, list[dict[str, Any]]]:
        """Return the facts reported so far; fail if the machine has ended or lost its timers."""
        if self.process.poll() is not None:
            raise self.failure("the machine ended by itself")
        if self._files.repeats_a_stall(self._clock):
            raise self.failure("the machine's timers have stopped")
        return read_facts(self._files.facts.read_text())

    def failure(self, problem: str) -> GuestFailed:
        """Return a failure with the end of the console."""
        return GuestFailed(f"{problem}:\n{last_lines(self._files.said())}")


class _Files:
    """The files of one start of the machine."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.has_stalled = False
        self.stalls: list[str] = []  # RCU grace periods of the stall messages, one entry per message
        self._is_locked, self._judged = False, 0
        self.facts, self.console, self.qemu = (
            directory / name for name in ("facts.jsonl", "console.log", "qemu.log")
        )
        for file in (self.facts, self.console, self.qemu):
            file.touch()

    def has_booted(self) -> bool:
        """Return whether the init program has written to the console or reported a fact."""
        said = self.console.read_text(errors="replace").splitlines()
        return BOOTED in said or self.facts.stat().st_size > 0

    def has_trapped(self) -> bool:
        """Return whether the kernel panicked on a stale breakpoint."""
        return TRAPPED.search(self.console.read_text(errors="replace")) is not None

    def size(self) -> int:
        """Return the size of the guest's output."""
        return self.console.stat().st_size + self.facts.stat().st_size

    def _judge(self, clock: RunnableClock) -> None:
        """Record new stall and lockup messages, except those of a time in which the host starved the machine."""
        new = self.console.read_bytes()[self._judged :]
        lines = new[: new.rfind(b"\n") + 1]
        self._judged += len(lines)
        text = lines.decode(errors="replace")
        self.stalls += [
            period
            for jiffies, period in STALLED.findall(text)
            if clock.share(int(jiffies) / JIFFIES) >= LEAST_SHARE
        ]
        if any(clock.share(float(seconds)) >= LEAST_SHARE for seconds in LOCKED.findall(text)):
            self._is_locked = True

    def repeats_a_stall(self, clock: RunnableClock) -> bool:
        """Return whether the kernel reported a stall of one grace period twice, or is locked up."""
        return self.is_locked(clock) or len(self.stalls) != len(set(self.stalls))

    def is_locked(self, clock: RunnableClock) -> bool:
        """Return whether a soft lockup of at least 100 seconds was reported."""
        self._judge(clock)
        return self._is_locked

    def said(self) -> str:
        """Return the output of QEMU and the guest."""
        return "\n".join(file.read_text(errors="replace") for file in (self.qemu, self.console))


def _run(command: list[str], files: _Files, seconds: float) -> None:
    """Run one guest until it exits, does not boot, stalls or exceeds its time."""
    with _running(command, files) as guest:
        clock = RunnableClock(guest.pid)
        if _comes_up(guest, files, clock):
            _comes_to_its_end(guest, files, clock, seconds + 30)


@contextmanager
def _running(command: list[str], files: _Files) -> Iterator[subprocess.Popen[bytes]]:
    """Run one guest until the block ends."""
    with files.qemu.open("wb") as log:
        guest = subprocess.Popen(
            command, env=plain_environment(), cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield guest
    finally:
        _end(guest)


def _comes_up(guest: subprocess.Popen[bytes], files: _Files, clock: RunnableClock) -> bool:
    """Wait for the init program; return False if the machine exits, is silent for too long or locks up before it."""
    size, deadline = 0, clock.seconds() + SILENT_SECONDS
    while not files.has_booted():
        if guest.poll() is not None or clock.seconds() > deadline:
            return files.has_booted()
        if (now := files.console.stat().st_size) != size:
            size, deadline = now, clock.seconds() + SILENT_SECONDS
            if files.is_locked(clock):
                return False
        time.sleep(_POLL_SECONDS)
    return True


def _comes_to_its_end(
    guest: subprocess.Popen[bytes], files: _Files, clock: RunnableClock, seconds: float
) -> None:
    """Wait until the machine exits, exceeds its time, or its kernel has stalled permanently.

    A stall is permanent if the kernel reports it twice or locks up, or if silence follows the first report.
    The limits apply to the time in which the machine could run.
    """
    over = clock.seconds() + seconds
    size, silent = 0, clock.seconds() + SILENT_SECONDS
    while guest.poll() is None and clock.seconds() < over and not files.has_stalled:
        if (now := files.size()) != size:
            size, silent = now, clock.seconds() + SILENT_SECONDS
            files.has_stalled = files.repeats_a_stall(clock)
        elif clock.seconds() > silent:
            files.has_stalled = bool(files.stalls)
        time.sleep(_POLL_SECONDS)


def read_facts(text: str) -> dict[str, list[dict[str, Any]]]:
    """Parse the guest's lines; the last may be cut off."""
    facts: dict[str, list[dict[str, Any]]] = {}
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            value = json.loads(line)
            value.pop("at", None)  # a time stamp for people who read slow runs
            facts.setdefault(value.pop("fact"), []).append(value)
    return facts


def last_lines(text: str, count: int = 40) -> str:
    """Return the end of a console's text without QEMU's own messages."""
    lines = [line.rstrip() for line in text.splitlines() if _NOISE not in line and line.strip()]
    return "\n".join(lines[-count:])


def _end(guest: subprocess.Popen[bytes]) -> None:
    """End `timeout`, which ends everything that it started."""
    if guest.poll() is None:
        guest.terminate()
        with suppress(subprocess.TimeoutExpired):
            guest.wait(15)
            return
        with suppress(ProcessLookupError):
            os.killpg(guest.pid, signal.SIGKILL)
        guest.wait()


def _command(
    kernel: Path, machine: GuestMachine, files: _Files, kernel_options: str, backstop: float = 1.0
) -> list[str]:
    """Return the command line: `timeout` ends the machine when it hangs, and when this process dies.

    virtme-run builds the initramfs and exports the host's root. Its own first program waits up to a minute for udev,
    which nothing here needs: the kernel's options name ours.
    """
    python = Path(sys.executable)
    virtme = [str(python), str(virtme_run()), "--kimg", str(kernel), "--mods", "auto"]
    emulated = ["--disable-kvm", "--force-9p", "--memory", machine.memory, "--cpus", machine.cpus]
    nodes = [word for node in machine.numa for word in ("--numa", node)]
    qemu = [
        *("-cpu", "Haswell-noTSX"),  # an Intel model, because others ignore threads=2
        *("-uuid", "c0de0c0d-e0c0-4e0c-8de0-c0de0c0de0c0"),  # the machine's id where the host has none
        *("-fsdev", "local,id=cached,path=/,security_model=none,readonly=on,multidevs=remap"),
        *("-device", "virtio-9p-pci,fsdev=cached,mount_tag=cached"),
        *("-chardev", f"file,id=facts,path={files.facts}"),
        *("-device", "virtio-serial-pci", "-device", f"virtserialport,name={PORT},chardev=facts"),
        *(
            "-chardev",
            f"file,id=log,path={files.console}",
            "-serial",
            "chardev:log",
        ),  # ttyS1; ttyS0 is virtme's
        *machine.devices,
        *("-append", kernel_options),
    ]
    run = [*virtme, *emulated, *nodes, "--script-sh", "true", "--qemu-opts", *qemu]
    timed = ["timeout", "--signal=TERM", "--kill-after=10", str(machine.seconds * backstop), *run]
    return terminated_with_parent(timed)


def _kernel_options(scenario: str, kernel: Path) -> str:
    """Return the kernel's command line; unknown options become the environment of the first program."""
    ours = {
        "init": CHECKOUT / "tests/environments/guest/init.sh",
        "MODULES": modules_of(kernel),
        "CHECKOUT": CHECKOUT,
        "PYTHON": sys.executable,
        "SCENARIO": scenario,
        "SEED": randrange(10**6),  # noqa: S311 other moments in each run; the guest reports it
    }
    return " ".join(
        [_CONSOLE, "panic=-1", _TIMER, _SPEED, *(f"{name}={value}" for name, value in ours.items())]
    )
