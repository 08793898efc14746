"""Tables of cases: a name for each row, and its values in the order of the test's arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping


def table(names: str, rows: Mapping[str, Any]) -> pytest.MarkDecorator:
    """Return the parametrization of a test by named rows; a row of one argument is its value."""
    is_one = "," not in names
    cases = [pytest.param(*([row] if is_one else row), id=name) for name, row in rows.items()]
    return pytest.mark.parametrize(names, cases)
