"""Rounds of the keeper with its parts: interrupts, irqbalance and their files, also after a kill at any moment."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from random import randrange
from typing import cast

import pytest

from agent.errors import Unavailable
from agent.node_state import CRASHED, QuietPart, QuietResult
from agent.quiet.balancer import Balancer
from agent.quiet.interfaces import Part, RecordFile
from agent.quiet.interrupts import DEFAULT
from agent.quiet.keeper import QuietKeeper
from agent.quiet.mover import InterruptMover
from agent.quiet.taken import TakenStore
from agent.reconcile.restorable import Restorable
from pinning.contract import QuietWord
from pinning.machine.interrupts import Quiet
from tests.agent.quiet.fakes import FakeInterrupts, FakeIrqbalance, cpus, kept_of
from tests.agent.quiet.killed_agents import KILLS


class Whole:
    """A keeper with its parts."""

    def __init__(self, folder: Path) -> None:
        self.kernel = FakeInterrupts({DEFAULT: cpus("0-7"), "25": cpus("0-7"), "26": cpus("0-1")})
        self.kernel.names = {"25": "eth0"}
        self.daemon = FakeIrqbalance()
        self.order: list[str] = []
        self.now = 0.0
        self.mover = InterruptMover(
            self.kernel, TakenStore(Restorable(folder / RecordFile.INTERRUPTS, "boot")), lambda: self.now
        )
        self.tells = Balancer(
            self.daemon, Restorable(folder / RecordFile.BANNED_CPUS, "boot"), lambda: self.now
        )
        self.kept = kept_of(self.kernel, self.daemon, folder, lambda: self.now)
        self.keeper = QuietKeeper(self.kernel, self.mover, self.tells, self.kept)
        self.daemon.order = self.kernel.order = self.order

    def with_part(self, part: object, why_still: str = "") -> None:
        """Start another keeper, which has a part besides interrupts."""
        parts = {QuietWord.WORKQUEUES: cast("Part", part)}
        self.keeper = QuietKeeper(self.kernel, self.mover, self.tells, self.kept, parts, why_still)

    def round(self, quiet: str, fully: str | None = None) -> QuietResult:
        """Run one round; unless the test says otherwise, all CPUs are fully quiet."""
        self.now += 10.0
        result = self.keeper.round(cpus(quiet), cpus(quiet if fully is None else fully))
        self.daemon.interval()
        assert result
        return result

    def reason(self, quiet: str) -> str:
        """Run one round and return its reason."""
        return self.round(quiet).reason


@pytest.fixture
def whole(tmp_path: Path) -> Whole:
    """Return a keeper without a round yet."""
    return Whole(tmp_path)


def test_interrupts_are_moved_and_restored_in_order(whole: Whole) -> None:
    """First irqbalance is banned, then default and interrupts move; the restore is in reverse order."""
    assert whole.round("4-5") == QuietResult(cpus("4-5"))
    assert whole.order == ["ban", DEFAULT, "25"]
    whole.order.clear()
    assert whole.round("") == QuietResult()
    assert whole.order == ["25", DEFAULT, "ban"]
    assert not whole.keeper.is_idle
    whole.round("")
    assert whole.keeper.is_idle


def test_too_few_other_cpus_restore_everything(whole: Whole) -> None:
    """If too few other CPUs remain, all settings are restored, and the reason names the remaining CPUs."""
    whole.round("4-5")
    whole.kernel.set_online(cpus("3-6"))
    assert whole.round("3-5") == QuietResult(
        cpus("3-5"), "interrupts need 2 online CPUs that are not quiet, and only CPU 6 is left"
    )
    assert whole.kernel.affinities["25"] == cpus("0-7")
    whole.round("3-5")
    assert whole.keeper.is_idle


def test_first_reason_of_a_round_is_reported(whole: Whole) -> None:
    """Errors of irqbalance come first, then foreign writes, then refused writes."""
    whole.kernel.refused = {"25": "No space left on device"}
    assert whole.reason("4-5") == "interrupts that could not be moved: No space left on device"
    whole.kernel.refused = {}
    whole.now += 100.0
    whole.round("4-5")
    whole.now += 100.0
    for _ in range(3):
        whole.round("4-5")
        whole.kernel.affinities["25"] = cpus("5")
    whole.round("4-5")
    assert whole.reason("4-5") == "another program moves interrupts back: 25 (eth0)"
    whole.daemon.silence = "no answer in time"
    result = whole.round("4-6")  # irqbalance has not answered about 6 yet
    assert result.reason == result.irqbalance == "irqbalance runs and does not answer: no answer in time"


class FakePart:
    """A part whose answers the test sets (interface `Part`)."""

    def __init__(self) -> None:
        self.has_taken = False
        self.asked: list[str] = []
        self.answer: QuietPart | Exception | None = QuietPart(QuietWord.WORKQUEUES)
        self.is_restored: bool | Exception = True

    def round(self, quiet: Quiet) -> QuietPart | None:
        """Record a round."""
        self.asked.append(str(quiet.cpus))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def restore(self) -> bool:
        """Restore nothing."""
        if isinstance(self.is_restored, Exception):
            raise self.is_restored
        return self.is_restored


def test_parts_work_whatever_interrupts_came_to(whole: Whole) -> None:
    """Interrupts and other parts work independently: each error is its own reason, and the summary has all."""
    part = FakePart()
    whole.with_part(part)
    assert whole.round("4-5") == QuietResult(cpus("4-5"), parts=(QuietPart(QuietWord.WORKQUEUES),))
    whole.kernel.missing = "no interrupts"
    part.answer = Unavailable("no masks")
    result = whole.round("4-5")
    assert (result.reason, result.parts) == (
        "no interrupts",
        (QuietPart(QuietWord.WORKQUEUES, "no masks"),),
    )
    assert result.why_not == "no interrupts; workqueues: no masks"
    whole.kernel.missing, part.answer = "", None
    assert whole.round("4-5") == QuietResult(cpus("4-5"))


def test_crash_stays_with_its_part(
    whole: Whole, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A crash of one part does not stop rounds and resets of the others; the log has the traceback."""
    part = FakePart()
    whole.with_part(part)
    part.answer = part.is_restored = OSError(5, "Input/output error")
    crashed = QuietPart(QuietWord.WORKQUEUES, CRASHED)
    assert whole.round("4-5") == QuietResult(cpus("4-5"), parts=(crashed,))
    assert whole.kernel.affinities["25"] == cpus("0-3,6-7")
    assert not whole.keeper.restore()
    assert whole.kernel.affinities["25"] == cpus("0-7")
    part.answer = done = QuietPart(QuietWord.WORKQUEUES)
    monkeypatch.setattr(whole.mover, "round", lambda *_, **__: 1 // 0)
    assert whole.round("4-5") == QuietResult(cpus("4-5"), CRASHED, parts=(done,))
    assert [it.message for it in caplog.records if it.exc_info] == [
        "round of quiet CPUs crashed",
        "quiet CPUs not restored",
        "round of quiet CPUs crashed",
    ]


def test_parts_leave_cpus_alone_that_are_quiet_for_interrupts(whole: Whole) -> None:
    """Interrupts are kept off all quiet CPUs, other parts off the fully quiet ones only."""
    part = FakePart()
    whole.with_part(part)
    result = whole.round("4-5", "5")
    assert (result.cpus, result.part_cpus) == (cpus("4-5"), cpus("5"))
    assert part.asked == ["5"]
    assert whole.kernel.affinities["25"] == cpus("0-3,6-7")


def test_conflicts_of_parts_count() -> None:
    """The node's condition lists conflicts of interrupts and of other parts."""
    parts = (QuietPart(QuietWord.WORKQUEUES, "another program", ("the mask",)),)
    assert QuietResult(conflicts=("25 (eth0)",), parts=parts).all_conflicts == ("25 (eth0)", "the mask")


def test_keeper_is_idle_and_restores_with_its_parts(whole: Whole) -> None:
    """The keeper is idle, and its restore complete, only if all parts are."""
    part = FakePart()
    whole.with_part(part)
    part.has_taken = True
    assert not whole.keeper.is_idle
    part.has_taken, part.is_restored = False, False
    assert whole.keeper.is_idle
    assert not whole.keeper.restore()
    part.is_restored = True
    assert whole.keeper.restore()


def test_interrupts_stay_where_only_parts_are_asked_for(whole: Whole) -> None:
    """If moving interrupts is switched off, earlier moves are restored, and interrupts are not read afterwards."""
    part = FakePart()
    whole.round("4-5")
    whole.with_part(part, "switched off")
    for _ in range(2):
        result = whole.round("4-5")
        assert (result.reason, result.is_off) == ("switched off", True)
    assert whole.kernel.affinities[DEFAULT] == cpus("0-7")
    assert not whole.mover.has_taken
    whole.kernel.missing = "not read"
    assert whole.reason("4-5") == "switched off"
    assert part.asked == ["4-5"] * 3


def test_failed_restore_is_reported_where_interrupts_are_switched_off(whole: Whole) -> None:
    """If moving interrupts is switched off, a failed restore is still reported."""
    whole.round("4-5")
    whole.with_part(FakePart(), "switched off")
    whole.kernel.refused = {"25": "No space left on device"}
    result = whole.round("4-5")
    assert result.reason == "interrupts that could not be moved: No space left on device"
    assert not result.is_off


def test_missing_folder_is_the_reason(whole: Whole) -> None:
    """Without the folder nothing is changed and restores fail, with the missing folder as reason."""
    whole.round("4-5")
    whole.kernel.missing = "/host/proc/irq: No such file or directory"
    assert whole.reason("4-5") == whole.kernel.missing
    assert not whole.keeper.restore()
    whole.kernel.missing = ""
    assert whole.keeper.restore()
    assert whole.kernel.affinities[DEFAULT] == cpus("0-7")


def test_nothing_is_moved_beside_an_irqbalance_that_cannot_be_asked(whole: Whole) -> None:
    """The agent moves no interrupt, because irqbalance would move it back."""
    whole.daemon.silence = "no answer in time"
    assert whole.reason("4-5") == "irqbalance runs and does not answer: no answer in time"
    assert whole.kernel.writes == []


def test_moves_of_an_unsettled_irqbalance_are_no_conflict(whole: Whole) -> None:
    """Until irqbalance has applied the ban, its moves do not count as foreign writes."""
    whole.daemon.is_deaf = True
    for _ in range(5):
        result = whole.round("4-5")
        assert result == QuietResult(cpus("4-5"))
        assert not whole.keeper.has_settled
        whole.kernel.affinities["25"] = cpus("5")


def test_keeper_has_settled_after_moves_and_ban(whole: Whole) -> None:
    """The keeper has settled when it has no work and irqbalance's ban was read back two intervals ago."""
    settled = []
    for quiet in ("4-5", "4-5", "4-5", "4-5", ""):
        whole.round(quiet)
        settled.append(whole.keeper.has_settled)
    assert settled == [False, False, False, True, False]


def test_replaced_ban_is_among_the_conflicts(whole: Whole) -> None:
    """A replaced ban is listed in the condition `CorepinNoiseConflict`."""
    for cpu in "123":
        whole.round("4-5")
        whole.round("4-5")
        whole.daemon.banned = whole.daemon.pending = cpus(cpu)
        whole.now += 60.0
        whole.round("4-5")
    whole.now += 60.0
    result = whole.round("4-5")
    assert result.reason == "another program keeps replacing the CPUs that irqbalance must not use"
    assert result.conflicts == ("CPUs that irqbalance must not use",)


@pytest.mark.parametrize("name", [RecordFile.INTERRUPTS, RecordFile.BANNED_CPUS])
def test_unusable_state_file_is_the_reason(tmp_path: Path, name: str) -> None:
    """With an unusable file nothing is moved and restores fail, and rounds retry until the file is readable."""
    (tmp_path / name).write_text('{"version": 2, "bootID": "boot", "originals": {}}')
    whole = Whole(tmp_path)
    for quiet in ("4-5", ""):
        result = whole.round(quiet)
        assert f"{name} has version 2, and this corepin reads version 1: install" in result.reason
        assert not whole.keeper.is_idle
    assert whole.kernel.writes == []
    assert not whole.keeper.restore()
    (tmp_path / name).unlink()
    assert whole.round("4-5") == QuietResult(cpus("4-5"))


def test_change_during_a_round_is_retried(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU hotplug during a round makes the round return no result, and it is repeated."""
    online = iter([cpus("0-7"), cpus("0-6"), cpus("0-6"), cpus("0-6")])
    monkeypatch.setattr(whole.kernel, "online", lambda: next(online))
    assert whole.keeper.round(cpus("4-5"), cpus("4-5")) is None
    assert whole.round("4-5") == QuietResult(cpus("4-5"))


def test_killed_agents_leave_quiet_cpus_and_originals(tmp_path: Path) -> None:
    """After kills the next agent keeps CPUs quiet, and a reset restores every original."""
    seed = randrange(10**6)  # noqa: S311 - other moments in each run
    command = [sys.executable, "-m", "tests.agent.quiet.killed_agents", str(tmp_path), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = re.fullmatch(r"killed in the middle of a round: ([0-9]+)", done.stdout)
    assert found, f"seed {seed}:\n{done.stdout}"
    assert 0 < int(found[1]) <= KILLS
