"""Findings of `corepin doctor` about the CPUs that schedulers count beside devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.doctor.check import Verdict
from agent.doctor.checks import examine
from agent.doctor.devices import NO_DEVICES, DeviceFacts
from agent.doctor.near import NearFacts, near_checks
from tests.agent.doctor.nodes import AGENT, FINE

GPU = {"near.corepin.io/nvidia.com.gpu": "6"}
TWO = {**GPU, "near.corepin.io/example.com.nic": "0"}
HELD = DeviceFacts("none", {"a/b/c": ("nvidia.com/gpu",)})


@pytest.mark.parametrize(
    ("facts", "devices", "observes", "verdict", "message"),
    [
        pytest.param(
            NearFacts(is_wanted=True, counts=TWO),
            NO_DEVICES,
            False,
            Verdict.OK,
            "near.corepin.io/example.com.nic 0, near.corepin.io/nvidia.com.gpu 6",
            id="published",
        ),
        pytest.param(
            NearFacts(is_wanted=True, counts={}), NO_DEVICES, False, Verdict.OK, "no device plugin", id="none"
        ),
        pytest.param(
            NearFacts(is_wanted=True, counts={}), HELD, False, Verdict.FINDING, "publishes no CPUs", id="lost"
        ),
        pytest.param(
            NearFacts(is_wanted=True, counts=GPU), HELD, True, Verdict.OK, "only observes", id="observed"
        ),
        pytest.param(
            NearFacts(is_wanted=True, silence="no way"), HELD, False, Verdict.UNKNOWN, "(no way)", id="mute"
        ),
    ],
)
def test_numbers_are_listed_or_missed(
    facts: NearFacts, devices: DeviceFacts, observes: bool, verdict: Verdict, message: str
) -> None:
    """The check shows the published numbers; missing numbers are a finding if containers have devices."""
    [check] = near_checks(facts, devices, observes=observes)
    assert check.verdict is verdict
    assert message in check.message
    assert bool(check.remedy) is (verdict is not Verdict.OK)


@pytest.mark.parametrize(
    ("policy", "counts", "advised"),
    [
        pytest.param("none", TWO, True, id="any device is taken"),
        pytest.param("none", GPU, False, id="one kind"),
        pytest.param("best-effort", TWO, False, id="the lowest node is taken"),
        pytest.param("", TWO, False, id="not known"),
    ],
)
def test_best_effort_is_advised_where_several_kinds_are_given_out(
    policy: str, counts: dict[str, str], advised: bool
) -> None:
    """`best-effort` is advised under `none` only, where each number is the minimum over several NUMA nodes."""
    [check] = near_checks(NearFacts(is_wanted=True, counts=counts), DeviceFacts(policy, {}), observes=False)
    assert ("best-effort" in check.remedy) is advised


def test_nothing_is_said_where_no_numbers_are_published() -> None:
    """There is no check if the feature is off, which is the default, with or without an agent's state."""
    subjects = [check.subject for check in examine(FINE)]
    assert "CPUs near devices" not in subjects
    for agent in (None, replace(AGENT, observes=True)):
        facts = replace(FINE, agent=agent, near=NearFacts(is_wanted=True, counts=GPU))
        assert "CPUs near devices" in [check.subject for check in examine(facts)]
