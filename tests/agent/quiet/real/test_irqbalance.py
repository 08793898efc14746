"""Debian's irqbalance with its socket, as on a node; it sees this machine's interrupts read-only."""

from __future__ import annotations

import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from agent.errors import Unavailable
from agent.quiet.balancer import Balancer
from agent.quiet.interrupt_ban import InterruptBan, Unkept
from agent.quiet.irqbalance import MOST_LETTERS, Irqbalance, Setup, cpus_text
from agent.reconcile.restorable import Restorable
from pinning.machine.cpuset import EMPTY, CPUSet
from tests import debian
from tests.environments.server.daemon import dies_with_parent
from tests.environments.waiting import until_equal

if TYPE_CHECKING:
    from collections.abc import Iterator

OPERATORS: Final = CPUSet([1])  # CPUs that irqbalance's environment bans
POD: Final = CPUSet([0])
PATIENCE_SECONDS: Final = 120.0  # wait for an answer, which takes a moment on an idle machine
# Its folder is one of ours, and nothing that it writes reaches the kernel.
ENTER: Final = """
mount --make-rprivate / && mount --bind /proc/irq /proc/irq && mount -o remount,bind,ro /proc/irq &&
mount -t tmpfs tmpfs /run && mkdir /run/irqbalance && mount --bind "$0" /run/irqbalance || exit 1
exec env IRQBALANCE_BANNED_CPULIST=1 "$1" --foreground --interval=1
"""


@dataclass
class Node:
    """A node with irqbalance, and what an agent on it has."""

    folder: Path
    program: Path
    state: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self) -> None:
        """Start irqbalance, and wait until it answers."""
        command = dies_with_parent(
            ["unshare", "--mount", "sh", "-c", ENTER, str(self.folder), str(self.program)]
        )
        with self.log.open("wb") as log:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
        self.processes.append(process)
        until_equal("its answer", lambda: process.poll() is not None or self.is_up(), True)
        if process.returncode is not None:
            pytest.skip(f"irqbalance does not run here: {self.log.read_text()[-300:]}")

    def is_up(self) -> bool:
        """Return whether irqbalance answers, because its socket exists before it listens."""
        daemon = self.client.with_socket()
        with suppress(Unavailable):
            return daemon is not None and bool(self.client.setup(daemon))
        return False

    def kill(self) -> None:
        """Kill irqbalance, which leaves its socket behind."""
        for process in self.processes:
            process.kill()
            process.wait()

    @property
    def log(self) -> Path:
        """The log of its start."""
        return self.state / "irqbalance.log"

    @property
    def client(self) -> Irqbalance:
        """A client of irqbalance."""
        return Irqbalance(self.folder, Path("/proc"), PATIENCE_SECONDS)

    def setup(self) -> Setup:
        """Return irqbalance's answer to `setup`."""
        daemon = self.client.with_socket()
        assert daemon
        return self.client.setup(daemon)

    def balancer(self) -> Balancer:
        """Return a new agent's part that bans CPUs."""
        return Balancer(self.client, Restorable(self.state / "cpus.json", "boot"), time.monotonic)

    def interrupts(self) -> InterruptBan:
        """Return a new agent's part that names interrupts."""
        return InterruptBan(self.client, Restorable(self.state / "interrupts.json", "boot"), time.monotonic)

    def until_banned(self, balancer: Balancer, quiet: CPUSet, cpus: CPUSet) -> None:
        """Let a balancer follow quiet CPUs until irqbalance reports this ban."""

        def banned() -> CPUSet:
            balancer.keep_off(quiet)  # under load it may report at first that the list is not applied
            return self.setup().banned

        until_equal("banned CPUs", banned, cpus)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Return a node whose irqbalance runs."""
    try:
        program = debian.unpack("irqbalance") / "usr/sbin/irqbalance"
    except debian.NotInstalled as error:
        pytest.skip(str(error))
    with tempfile.TemporaryDirectory() as short:  # a socket's path has at most 107 characters
        node = Node(Path(short), program, tmp_path)
        try:
            node.start()
            yield node
        finally:
            node.kill()


def test_ban_is_read_back_over_agents_and_lifted(node: Node) -> None:
    """The ban is united with the operator's, outlives the agent that sent it, and is lifted by the next one."""
    assert node.setup() == Setup(OPERATORS, 1)
    node.until_banned(node.balancer(), POD, OPERATORS | POD)
    following = node.balancer()
    node.until_banned(following, POD, OPERATORS | POD)
    node.until_banned(following, EMPTY, OPERATORS)
    until_equal("record", lambda: (following.keep_off(EMPTY).reason, following.has_banned), ("", False))


def test_longest_list_is_taken_over_and_a_longer_one_not_sent(node: Node) -> None:
    """The longest accepted list is applied; a longer one is not sent, because irqbalance truncates it."""
    longest, longer = CPUSet([*range(13), *range(13, 276, 2)]), CPUSet([*range(5), *range(5, 272, 2)])
    assert [len(cpus_text(it)) for it in (longest, longer)] == [MOST_LETTERS, MOST_LETTERS + 1]
    balancer = node.balancer()
    node.until_banned(balancer, longest, OPERATORS | longest)
    assert "this one is longer" in balancer.keep_off(longer).reason
    assert node.setup().banned == OPERATORS | longest


def test_restarted_irqbalance_is_banned_again(node: Node) -> None:
    """A killed irqbalance leaves its socket; the next one starts with its environment's ban and gets the agent's."""
    balancer = node.balancer()
    node.until_banned(balancer, POD, OPERATORS | POD)
    node.kill()
    assert [it.name.startswith("irqbalance") for it in node.folder.iterdir()] == [True]
    node.start()
    node.until_banned(balancer, POD, OPERATORS | POD)


def test_interrupts_to_leave_alone_are_read_back(node: Node) -> None:
    """Kept interrupts are added to irqbalance's list of ignored ones, and removed from it."""
    numbers = sorted(it.name for it in Path("/proc/irq").iterdir() if it.name.isdecimal())[:2]
    ban = node.interrupts()
    assert ban.leave(numbers) == Unkept()
    assert node.setup().interrupts == frozenset(map(int, numbers))
    assert node.interrupts().restore()
    assert node.setup().interrupts == frozenset()
