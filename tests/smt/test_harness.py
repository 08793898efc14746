"""The harness itself, without a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pinning.machine.cpuset import CPUSet
from tests.environments.guest import setup
from tests.environments.guest.facts import lost_cpus, owned_twice
from tests.environments.guest.guest import GuestFailed, Report, _Files, _run, last_lines, read_facts

if TYPE_CHECKING:
    from pathlib import Path


LOCKED_UP = "watchdog: BUG: soft lockup - CPU#13 stuck for 939s! [migration/13:82]"


def test_cut_off_line_is_no_fact() -> None:
    """A line that is cut off at the end of the guest is not reported, and the lines before it are."""
    assert read_facts('{"fact": "a", "x": 1}\n{"fact": "a", "x": 2}\n{"fa') == {"a": [{"x": 1}, {"x": 2}]}


def test_missing_fact_shows_the_console() -> None:
    """Asking for a fact that was not reported fails with the last lines of the guest's console."""
    with pytest.raises(GuestFailed, match="'topology'; its console ended with\nKernel panic"):
        Report({}, "Kernel panic").one("topology")


def test_console_is_shown_without_noise() -> None:
    """QEMU's warnings about features that TCG lacks are left out of the shown console."""
    noise = "qemu: warning: TCG doesn't support requested feature: CPUID.01H:ECX.pcid [bit 17]"

    assert last_lines(f"{noise}\n\r\none\r\ntwo\nthree\n", count=2) == "two\nthree"


def test_newest_kernel_has_its_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel is only chosen if its modules are installed, with which it mounts the host's root."""
    monkeypatch.setattr(setup, "BOOT", tmp_path)
    monkeypatch.setattr(setup, "MODULES", tmp_path / "modules")
    assert setup.newest_kernel() is None
    for name in ("vmlinuz-1", "vmlinuz-2"):
        (tmp_path / name).touch()
    (tmp_path / "modules/1").mkdir(parents=True)

    assert setup.newest_kernel() == tmp_path / "vmlinuz-1"


