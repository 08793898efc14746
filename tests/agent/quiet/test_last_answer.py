"""An irqbalance that answers only some requests: its last answer counts for a limited time."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest

from agent.errors import Unavailable
from agent.quiet.balancer import LOOK_SECONDS, Balancer
from agent.quiet.interrupt_ban import InterruptBan
from agent.quiet.irqbalance import SILENT_SECONDS, Daemon
from agent.reconcile.restorable import Restorable
from pinning.machine.cpuset import CPUSet
from tests.agent.quiet.fakes import FakeIrqbalance

LATE = "no answer in time"


class Beside:
    """An agent beside an irqbalance, one of whose two lists it changes."""

    def __init__(self, folder: Path, which: str) -> None:
        self.daemon = FakeIrqbalance()
        self.now = 0.0
        self.which = which
        saved = Restorable(folder / "saved.json", "boot")
        self.cpus = Balancer(self.daemon, saved, lambda: self.now)
        self.interrupts = InterruptBan(self.daemon, saved, lambda: self.now)

    def ask(self, *numbers: int, silence: str = "") -> str:
        """Look a minute after the last time; return why irqbalance may move interrupts."""
        self.now += LOOK_SECONDS
        self.daemon.silence = silence
        if self.which == "CPUs":
            reason = self.cpus.keep_off(CPUSet(numbers)).reason
        else:
            reason = self.interrupts.leave(map(str, numbers)).reason
        self.daemon.interval()
        return reason

    def restore(self) -> bool:
        """Remove the agent's additions from the list."""
        return self.cpus.restore() if self.which == "CPUs" else self.interrupts.restore()


@pytest.fixture(params=["CPUs", "interrupts"])
def beside(tmp_path: Path, request: pytest.FixtureRequest) -> Beside:
    """Return an agent whose irqbalance has shown that its list has 4 and 5."""
    beside = Beside(tmp_path, request.param)
    assert [beside.ask(4, 5), beside.ask(4, 5)] == ["", ""]
    return beside


def test_silence_in_turns_is_not_reported(beside: Beside) -> None:
    """Single missing answers do not change the reason, which would cost each quiet pod a status write."""
    assert {beside.ask(4, 5, silence=LATE if turn % 2 else "") for turn in range(40)} == {""}


def test_long_silence_is_reported_once_in_ten_minutes(beside: Beside) -> None:
    """After ten minutes without an answer the list counts as unknown; an answer restarts the ten minutes."""
    turns = round(SILENT_SECONDS / LOOK_SECONDS)
    silent = [beside.ask(4, 5, silence=LATE) for _ in range(2 * turns)]
    assert silent[: turns - 1] == [""] * (turns - 1)
    assert all(LATE in reason for reason in silent[turns - 1 :])
    assert beside.ask(4, 5) == ""
    assert [beside.ask(4, 5, silence=LATE) for _ in range(turns - 1)] == [""] * (turns - 1)


def test_silence_about_more_than_was_answered_is_reported(beside: Beside) -> None:
    """A missing answer is reported if the agent's list has more than the answered one."""
    assert beside.ask(4, silence=LATE) == ""
    assert LATE in beside.ask(4, 5, 6, silence=LATE)
    assert beside.ask(4, 5, 6) == ""


def test_an_answer_holds_for_its_process_alone(beside: Beside) -> None:
    """An answer counts only for the process that gave it."""
    beside.daemon.daemon = Daemon(8, 200, Path("/run/irqbalance/irqbalance8.sock"))
    assert LATE in beside.ask(4, 5, silence=LATE)


def test_list_that_cannot_be_corrected_stays_a_reason(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If irqbalance shows another list that cannot be corrected, the reason stays without an answer too."""

    def unsent(*_: object) -> None:
        raise Unavailable(LATE)

    for name in ("ban", "ban_interrupts"):
        monkeypatch.setattr(beside.daemon, name, unsent)
    beside.daemon.banned = beside.daemon.pending = CPUSet([])
    beside.daemon.alone = frozenset()
    reasons = [beside.ask(4, 5, silence=LATE if turn % 2 else "") for turn in range(6)]
    assert len({reason for reason, _ in groupby(reasons)}) == 1
    assert LATE in reasons[0]


def test_sent_list_that_was_not_read_back_is_not_known(tmp_path: Path) -> None:
    """A list that was sent and never read back counts as unknown."""
    beside = Beside(tmp_path, "CPUs")
    beside.daemon.is_deaf = True
    assert beside.ask(4) == ""
    assert LATE in beside.ask(4, silence=LATE)


def test_restore_reports_silence_at_once(beside: Beside, caplog: pytest.LogCaptureFixture) -> None:
    """A restore without an answer fails at once, without waiting ten minutes."""
    beside.daemon.silence = LATE
    assert not beside.restore()
    assert [LATE in str(vars(record)["facts"]) for record in caplog.records] == [True]
