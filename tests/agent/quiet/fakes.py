"""In-memory interrupts and an irqbalance, with a kill of the agent at any write."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.errors import Gone, Managed, Refused, Unavailable
from agent.kernel.procfs import NO_LOGIN
from agent.quiet.interfaces import RecordFile
from agent.quiet.interrupt_ban import InterruptBan
from agent.quiet.interrupts import DEFAULT
from agent.quiet.irqbalance import Daemon, Irqbalance, Setup
from agent.quiet.keeper import Kept
from agent.quiet.kept import KeptLookup
from agent.reconcile.restorable import Restorable
from pinning.machine.cpuset import EMPTY, CPUSet

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from agent.quiet.interfaces import Interrupts

MACHINE: Final = CPUSet(range(8))


STAT = "{pid} ({name}) {state} 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {started} 0 0\n"


def process(
    proc: Path,
    pid: int,
    name: str = "irqbalance",
    cgroup: str = "/system.slice/irqbalance.service",
    *,
    uids: str = "0 0",
    login: int | str | None = NO_LOGIN,
    state: str = "S",
) -> None:
    """Create a process as /proc shows it; `uids` are its real and its effective one, None a kernel without logins."""
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "stat").write_text(STAT.format(pid=pid, name=name, state=state, started=100 + pid))
    (folder / "status").write_text(f"Name:\t{name}\nUid:\t{uids} 0 0\nGid:\t0\t0\t0\t0\n")
    if login is not None:
        (folder / "loginuid").write_text(f"{login}")
    (folder / "cgroup").write_text(f"0::{cgroup}\n")


class Killed(BaseException):
    """The agent is killed here, as by SIGKILL."""


def cpus(text: str) -> CPUSet:
    """Return a set of CPUs."""
    return CPUSet.parse(text)


@dataclass
class FakeInterrupts:
    """Interrupts of a machine with CPUs 0-7; affinity by number (interface `Interrupts`)."""

    affinities: dict[str, CPUSet] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    nears: dict[str, CPUSet] = field(default_factory=dict)
    devices: dict[str, tuple[str, ...]] = field(default_factory=dict)  # interrupts by PCI address
    device_reads: int = 0
    # Interrupts whose affinity cannot be written, as managed ones up to Linux 6.1.
    managed: set[str] = field(default_factory=set)
    read_only: set[str] = field(default_factory=set)  # interrupts whose files also lack write permission
    unplaced: set[str] = field(default_factory=set)  # interrupts that fire on no CPU in particular
    refused: dict[str, str] = field(default_factory=dict)
    room: int | None = None  # interrupts that a single CPU has vectors for
    crowded: list[str] = field(default_factory=list)  # writes for which there was no room
    up: CPUSet = MACHINE
    deaf: set[str] = field(default_factory=set)  # interrupts on which a write succeeds and changes nothing
    possible: CPUSet = MACHINE
    missing: str = ""  # why none can be listed
    writes: list[tuple[str, str]] = field(default_factory=list)
    order: list[str] = field(default_factory=list)  # order of all writes
    lives: dict[str, int] = field(default_factory=dict)  # identities by number
    shows_identities: bool = True
    kill_after: int | None = None  # the number of further writes that succeed
    # Events after the next readings of the online CPUs, one for each; a round reads these after all affinities.
    events: list[Callable[[], None]] = field(default_factory=list)

    def numbers(self) -> list[str]:
        """Return all numbers."""
        if self.missing:
            raise Unavailable(self.missing)
        return [number for number in self.affinities if number != DEFAULT]

    def identities(self) -> dict[str, int]:
        """Return how often each number was requested."""
        numbers = self.numbers() if self.shows_identities else []
        return {number: self.lives.get(number, 0) for number in numbers}

    def online(self) -> CPUSet:
        """Return the online CPUs."""
        if self.events:
            self.events.pop(0)()
        return self.up

    def affinity(self, number: str) -> CPUSet:
        """Return the affinity of an interrupt."""
        if number not in self.affinities:
            raise Gone(number)
        return self.affinities[number]

    def name(self, number: str) -> str:
        """Return the names of its actions."""
        return self.names.get(number, "")

    def of_device(self, address: str) -> tuple[str, ...]:
        """Return the interrupts of a device."""
        self.device_reads += 1
        return self.devices.get(address, ())

    def near(self, number: str) -> CPUSet:
        """Return the CPUs of its NUMA node."""
        return self.nears.get(number, EMPTY)

    def is_managed(self, number: str) -> bool:
        """Return whether its file is read-only."""
        return number in self.read_only

    def has_place(self, number: str) -> bool:
        """Return whether it fires on certain CPUs."""
        return number not in self.unplaced

    def move(self, number: str, wanted: CPUSet, identity: int | None = None) -> None:
        """Set its affinity."""
        if identity is not None and self.identities().get(number, identity) != identity:
            raise Gone(number)
        if self.kill_after is not None:
            self.kill_after -= 1
            if self.kill_after < 0:
                raise Killed
        if number in self.managed | self.read_only:
            raise Managed(f"{number}: EIO")
        if number in self.refused:
            raise Refused(self.refused[number])
        alike = sum(its == wanted for other, its in self.affinities.items() if other != number)
        if len(wanted) == 1 and self.room is not None and alike >= self.room:
            self.crowded.append(number)
            raise Refused(f"interrupt {number}: No space left on device")
        assert wanted <= self.possible
        assert not wanted.isdisjoint(self.up), "the kernel answers EINVAL: no online CPU"
        self.writes.append((number, str(wanted)))
        self.order.append(number)
        if number not in self.deaf:
            self.affinities[number] = wanted

    def set_online(self, up: CPUSet) -> None:
        """Set the online CPUs. An interrupt without an online CPU gets all of them, and keeps them."""
        self.up = up
        for number, affinity in self.affinities.items():
            if number != DEFAULT and affinity.isdisjoint(up):
                self.affinities[number] = self.possible & up

    def request(self, number: str, name: str) -> None:
        """Create an interrupt, as a loaded driver does."""
        online = self.affinities[DEFAULT] & self.up
        self.affinities[number] = online or self.up
        self.names[number] = name
        self.lives[number] = self.lives.get(number, 0) + 1

    def quiet(self, quiet: CPUSet) -> bool:
        """Return whether no movable interrupt has these CPUs."""
        fixed = self.managed | self.read_only
        return all(it.isdisjoint(quiet) for number, it in self.affinities.items() if number not in fixed)


class FakeIrqbalance(Irqbalance):
    """An in-memory daemon, whose ban takes effect with its next interval."""

    def __init__(self) -> None:
        super().__init__(Path("/run/irqbalance"), Path("/proc"))
        self.daemon: Daemon | None = Daemon(7, 107, Path("/run/irqbalance/irqbalance7.sock"))
        self.hidden: Daemon | None = None
        self.banned, self.pending = EMPTY, EMPTY
        self.bans: list[str] = []
        self.alone: frozenset[int] = frozenset()  # interrupts that it leaves alone
        self.lists: list[str] = []  # lists of interrupts to leave alone that were sent
        self.order: list[str] = []
        self.silence = ""
        self.is_deaf = False
        self.searches = 0

    def with_socket(self) -> Daemon | None:
        """Return the daemon."""
        return self.daemon

    def without_socket(self) -> Daemon | None:
        """Return a daemon without a socket."""
        self.searches += 1
        return self.hidden

    def runs(self, daemon: Daemon) -> bool:
        """Return whether a process runs, with a socket or without one."""
        return any(it and it[:2] == daemon[:2] for it in (self.daemon, self.hidden))

    def setup(self, daemon: Daemon) -> Setup:
        """Return its ban."""
        if self.silence:
            raise Unavailable(self.silence)
        return Setup(self.banned, 10, self.alone)

    def ban(self, daemon: Daemon, wanted: CPUSet) -> None:
        """Accept a ban."""
        self.bans.append(str(wanted))
        self.order.append("ban")
        if not self.is_deaf:
            self.pending = wanted

    def ban_interrupts(self, daemon: Daemon, numbers: Collection[int]) -> None:
        """Accept a list of interrupts, which holds at once."""
        self.lists.append(" ".join(map(str, sorted(numbers))))
        self.order.append("leave")
        if not self.is_deaf:
            self.alone = frozenset(numbers)

    def interval(self) -> None:
        """Apply the ban."""
        self.banned = self.pending


def kept_of(
    kernel: Interrupts, daemon: Irqbalance, folder: Path, monotonic: Callable[[], float] = lambda: 0.0
) -> Kept:
    """Return the lookup of kept interrupts, with their ban in irqbalance."""
    ban = InterruptBan(daemon, Restorable(folder / RecordFile.BANNED_INTERRUPTS, "boot"), monotonic)
    return Kept(KeptLookup(kernel, monotonic), ban)
