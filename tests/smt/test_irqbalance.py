"""Debian's irqbalance on a real kernel stays off quiet CPUs; `COREPIN_IRQBALANCE_ROUNDS=300` runs for 5 minutes."""

from __future__ import annotations

from typing import Any

import pytest

from pinning.machine.cpuset import CPUSet
from tests.environments.guest.guest import Report
from tests.smt.conftest import IRQBALANCE_ROUNDS

ALL = "0-5"


def step(quiet: Report, name: str) -> dict[str, Any]:
    """Return the report of one step."""
    if "irqbalance" not in quiet.facts:
        pytest.skip("COREPIN_IRQBALANCE_ROUNDS is not set, or Debian's irqbalance cannot be downloaded")
    (found,) = [it for it in quiet.all("irqbalance") if it["step"] == name]
    return found


def test_it_uses_exclusive_cpus(quiet: Report) -> None:
    """Without `quiet` irqbalance moves interrupts from other CPUs to the pod's CPU."""
    before = step(quiet, "before")

    assert before["reaches"]
    assert (before["banned"], before["default"]) == ("", ALL)


def test_it_keeps_off_quiet_cpus_while_it_balances(quiet: Report) -> None:
    """While irqbalance runs no interrupt fires or may fire on quiet CPUs, also of a reloaded driver."""
    now = step(quiet, "quiet")
    mine = CPUSet.parse(now["cpus"])
    fired = {name: {int(cpu): count for cpu, count in row.items()} for name, row in now["fired"].items()}

    assert now["banned"] == now["cpus"]
    assert now["rounds"] >= IRQBALANCE_ROUNDS
    assert sum(sum(row.values()) for row in fired.values()) >= 100  # the devices were in use
    assert {name: row for name, row in fired.items() if not mine.isdisjoint(CPUSet(row))} == {}
    assert (now["reached"], now["reaches"]) == ([], {})


def test_it_uses_them_again_when_the_pod_has_ended(quiet: Report) -> None:
    """After the pod ended the ban is lifted, and irqbalance moves interrupts to its CPUs again."""
    ended = step(quiet, "ended")

    assert (ended["banned"], ended["default"]) == ("", ALL)
    assert ended["reaches"]


def test_it_undoes_what_it_is_not_told(quiet: Report) -> None:
    """With `irqbalance: ignore` irqbalance is not banned, and moves interrupts back onto quiet CPUs."""
    ignored = step(quiet, "ignored")

    assert ignored["kept_off"]
    assert ignored["banned"] == ""
    assert ignored["reached"] or ignored["moved_back"]
