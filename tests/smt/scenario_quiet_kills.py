"""Inside the guest: agents that are killed while quiet CPUs change, and the settings after the next agent's start."""

from __future__ import annotations

import os
import random
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from agent.quiet.interfaces import RecordFile
from pinning.contract import CRANE_CPU_MANAGER, NOISE_POLICY
from pinning.machine.cpuset import CPUSet, union
from tests.environments.guest.inside import WORK, Node, online, report
from tests.environments.guest.polling import wait_until
from tests.smt.quiet_files import IRQ, affinities, limit, quieted, settings

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

EXCLUSIVE: Final = {CRANE_CPU_MANAGER: "exclusive"}
QUIET: Final = {**EXCLUSIVE, f"{NOISE_POLICY}/pod": "quiet"}
MOST: Final = 20  # microseconds, as configured
PODS: Final = {"again": 2, "another": 1}  # CPUs of the pods; the first pod exists at the start
BOUNDS: Final = ("0", "100", "5")
RECORDS: Final = WORK / "state" / RecordFile.INTERRUPTS  # saved before interrupts are moved
ROUND_SECONDS: Final = 0.1  # about what a round takes from its records on


def kills(node: Node) -> None:
    """Kill agents at random moments of a change, and report settings that the next agent leaves wrong."""
    if os.environ["QUIET_KILLS"] == "0":
        return
    seed = int(os.environ["SEED"])
    chance = random.Random(seed)  # noqa: S311 no secret
    mix(chance)
    node.agent.start()
    node.edit("again", PODS["again"], EXCLUSIVE)
    node.add("another", PODS["another"], EXCLUSIVE)
    node.settle()
    churn = Churn(node, chance, settings())
    report("quiet churn", seed=seed, originals=churn.originals, spans=churn.measure())
    for number in range(int(os.environ["QUIET_KILLS"])):
        report("quiet kill", number=number, **churn.kill())
    churn.change(frozenset())
    report("quiet end", wrong=churn.until_right(), settings=settings())


def mix(chance: random.Random) -> None:
    """Write originals of all kinds: on few CPUs and on many, with and without a bound."""
    cpus = sorted(CPUSet.parse(online()))
    for number in affinities():
        few = CPUSet(chance.sample(cpus, chance.randint(1, len(cpus))))
        with suppress(OSError):
            (IRQ / number / "smp_affinity_list").write_text(str(few))
    for cpu in cpus:
        limit(cpu, chance.choice(BOUNDS))


class Churn:
    """Pods that request quiet CPUs and stop requesting them."""

    def __init__(self, node: Node, chance: random.Random, originals: dict[str, str]) -> None:
        self.originals = originals
        self._node, self._chance = node, chance
        self._quiet: AbstractSet[str] = frozenset()
        self._spans = {
            False: 0.0,
            True: 0.0,
        }  # seconds that a change takes, by whether an agent starts for it

    @property
    def cpus(self) -> CPUSet:
        """The expected quiet CPUs."""
        return union(CPUSet.parse(self._node.cpuset(name)) for name in self._quiet)

    def change(self, quiet: AbstractSet[str]) -> None:
        """Write the annotations of the pods."""
        for name in sorted(quiet ^ self._quiet):
            self._node.edit(name, PODS[name], QUIET if name in quiet else EXCLUSIVE)
        self._quiet = quiet

    def wrong(self) -> dict[str, tuple[str, str]]:
        """Return the settings that differ from the expected ones, with both values."""
        now, wanted = settings(), quieted(self.originals, self.cpus, MOST)
        return {name: (now[name], text) for name, text in wanted.items() if now[name] != text}

    def until_right(self) -> dict[str, tuple[str, str]]:
        """Wait until all settings are right, or until a timeout; return the wrong ones."""
        found: list[dict[str, tuple[str, str]]] = []

        def is_right() -> bool:
            found.append(self.wrong())
            return not found[-1]

        wait_until(is_right, rest=0.05)
        return found[-1]

    def measure(self) -> dict[bool, float]:
        """Measure how long a change takes, because agents are killed within that time."""
        for starts in (False, True):
            began = time.monotonic()
            self._begin(frozenset(PODS) - self._quiet, starts=starts)
            self.until_right()
            self._spans[starts] = time.monotonic() - began
        return self._spans

    def kill(self) -> dict[str, object]:
        """Change pods while an agent runs or starts, kill it, start the next one, and wait for the right settings."""
        starts, old = self._chance.random() < 0.5, settings()
        chosen = frozenset(name for name in PODS if self._chance.random() < 0.5)
        records = changed_at()
        self._begin(frozenset(PODS) - self._quiet if chosen == self._quiet else chosen, starts=starts)
        moment = self._wait(records, self._spans[starts])
        self._node.agent.kill()
        left = self.wrong()
        is_amid = bool(left) and settings() != old
        self._node.agent.start()
        wrong = self.until_right()
        return {"starts": starts, "moment": moment, "amid": is_amid, "quiet": str(self.cpus), "wrong": wrong}

    def _begin(self, quiet: AbstractSet[str], *, starts: bool) -> None:
        """Change pods while an agent runs, or before one starts."""
        if starts:
            self._node.agent.kill()
        self.change(quiet)
        if starts:
            self._node.agent.start()

    def _wait(self, records: int, span: float) -> str:
        """Wait for a random moment of the whole change, or of its writes, which begin with the records."""
        if self._chance.random() < 0.5:
            moment = self._chance.random() * span
            time.sleep(moment)
            return f"{moment:.2f} s after the change"
        wait_until(lambda: changed_at() != records, rest=0.001)
        moment = self._chance.random() * ROUND_SECONDS
        time.sleep(moment)
        return f"{moment:.2f} s after the records"


def changed_at() -> int:
    """Return when the records of interrupts were last written, or 0 without records."""
    with suppress(FileNotFoundError):
        return RECORDS.stat().st_mtime_ns
    return 0
