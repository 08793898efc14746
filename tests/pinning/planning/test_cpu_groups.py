"""The key of the agents' ConfigMap for a node: it follows from the node's label, and never falls back to the default."""

from __future__ import annotations

import pytest

from pinning.planning.cpu_groups import Waiting, choose_group, groups_among, is_group, key_of

LONGEST = "a" * 63  # characters that a label's value may have


def test_a_group_has_a_key_beside_the_default() -> None:
    """A group's key is the default key with the group's name inserted before the extension."""
    assert [key_of("big"), key_of(""), key_of("big", "node.yml"), key_of("big", "node")] == [
        *("config.big.yaml", "config.yaml", "node.big.yml", "node.big"),
    ]


def test_groups_are_read_off_the_keys() -> None:
    """The groups are read from the keys of the ConfigMap, without the default and the kubelet's own files."""
    keys = (
        *("config.yaml", "config.big.yaml", "config.a.b.yaml", f"config.{LONGEST}.yaml", "config.UP_1.yaml"),
        *("..data", "..2026_11_24", "config..yaml", "config.-.yaml", f"config.{LONGEST}a.yaml", "other.yaml"),
    )
    assert groups_among(keys) == {"big", "a.b", LONGEST, "UP_1"}
    assert groups_among(f"config.{number}.yaml" for number in range(1000)) == set(map(str, range(1000)))


@pytest.mark.parametrize(
    ("labelled", "remembered", "expected"),
    [
        pytest.param("", None, "", id="no label"),
        pytest.param("", "big", "", id="no label any more"),
        pytest.param("big", None, "big", id="label"),
        pytest.param("big", "small", "big", id="another label than at the last start"),
        pytest.param(None, "small", "small", id="API server away, remembered"),
        pytest.param(None, "", "", id="API server away, remembered without a group"),
    ],
)
def test_the_label_counts_and_then_the_last_start(
    labelled: str | None, remembered: str | None, expected: str
) -> None:
    """The label selects the group; an agent that cannot read the label uses the group of its last start."""
    assert choose_group(labelled, remembered, {"big", "small"}) == expected


@pytest.mark.parametrize(
    ("labelled", "remembered", "reason", "message"),
    [
        pytest.param(
            *("bgi", "big", "NoGroupConfiguration"),
            "label corepin.io/cpu-group=bgi, but the agents' ConfigMap has no key config.bgi.yaml: add the key",
            id="no key, although another was remembered",
        ),
        pytest.param(
            *(None, "gone", "NoGroupConfiguration"),
            "the last start took group gone (the label cannot be read from the API server now), but the agents' ConfigMap",
            id="key removed while the API server is away",
        ),
        pytest.param(
            *(None, None, "GroupNotKnown"),
            "the API server does not say whether this node has a label corepin.io/cpu-group",
            id="first start, API server away",
        ),
        *(
            pytest.param(
                bad, None, "BadGroup", "is not a valid group name: change the label", id=f"bad {bad[:9]}"
            )
            for bad in ("../etc/passwd", "..", "a/b", "a\nb", "a" * 10**6, "-")
        ),
    ],
)
def test_a_missing_key_is_waited_for(
    labelled: str | None, remembered: str | None, reason: str, message: str
) -> None:
    """An agent whose group has no key waits, because the default configuration may not fit its node."""
    waiting = choose_group(labelled, remembered, {"big"})
    assert isinstance(waiting, Waiting)
    assert waiting.reason == reason
    assert message in waiting.message
    assert len(waiting.message) < 300


def test_without_groups_nothing_is_waited_for() -> None:
    """With only the default key an agent starts even if the API server does not answer; a label without a key is reported."""
    assert choose_group(None, None, ()) == ""
    assert isinstance(choose_group("big", None, ()), Waiting)


def test_an_empty_name_is_no_group() -> None:
    """A label with an empty value selects no group."""
    assert not is_group("")
    assert choose_group("", None, {"big"}) == ""
