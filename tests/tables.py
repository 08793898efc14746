"""Tables of cases: a name for each row, and its values in the order of the test's arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


def table(names: str, rows: Mapping[str, Any]) -> pytest.MarkDecorator:
    """Return the parametrization of a test by named rows; a row of one argument is its value."""
    is_one = "," not in names
    cases = [pytest.param(*([row] if is_one else row), id=name) for name, row in rows.items()]
    return pytest.mark.parametrize(names, cases)


def sections(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each row of a text file with its section: a heading follows "# ", columns are separated by "|"."""
    heading = ""
    for line in path.read_text().splitlines():
        if line.startswith("# "):
            heading = line.removeprefix("# ").removesuffix(".")
        elif line:
            yield heading, [column.strip() for column in line.split("|")]


def text_table(names: str, path: Path, section: str) -> pytest.MarkDecorator:
    """Return the parametrization of a test by a section of a text file, whose last column has the names of the rows."""
    found = [columns for heading, columns in sections(path) if heading == section]
    return table(names, {name: values for *values, name in found})
