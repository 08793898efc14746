"""Rounds of the keeper with its parts: interrupts, irqbalance and their files."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from agent.errors import Unavailable
from agent.node_state import CRASHED, QuietPart, QuietResult
from agent.quiet import balancer, taken
from agent.quiet.balancer import Balancer
from agent.quiet.interfaces import Part
from agent.quiet.interrupts import DEFAULT
from agent.quiet.keeper import QuietKeeper
from agent.quiet.mover import InterruptMover
from agent.quiet.taken import TakenStore
from agent.reconcile.restorable import Restorable
from pinning.contract import QuietWord
from pinning.machine.interrupts import Quiet
from tests.agent.quiet.fakes import FakeInterrupts, FakeIrqbalance, cpus, kept_of


class Whole:
    """A keeper with its parts."""

    def __init__(self, folder: Path) -> None:
        self.kernel = FakeInterrupts({DEFAULT: cpus("0-7"), "25": cpus("0-7"), "26": cpus("0-1")})
        self.kernel.names = {"25": "eth0"}
        self.daemon = FakeIrqbalance()
        self.order: list[str] = []
        self.now = 0.0
        self.mover = InterruptMover(
            self.kernel, TakenStore(Restorable(folder / taken.FILE, "boot")), lambda: self.now
        )
        self.tells = Balancer(self.daemon, Restorable(folder / balancer.FILE, "boot"), lambda: self.now)
        self.kept = kept_of(self.kernel, self.daemon, folder, lambda: self.now)
        self.keeper = QuietKeeper(self.kernel, self.mover, self.tells, self.kept)
        self.daemon.order = self.kernel.order = self.order

    def with_part(self, part: object, why_still: str = "") -> None:
        """Start another keeper, which has a part beside interrupts."""
        parts = {QuietWord.WORKQUEUES: cast("Part", part)}
        self.keeper = QuietKeeper(self.kernel, self.mover, self.tells, self.kept, parts, why_still)

    def round(self, quiet: str, fully: str | None = None) -> QuietResult | None:
        """Run one round, on CPUs that are fully quiet unless the test says otherwise."""
        self.now += 10.0
        result = self.keeper.round(cpus(quiet), cpus(quiet if fully is None else fully))
        self.daemon.interval()
        return result


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
    """The reason has the CPUs that are left."""
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
    result = whole.round("4-5")
    assert result
    assert result.reason == "interrupts that could not be moved: No space left on device"
    whole.kernel.refused = {}
    whole.now += 100.0
    whole.round("4-5")
    whole.now += 100.0
    for _ in range(3):
        whole.round("4-5")
        whole.kernel.affinities["25"] = cpus("5")
    whole.round("4-5")
    result = whole.round("4-5")
    assert result
    assert result.reason == "another program moves interrupts back: 25 (eth0)"
    whole.daemon.silence = "no answer in time"
    result = whole.round("4-6")  # irqbalance has not answered about 6 yet
    assert result
    assert result.reason == result.irqbalance == "irqbalance runs and cannot be asked: no answer in time"


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
    """An error of one is the reason of that one alone; the reason of all names it."""
    part = FakePart()
    whole.with_part(part)
    assert whole.round("4-5") == QuietResult(cpus("4-5"), parts=(QuietPart(QuietWord.WORKQUEUES),))
    whole.kernel.missing = "no interrupts"
    part.answer = Unavailable("no masks")
    result = whole.round("4-5")
    assert result
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
    """A bug in one keeps neither the others from their work nor a reset from restoring them; the log has the trace."""
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
    """Interrupts are kept off all of them, the other parts follow the fully quiet ones."""
    part = FakePart()
    whole.with_part(part)
    result = whole.round("4-5", "5")
    assert result
    assert (result.cpus, result.part_cpus) == (cpus("4-5"), cpus("5"))
    assert part.asked == ["5"]
    assert whole.kernel.affinities["25"] == cpus("0-3,6-7")


def test_conflicts_of_parts_count() -> None:
    """The condition of the node has those of interrupts and of parts."""
    parts = (QuietPart(QuietWord.WORKQUEUES, "another program", ("the mask",)),)
    assert QuietResult(conflicts=("25 (eth0)",), parts=parts).all_conflicts == ("25 (eth0)", "the mask")


def test_keeper_is_idle_and_restores_with_its_parts(whole: Whole) -> None:
    """A part that has something to restore needs rounds, and a reset needs all of them."""
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
    """Those that were moved before are restored; then none is read."""
    part = FakePart()
    whole.round("4-5")
    whole.with_part(part, "switched off")
    for _ in range(2):
        result = whole.round("4-5")
        assert result
        assert (result.reason, result.is_off) == ("switched off", True)
    assert whole.kernel.affinities[DEFAULT] == cpus("0-7")
    assert not whole.mover.has_taken
    whole.kernel.missing = "not read"
    result = whole.round("4-5")
    assert result
    assert result.reason == "switched off"
    assert part.asked == ["4-5"] * 3


def test_failed_restore_is_reported_where_interrupts_are_switched_off(whole: Whole) -> None:
    """What the operator chose does not hide it."""
    whole.round("4-5")
    whole.with_part(FakePart(), "switched off")
    whole.kernel.refused = {"25": "No space left on device"}
    result = whole.round("4-5")
    assert result
    assert result.reason == "interrupts that could not be moved: No space left on device"
    assert not result.is_off


def test_missing_folder_is_the_reason(whole: Whole) -> None:
    """Nothing is changed, and the restore reports failure until the folder is back."""
    whole.round("4-5")
    whole.kernel.missing = "/host/proc/irq: No such file or directory"
    result = whole.round("4-5")
    assert result
    assert result.reason == whole.kernel.missing
    assert not whole.keeper.restore()
    whole.kernel.missing = ""
    assert whole.keeper.restore()
    assert whole.kernel.affinities[DEFAULT] == cpus("0-7")


def test_nothing_is_moved_beside_an_irqbalance_that_cannot_be_asked(whole: Whole) -> None:
    """Otherwise irqbalance would move the interrupts back."""
    whole.daemon.silence = "no answer in time"
    result = whole.round("4-5")
    assert result
    assert result.reason == "irqbalance runs and cannot be asked: no answer in time"
    assert whole.kernel.writes == []


def test_moves_of_an_unsettled_irqbalance_are_no_conflict(whole: Whole) -> None:
    """It does not act by its ban yet."""
    whole.daemon.is_deaf = True
    for _ in range(5):
        result = whole.round("4-5")
        assert result == QuietResult(cpus("4-5"))
        assert not whole.keeper.has_settled
        whole.kernel.affinities["25"] = cpus("5")


def test_keeper_has_settled_after_moves_and_ban(whole: Whole) -> None:
    """Without work it has settled two intervals of irqbalance after its list was read back."""
    settled = []
    for quiet in ("4-5", "4-5", "4-5", "4-5", ""):
        whole.round(quiet)
        settled.append(whole.keeper.has_settled)
    assert settled == [False, False, False, True, False]


def test_replaced_ban_is_among_the_conflicts(whole: Whole) -> None:
    """The condition `CorepinNoiseConflict` reports it."""
    for cpu in "123":
        whole.round("4-5")
        whole.round("4-5")
        whole.daemon.banned = whole.daemon.pending = cpus(cpu)
        whole.now += 60.0
        whole.round("4-5")
    whole.now += 60.0
    result = whole.round("4-5")
    assert result
    assert result.reason == "another program keeps replacing the CPUs that irqbalance must not use"
    assert result.conflicts == ("CPUs that irqbalance must not use",)


@pytest.mark.parametrize("name", [taken.FILE, balancer.FILE])
def test_unusable_state_file_is_the_reason(tmp_path: Path, name: str) -> None:
    """Nothing is moved, the restore fails, and rounds go on without quiet CPUs until the file can be read."""
    (tmp_path / name).write_text('{"version": 2, "bootID": "boot", "originals": {}}')
    whole = Whole(tmp_path)
    for quiet in ("4-5", ""):
        result = whole.round(quiet)
        assert result
        assert f"{name} has version 2, and this corepin reads version 1: install" in result.reason
        assert not whole.keeper.is_idle
    assert whole.kernel.writes == []
    assert not whole.keeper.restore()
    (tmp_path / name).unlink()
    assert whole.round("4-5") == QuietResult(cpus("4-5"))


def test_change_during_a_round_is_retried(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    """The round has no result."""
    online = iter([cpus("0-7"), cpus("0-6"), cpus("0-6"), cpus("0-6")])
    monkeypatch.setattr(whole.kernel, "online", lambda: next(online))
    assert whole.round("4-5") is None
    assert whole.round("4-5") == QuietResult(cpus("4-5"))
