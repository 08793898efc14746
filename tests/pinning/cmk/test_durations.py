"""Durations of `--interval`."""

from __future__ import annotations

import pytest

from pinning.cmk.durations import parse_duration
from pinning.errors import BadContract


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30.0),
        ("1.5s", 1.5),
        ("500ms", 0.5),
        ("0", 0.0),
        ("0.25", 0.25),
        ("2m", 120.0),
        ("24h", 86400.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    """A number without a unit is in seconds, as in CMK."""
    assert parse_duration("--interval", text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "-1", "1.s", "1e3", "25h", "9" * 10, "1 s", "٣"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    """Any other text is refused with an example, and none is rounded."""
    with pytest.raises(BadContract, match=r"--interval: .* is not a duration up to 24h: write for example"):
        parse_duration("--interval", text)
