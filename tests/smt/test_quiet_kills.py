"""Agents on a real kernel that are killed while pods ask for quiet CPUs or cease to; `COREPIN_QUIET_KILLS=200` kills so many."""

from __future__ import annotations

import pytest

from tests.environments.guest.guest import Report
from tests.smt.conftest import QUIET_KILLS

pytestmark = pytest.mark.skipif(not QUIET_KILLS, reason="COREPIN_QUIET_KILLS is 0")


def test_next_agent_makes_everything_right(quiet: Report) -> None:
    """Quiet CPUs have no interrupt, no unbound workqueue and no deep idle state; all else has what it had before."""
    kills = quiet.all("quiet kill")
    seed = quiet.one("quiet churn")["seed"]

    assert len(kills) == QUIET_KILLS
    assert [it for it in kills if it["wrong"]] == [], f"seed {seed}"


def test_originals_are_back_without_quiet_pods(quiet: Report) -> None:
    """After all kills, when no pod asks for quiet CPUs any more, every setting is the one of before."""
    originals, end = quiet.one("quiet churn")["originals"], quiet.one("quiet end")

    assert end["wrong"] == {}
    assert {name: end["settings"][name] for name in originals} == originals
