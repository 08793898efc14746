"""Debian's irqbalance on a real kernel keeps off quiet CPUs; with `COREPIN_IRQBALANCE_ROUNDS=300` for 5 minutes."""

from __future__ import annotations

from typing import Any

import pytest

from pinning.machine.cpuset import CPUSet
from tests.environments.guest.guest import Report
from tests.smt.conftest import IRQBALANCE_ROUNDS

ALL = "0-5"


def step(quiet: Report, name: str) -> dict[str, Any]:
    """Return what was reported in one step."""
    if "irqbalance" not in quiet.facts:
        pytest.skip("COREPIN_IRQBALANCE_ROUNDS is not set, or Debian's irqbalance cannot be downloaded")
    (found,) = [it for it in quiet.all("irqbalance") if it["step"] == name]
    return found


def test_it_uses_exclusive_cpus(quiet: Report) -> None:
    """Without `quiet` irqbalance moves interrupts to the pod's CPU from others, where all were when it was started."""
    before = step(quiet, "before")

    assert before["reaches"]
    assert (before["banned"], before["default"]) == ("", ALL)


def test_it_keeps_off_quiet_cpus_while_it_balances(quiet: Report) -> None:
    """No interrupt fires there, and none may, in all its rounds, with devices in use and a driver that is loaded anew."""
    now = step(quiet, "quiet")
    mine = CPUSet.parse(now["cpus"])
    fired = {name: {int(cpu): count for cpu, count in row.items()} for name, row in now["fired"].items()}

    assert now["banned"] == now["cpus"]
    assert now["rounds"] >= IRQBALANCE_ROUNDS
    assert sum(sum(row.values()) for row in fired.values()) >= 100  # the devices were in use
    assert {name: row for name, row in fired.items() if not mine.isdisjoint(CPUSet(row))} == {}
    assert (now["reached"], now["reaches"]) == ([], {})


def test_it_uses_them_again_when_the_pod_has_ended(quiet: Report) -> None:
    """Its ban is lifted, drivers loaded later may use them, and irqbalance has moved interrupts there."""
    ended = step(quiet, "ended")

    assert (ended["banned"], ended["default"]) == ("", ALL)
    assert ended["reaches"]


def test_it_undoes_what_it_is_not_told(quiet: Report) -> None:
    """With `irqbalance: ignore` it is not banned, and moves interrupts back onto quiet CPUs: the ban is what holds."""
    ignored = step(quiet, "ignored")

    assert ignored["kept_off"]
    assert ignored["banned"] == ""
    assert ignored["reached"] or ignored["moved_back"]
