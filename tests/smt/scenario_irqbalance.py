"""Inside the guest: Debian's irqbalance, which moves real interrupts, before, while and after a pod asks for quiet CPUs."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.quiet.irqbalance import Irqbalance
from pinning.contract import CRANE_CPU_MANAGER, NOISE_POLICY
from pinning.machine.cpuset import EMPTY, CPUSet
from tests.environments.guest.inside import SECONDS, WORK, Node, online, report
from tests.smt.quiet_files import counts, default_affinity, grown, place_interrupts, reaches, traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EXCLUSIVE: Final = {CRANE_CPU_MANAGER: "exclusive"}
QUIET: Final = {**EXCLUSIVE, f"{NOISE_POLICY}/pod": "quiet"}
POD: Final = "beside"
FOLDER: Final = Path("/run/irqbalance")
LOG: Final = WORK / "irqbalance.log"
INTERVAL: Final = 1  # second, the least
ROUND: Final = "-" * 77  # what it logs at the begin of each


class Balancing:
    """The irqbalance of the guest."""

    def __init__(self) -> None:
        self._client = Irqbalance(FOLDER, Path("/proc"), SECONDS)

    def banned(self) -> CPUSet | None:
        """Return the CPUs that it must not use; None while it has no socket."""
        daemon = self._client.with_socket()
        return self._client.setup(daemon).banned if daemon else None

    def rounds(self) -> int:
        """Return how often it has balanced."""
        return LOG.read_text().splitlines().count(ROUND)


def balanced(node: Node) -> None:
    """Report where irqbalance lets interrupts fire: before a pod asks for quiet CPUs, while it does, and when it has ended."""
    if "IRQBALANCE" not in os.environ:
        return
    node.agent.start()
    node.edit("again", 2, EXCLUSIVE)
    node.add(POD, 1, EXCLUSIVE)
    node.settle()
    cpus = CPUSet.parse(node.cpuset(POD))
    everywhere = CPUSet.parse(online())
    place_interrupts(everywhere - cpus)
    with running() as balancing:
        until(lambda: bool(reaches(cpus)) and default_affinity() == everywhere)
        tell("before", cpus, balancing)
        node.edit(POD, 1, QUIET)
        until(lambda: balancing.banned() == cpus and cpus.isdisjoint(default_affinity()))
        after = balancing.rounds() + 2  # it has acted by the ban
        until(lambda: balancing.rounds() >= after and not reaches(cpus))
        balance(cpus, balancing)
        node.remove(POD)
        until(
            lambda: balancing.banned() == EMPTY and bool(reaches(cpus)) and default_affinity() == everywhere
        )
        tell("ended", cpus, balancing)
    node.agent.kill()


@contextmanager
def running() -> Iterator[Balancing]:
    """Run irqbalance until the block ends."""
    FOLDER.mkdir()
    words = [os.environ["IRQBALANCE"], "--foreground", "--debug", f"--interval={INTERVAL}"]
    with (
        LOG.open("wb") as log,
        subprocess.Popen(["stdbuf", "-oL", *words], stdout=log, stderr=log) as process,
    ):
        balancing = Balancing()
        until(lambda: balancing.banned() is not None)
        try:
            yield balancing
        finally:
            process.kill()


def balance(cpus: CPUSet, balancing: Balancing) -> None:
    """Use devices while irqbalance balances many times, and while it places the interrupts of a driver that is loaded anew."""
    began = balancing.rounds()
    end = began + int(os.environ["IRQBALANCE_ROUNDS"])
    subprocess.run(["modprobe", "-r", "virtio_rng"], check=True)
    subprocess.run(["modprobe", "virtio_rng"], check=True)  # its counts begin anew
    reached = set(reaches(cpus))
    use_devices()  # a written affinity holds from the next interrupt on
    report("irqbalance begins")  # the same for the device of reports
    before = counts()
    deadline = time.monotonic() + SECONDS + 10 * (end - began)
    while balancing.rounds() < end and time.monotonic() < deadline:
        use_devices()
        reached |= reaches(cpus).keys()
    tell(
        "quiet",
        cpus,
        balancing,
        fired=grown(before),
        rounds=balancing.rounds() - began,
        reached=sorted(reached),
    )


def use_devices() -> None:
    """Cause interrupts of the host's file system and of the driver."""
    traffic()
    with Path("/dev/hwrng").open("rb", buffering=0) as device:
        device.read(64)


def tell(step: str, cpus: CPUSet, balancing: Balancing, **values: object) -> None:
    """Report what irqbalance must not use, and which interrupts may fire on the pod's CPUs."""
    report(
        "irqbalance",
        step=step,
        cpus=str(cpus),
        banned=str(balancing.banned()),
        default=str(default_affinity()),
        reaches=reaches(cpus),
        **values,
    )


def until(is_so: Callable[[], bool]) -> None:
    """Wait for a state, or for too long: what is reported then shows it."""
    deadline = time.monotonic() + SECONDS
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.1)
