"""The queues of `make test`."""

from __future__ import annotations

import re
from pathlib import Path

EMULATED = re.findall(
    r"tests/\w+", re.findall(r"^emulated=\((.*?)\)", Path("scripts/test").read_text(), re.MULTILINE)[0]
)
MARKED = [path for path in Path("tests").rglob("*.py") if re.search(r"mark\.smt\b", path.read_text())]


def test_emulated_machines_are_in_the_one_queue_that_starts_them() -> None:
    """The others leave out what is marked so: elsewhere nobody would run it."""
    assert MARKED
    assert [str(path) for path in MARKED if "/".join(path.parts[:2]) not in EMULATED] == []