@pytest.mark.parametrize(
    ("ci", "kind"), [("", setup.SkippedEmulatorMissing), ("true", setup.EmulatorMissing)]
)
def test_missing_emulator_is_a_skip_except_in_ci(
    ci: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without root the tests are skipped with the reason; in CI they fail."""
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr("os.geteuid", lambda: 1000)

    with pytest.raises(setup.EmulatorMissing, match="root") as raised:
        setup.install()
    assert type(raised.value) is kind


def snapshot(bystander: str, *, shared: str) -> dict[str, Any]:
    """Return the report of a guest of eight CPUs with an owner of 2 and 3, 5 and its idle sibling 4."""
    seen = {"owner": "2-3,5", "bystander": bystander}
    return {
        "pods": {pod: {"cpuset": cpus, "allowed": [cpus], "tasks": [1, 2]} for pod, cpus in seen.items()},
        "held": {"owner": {"cpus": "2-3,5", "idle": "4", "policy": "exclusive"}},
        "sets": {"shared": shared},
        "online": "0-7",
    }


@pytest.mark.parametrize(
    ("bystander", "twice"),
    [
        pytest.param("0-1,6-7", "", id="apart"),
        pytest.param("0-2,6-7", "2", id="on-an-owned-cpu"),
        pytest.param("0-1,4", "4", id="on-an-idle-sibling"),
    ],
)
def test_cpu_of_two_pods_is_found(bystander: str, twice: str) -> None:
    """A pod that may run on an owner's CPU, or on its idle sibling, is detected."""
    assert owned_twice(snapshot(bystander, shared="0-1,6-7")) == CPUSet.parse(twice)


def test_lost_cpu_is_found() -> None:
    """An online CPU that is neither owned nor shared is detected."""
    assert lost_cpus(snapshot("0", shared="0-1,6-7")) == CPUSet()
    assert lost_cpus(snapshot("0", shared="0-1,6")) == CPUSet((7,))


@pytest.mark.parametrize(
    ("guest", "boots"),
    [
        pytest.param("echo 'Linux version 6.1' >$CONSOLE; echo booted >>$CONSOLE", True, id="speaks"),
        pytest.param("echo 'Kernel panic' >$CONSOLE", False, id="ends-before"),
        pytest.param("echo 'smp: Bringing up secondary CPUs' >$CONSOLE; exec sleep 1000", False, id="hangs"),
        pytest.param(f"while sleep 0.2; do echo '{LOCKED_UP}' >>$CONSOLE; done", False, id="locks-up"),
        pytest.param(
            "for line in 1 2 3 4 5 6; do echo $line >>$CONSOLE; sleep 0.2; done; echo booted >>$CONSOLE",
            True,
            id="slow",
        ),
    ],
)
def test_start_that_hangs_or_fails_is_noticed(
    guest: str, boots: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that exits, or prints nothing, before its first program is ended; a slow one is not."""
    monkeypatch.setattr("tests.environments.guest.guest.SILENT_SECONDS", 5.0 if boots else 1.0)
    files = _Files(tmp_path / "0")
    _run(["sh", "-c", guest.replace("$CONSOLE", str(files.console))], files, seconds=60)

    assert files.has_booted() is boots


def starved(grace_period: str) -> str:
    """Return the line of a kernel that cannot end a grace period."""
    return f"rcu: rcu_preempt kthread starved for 5780 jiffies! {grace_period} f0x0 RCU_GP_WAIT_FQS(5)"


@pytest.mark.parametrize(
    ("said", "silent_seconds"),
    [
        pytest.param([starved("g1")], 0.5, id="falls silent"),
        pytest.param([starved("g1"), starved("g1")], 60.0, id="says it again and again"),
        pytest.param([LOCKED_UP], 60.0, id="locks up"),
    ],
)
def test_machine_that_lost_its_timers_is_given_up(
    said: list[str], silent_seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine whose kernel stalls, with or without repeated messages, is ended."""
    assert run_guest(tmp_path, monkeypatch, silent_seconds, said, "exec sleep 1000").has_stalled


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("Oops: int3: 0000 [#1] PREEMPT SMP NOPTI", True),  # Linux 6.12
        ("int3: 0000 [#1] PREEMPT SMP NOPTI", True),
        ("Oops: general protection fault, probably for non-canonical address: 0000 [#1] SMP NOPTI", False),
        ("Kernel panic - not syncing: Fatal exception in interrupt", False),
    ],
)
def test_kernel_that_ends_at_its_own_breakpoint_is_noticed(
    line: str, is_one: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A panic at the kernel's own breakpoint restarts the machine, because TCG causes it; other panics are failures."""
    assert run_guest(tmp_path, monkeypatch, 60.0, [line], "true").has_trapped() is is_one


@pytest.mark.parametrize(
    "said",
    [["booted again"], [starved("g1"), starved("g2")], [LOCKED_UP.replace("939", "26")]],
    ids=["silent", "held up", "slow"],
)
def test_machine_that_goes_on_is_left_alone(
    said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that is only silent or late runs to its end."""
    silent = 0.5 if said == ["booted again"] else 60.0
    assert not run_guest(tmp_path, monkeypatch, silent, said, "sleep 1.5").has_stalled


def run_guest(
    folder: Path, monkeypatch: pytest.MonkeyPatch, silent_seconds: float, said: list[str], last: str
) -> _Files:
    """Run a machine that boots, prints a line, and then behaves as a shell command does."""
    monkeypatch.setattr("tests.environments.guest.guest.SILENT_SECONDS", silent_seconds)
    files = _Files(folder / "0")
    lines = "; ".join(f"echo '{line}' >>{files.console}" for line in ("booted", *said))
    _run(["sh", "-c", f"{lines}; {last}"], files, 60)
    assert files.has_booted()
    return files
