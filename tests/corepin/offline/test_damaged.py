"""Damaged documents: the offline commands refuse or judge them, without a traceback."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corepin.documents import read_documents
from corepin.errors import CommandFailed
from corepin.offline.review import inject, judge
from kubeyaml.reader import read_yaml
from kubeyaml.writer import write_yaml
from webhook.config.mutations import BUILT_IN
from webhook.config.settings import Settings
from webhook.review.handler import Decider

EXAMPLES = [path.read_text(encoding="utf-8") for path in sorted(Path("examples").glob("*/*.yaml"))]
VALUES = [
    "null",
    "[]",
    "{}",
    "1",
    "1.5",
    "-1",
    "true",
    "''",
    "[null]",
    "[{}]",
    "{a: b}",
    "&a x",
    "*a",
    "!!int 1",
    "1e999",
]
DECIDER = Decider(Settings(), BUILT_IN)


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """Return an example with some values replaced, and some lines removed or repeated."""
    lines = draw(st.sampled_from(EXAMPLES)).splitlines()
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        key, colon, _ = lines[at].partition(":")
        replacement = f"{key}{colon} {draw(st.sampled_from(VALUES))}"
        lines[at : at + 1] = draw(
            st.sampled_from([[], [lines[at]] * 2, [replacement], [replacement], [replacement]])
        )
        if not lines:
            break
    return "\n".join(lines)


@settings(max_examples=300)
@given(text=damaged() | st.text())
def test_damaged_files_are_refused_or_judged(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A damaged file is refused as unreadable, or judged; what injection prints of it can be read again."""
    path = tmp_path_factory.getbasetemp() / "f.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))

    with suppress(CommandFailed):
        for document in read_documents(str(path)):
            for item in document.items():
                judged = judge(DECIDER, item)
                assert judged.allowed is not bool(judged.causes)
                completed = inject(DECIDER, item).content
                assert [value for _, value in read_yaml(write_yaml([completed]))] == [completed]
