"""The checks of a node's group: a missing key, a changed label, and unknown facts."""

from __future__ import annotations

import pytest

from agent.doctor.groups import GroupFacts, group_checks

THERE = frozenset({"big", "small"})


@pytest.mark.parametrize(
    ("facts", "verdict", "words"),
    [
        pytest.param(
            GroupFacts("big", "big", THERE), "ok", "config.big.yaml, as the label", id="as labelled"
        ),
        pytest.param(
            *(GroupFacts("bgi", None, THERE), "finding"),
            "label corepin.io/cpu-group=bgi, but the agents' ConfigMap lacks the key config.bgi.yaml: an agent that",
            id="no key",
        ),
        pytest.param(
            *(GroupFacts("small", "big", THERE), "finding"),
            "label corepin.io/cpu-group is small, but the agent runs with config.big.yaml",
            id="changed",
        ),
        pytest.param(
            GroupFacts("", "big"),
            "finding",
            "label corepin.io/cpu-group was removed",
            id="removed, nothing mounted",
        ),
        pytest.param(
            GroupFacts("small", ""), "finding", "but the agent runs with config.yaml", id="labelled since"
        ),
        pytest.param(GroupFacts(None, "big", THERE), "unknown", "is not known", id="no cluster"),
    ],
)
def test_group_and_label_are_compared(facts: GroupFacts, verdict: str, words: str) -> None:
    """The check names the label and the keys, and has a remedy."""
    (check,) = group_checks(facts)
    assert check.verdict == verdict
    assert words in check.message
    assert bool(check.remedy) is (verdict != "ok")


@pytest.mark.parametrize(
    "facts",
    [
        GroupFacts(),
        GroupFacts("", ""),
        GroupFacts("", None, THERE),
        GroupFacts(None, ""),
        GroupFacts(None, None),
    ],
)
def test_without_groups_there_is_no_check(facts: GroupFacts) -> None:
    """There is no check for a node in no group, or without any known facts."""
    assert list(group_checks(facts)) == []
