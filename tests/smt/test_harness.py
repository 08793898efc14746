"""The harness itself, without a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.smt import setup
from tests.smt.guest import GuestFailed, Report, last_lines, read_facts

if TYPE_CHECKING:
    from pathlib import Path


def test_cut_off_line_is_no_fact() -> None:
    """A guest that ends in the middle of a line loses that line only."""
    assert read_facts('{"fact": "a", "x": 1}\n{"fact": "a", "x": 2}\n{"fa') == {"a": [{"x": 1}, {"x": 2}]}


def test_missing_fact_shows_the_console() -> None:
    """Whoever asks for a fact that was not reported reads what the guest said last."""
    with pytest.raises(GuestFailed, match="'topology'; its console ended with\nKernel panic"):
        Report({}, "Kernel panic").one("topology")


def test_console_is_shown_without_noise() -> None:
    """What QEMU says of features that TCG lacks is left out."""
    noise = "qemu: warning: TCG doesn't support requested feature: CPUID.01H:ECX.pcid [bit 17]"

    assert last_lines(f"{noise}\n\r\none\r\ntwo\nthree\n", count=2) == "two\nthree"


def test_newest_kernel_has_its_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel whose modules are gone cannot mount the host's root."""
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
