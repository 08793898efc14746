"""Agents on a real kernel that are killed while quiet CPUs change; `COREPIN_QUIET_KILLS=200` kills so many."""

from __future__ import annotations

import pytest

from tests.environments.guest.guest import Report
from tests.smt.conftest import QUIET_KILLS

pytestmark = pytest.mark.skipif(not QUIET_KILLS, reason="COREPIN_QUIET_KILLS is 0")


def test_next_agent_makes_everything_right(quiet: Report) -> None:
    """After each kill the next agent makes all requested CPUs quiet, and restores all other settings."""
    kills = quiet.all("quiet kill")
    seed = quiet.one("quiet churn")["seed"]

    assert len(kills) == QUIET_KILLS
    assert [it for it in kills if it["wrong"]] == [], f"seed {seed}"


def test_originals_are_back_without_quiet_pods(quiet: Report) -> None:
    """After all kills, without quiet pods, every setting has its original value."""
    originals, end = quiet.one("quiet churn")["originals"], quiet.one("quiet end")

    assert end["wrong"] == {}
    assert {name: end["settings"][name] for name in originals} == originals
