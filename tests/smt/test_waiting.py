"""Timeouts of the guest and for it, without a machine: time without CPU on a busy host does not count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.environments.guest import polling
from tests.environments.guest.guest import LEAST_SHARE, _Files
from tests.environments.guest.runnable import RunnableClock

if TYPE_CHECKING:
    from pathlib import Path

SECOND = 10**9  # nanoseconds
LOCKED = "watchdog: BUG: soft lockup - CPU#3 stuck for {}s! [migration/3:82]\n"
STARVED = "rcu: rcu_preempt kthread starved for {} jiffies! g5 f0x0 RCU_GP_WAIT_FQS(5)\n"


class Host:
    """A process with a child of two threads, its waits, and the time."""

    def __init__(self, proc: Path) -> None:
        self._proc, self.now = proc, 0.0
        self._waits = {"1": 0, "2": 0, "3": 0}
        self.wait()
        self.clock = RunnableClock(1, proc, lambda: self.now)

    def wait(self, **seconds: float) -> None:
        """Add time in which threads wait for a CPU."""
        for name, task, children in (("1", "1", "2 "), ("2", "2", ""), ("2", "3", "")):
            self._waits[task] += int(seconds.get(f"thread_{task}", 0) * SECOND)
            folder = self._proc / name / "task" / task
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "schedstat").write_text(f"5 {self._waits[task]} 7\n")
            (folder / "children").write_text(children)

    def goes_on(self, seconds: float, **waits: float) -> float:
        """Let time pass, and return the clock's value."""
        self.now += seconds
        self.wait(**waits)
        return self.clock.seconds()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Return a host whose threads have not waited."""
    return Host(tmp_path / "proc")


def test_clock_stands_still_while_a_machine_has_no_cpu(host: Host) -> None:
    """The clock advances by wall time less the longest wait of a thread, children included."""
    assert host.goes_on(10) == 10
    assert host.goes_on(360, thread_1=1, thread_2=100, thread_3=359) == 11
    assert host.goes_on(10, thread_2=5) == 16
    assert host.goes_on(10, thread_2=11) == 16  # counters are read one after the other


def test_clock_is_wall_time_without_counters(tmp_path: Path) -> None:
    """For a process that has exited, or a kernel without the counters, the clock is wall time."""
    now = [0.0]
    clock = RunnableClock(1, tmp_path, lambda: now[0])

    now[0] = 7.0
    assert clock.seconds() == 7
    now[0] = 7.5  # read once a second
    assert clock.seconds() == 7


def test_share_is_of_the_last_seconds(host: Host) -> None:
    """The share of CPU time covers the last seconds; it is 1 before the first sample."""
    assert host.clock.share(100) == 1
    for waited in (0, 9, 10):
        host.goes_on(10, thread_3=waited)

    assert host.clock.share(10) == 0
    assert host.clock.share(20) == host.clock.share(11) == pytest.approx(0.05)
    assert host.clock.share(1000) == pytest.approx(11 / 30)


@pytest.mark.parametrize(("waits", "is_lost"), [(0, True), (110, True), (119.5, False)])
@pytest.mark.parametrize("said", [[LOCKED.format(118)], [STARVED.format(118 * 250)] * 2])
def test_messages_of_a_machine_that_had_no_cpu_do_not_count(
    host: Host, said: list[str], waits: float, is_lost: bool, tmp_path: Path
) -> None:
    """Stall messages of a machine count only if it could run for a part of the time that they name."""
    files = _Files(tmp_path / "0")
    host.goes_on(120, thread_2=waits)
    for line in said:
        with files.console.open("a") as console:
            console.write(line)
        assert files.is_locked(host.clock) is (is_lost and "lockup" in line)

    assert files.repeats_a_stall(host.clock) is is_lost
    host.goes_on(1000)  # it goes on, and the old messages stay what they were
    assert files.repeats_a_stall(host.clock) is is_lost
    assert LEAST_SHARE > 0.5 / 120


class GuestTime:
    """The clock of a guest that the host lets run for a moment now and then."""

    def __init__(self, pause: float) -> None:
        self._pause, self.now = pause, 0.0

    def monotonic(self) -> float:
        """Return the time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += max(seconds, self._pause)


@pytest.mark.parametrize(
    ("pause", "after", "expected"),
    [
        pytest.param(0.0, 3.0, True, id="at-once"),
        pytest.param(0.0, 400.0, False, id="never"),
        pytest.param(60.0, 6000.0, True, id="starved"),
    ],
)
def test_guest_waits_for_polls_and_for_time(
    pause: float, after: float, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guest gives up only after a number of polls and a time, so time without CPU alone ends no wait."""
    time = GuestTime(pause)
    monkeypatch.setattr(polling, "time", time)

    assert polling.wait_until(lambda: time.now >= after) is expected
