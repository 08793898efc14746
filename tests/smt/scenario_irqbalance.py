"""Inside the guest: Debian's irqbalance with real interrupts, before, while and after a pod requests quiet CPUs."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.quiet.irqbalance import Irqbalance
from pinning.contract import CRANE_CPU_MANAGER, NOISE_POLICY
from pinning.machine.cpuset import EMPTY, CPUSet
from tests.environments.guest.inside import WORK, Node, online, report
from tests.environments.guest.polling import ANSWER_SECONDS, wait_until
from tests.smt.quiet_files import (
    counts,
    default_affinity,
    grown,
    ping,
    place_interrupts,
    reaches,
    traffic,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

EXCLUSIVE: Final = {CRANE_CPU_MANAGER: "exclusive"}
QUIET: Final = {**EXCLUSIVE, f"{NOISE_POLICY}/pod": "quiet"}
POD: Final = "beside"
FOLDER: Final = Path("/run/irqbalance")
LOG: Final = WORK / "irqbalance.log"
INTERVAL: Final = 1  # second, the least
MOVED_BACK: Final = "interrupts moved by another program"  # message in the agent's log
ROUND: Final = "-" * 77  # message that irqbalance logs at the start of each round


class Balancing:
    """The irqbalance of the guest."""

    def __init__(self) -> None:
        self._client = Irqbalance(FOLDER, Path("/proc"), ANSWER_SECONDS)

    def banned(self) -> CPUSet | None:
        """Return the CPUs that irqbalance must not use; None while it has no socket."""
        daemon = self._client.with_socket()
        return self._client.setup(daemon).banned if daemon else None

    def rounds(self) -> int:
        """Return the number of irqbalance's rounds."""
        return LOG.read_text().splitlines().count(ROUND)


def balanced(node: Node) -> None:
    """Report where irqbalance puts interrupts before, while and after a pod requests quiet CPUs."""
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
        wait_until(lambda: bool(reaches(cpus)) and default_affinity() == everywhere)
        tell("before", cpus, balancing)
        node.edit(POD, 1, QUIET)
        wait_until(lambda: balancing.banned() == cpus and cpus.isdisjoint(default_affinity()))
        after = balancing.rounds() + 2  # after two rounds irqbalance has applied the ban
        wait_until(lambda: balancing.rounds() >= after and not reaches(cpus))
        balance(cpus, balancing)
        node.remove(POD)
        wait_until(
            lambda: balancing.banned() == EMPTY and bool(reaches(cpus)) and default_affinity() == everywhere
        )
        tell("ended", cpus, balancing)
    node.agent.kill()
    ignored(node)


def ignored(node: Node) -> None:
    """Report what irqbalance does with the interrupts of quiet CPUs if the agent does not ban it."""
    config = WORK / "config.yaml"
    before = config.read_text()
    config.write_text(before.replace("quiet: {", "quiet: {irqbalance: ignore, "))
    node.agent.start()
    node.add(POD, 1, EXCLUSIVE)
    node.settle()
    cpus = CPUSet.parse(node.cpuset(POD))
    place_interrupts(cpus)  # so that the agent moves all of them
    node.edit(POD, 1, QUIET)
    wait_until(lambda: not reaches(cpus) and cpus.isdisjoint(default_affinity()))
    kept_off = not reaches(cpus)
    seen = len(moved_back())
    reached: set[str] = set()

    def is_undone() -> bool:
        reached.update(reaches(cpus))  # until the agent's next round
        return bool(reached) or len(moved_back()) > seen

    with running() as balancing:
        wait_until(is_undone)
        tell(
            "ignored",
            cpus,
            balancing,
            kept_off=kept_off,
            reached=sorted(reached),
            moved_back=moved_back()[seen:],
        )
    node.remove(POD)
    wait_until(lambda: default_affinity() == CPUSet.parse(online()))
    node.agent.kill()
    config.write_text(before)


def moved_back() -> list[str]:
    """Return the agents' log messages about interrupts that another program moved back."""
    return [line for line in (WORK / "agent.log").read_text().splitlines() if MOVED_BACK in line]


@contextmanager
def running() -> Iterator[Balancing]:
    """Run irqbalance until the block ends."""
    FOLDER.mkdir(exist_ok=True)
    words = [os.environ["IRQBALANCE"], "--foreground", "--debug", f"--interval={INTERVAL}"]
    with (
        LOG.open("wb") as log,
        subprocess.Popen(["stdbuf", "-oL", *words], stdout=log, stderr=log) as process,
    ):
        balancing = Balancing()
        wait_until(lambda: balancing.banned() is not None)
        try:
            yield balancing
        finally:
            process.kill()


def balance(cpus: CPUSet, balancing: Balancing) -> None:
    """Use devices while irqbalance balances many times and places the interrupts of a reloaded driver."""
    began = balancing.rounds()
    end = began + int(os.environ["IRQBALANCE_ROUNDS"])
    subprocess.run(["modprobe", "-r", "virtio_rng"], check=True)
    subprocess.run(["modprobe", "virtio_rng"], check=True)  # counts of interrupts restart at 0
    reached = set(reaches(cpus))
    use_devices()  # a written affinity holds from the next interrupt on
    report("irqbalance begins")  # the same for the device of reports
    before = counts()

    def has_balanced(rounds: int) -> bool:
        use_devices()
        reached.update(reaches(cpus))
        return balancing.rounds() >= rounds

    for rounds in range(began + 1, end + 1):
        if not wait_until(partial(has_balanced, rounds)):
            break
    tell(
        "quiet",
        cpus,
        balancing,
        fired=grown(before),
        rounds=balancing.rounds() - began,
        reached=sorted(reached),
    )


def use_devices() -> None:
    """Cause interrupts of the host's file system, of the network card and of the driver."""
    traffic()
    ping()
    with Path("/dev/hwrng").open("rb", buffering=0) as device:
        device.read(64)


def tell(step: str, cpus: CPUSet, balancing: Balancing, **values: object) -> None:
    """Report irqbalance's banned CPUs, and the interrupts that may fire on the pod's CPUs."""
    report(
        "irqbalance",
        step=step,
        cpus=str(cpus),
        banned=str(balancing.banned()),
        default=str(default_affinity()),
        reaches=reaches(cpus),
        **values,
    )
