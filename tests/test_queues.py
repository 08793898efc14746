"""The queues of `make test`."""

from __future__ import annotations

import re
from pathlib import Path

EMULATED = re.findall(
    r"tests/\w+", re.findall(r"^emulated=\((.*?)\)", Path("scripts/test").read_text(), re.MULTILINE)[0]
)
MARKED = [path for path in Path("tests").rglob("*.py") if re.search(r"mark\.smt\b", path.read_text())]


def test_emulated_machines_are_in_the_one_queue_that_starts_them() -> None:
    """Tests of emulated machines are in the one queue that starts them; the other queues skip them."""
    assert MARKED
    assert [str(path) for path in MARKED if "/".join(path.parts[:2]) not in EMULATED] == []
