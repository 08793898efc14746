"""Colour and width of the output, on a real pseudo-terminal."""

from __future__ import annotations

import io
import os
import termios
from typing import TYPE_CHECKING, TextIO

import pytest

from corepin.terminal import columns, wants_colour

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def terminal() -> Iterator[TextIO]:
    """Return a terminal of 120 columns."""
    leader, follower = os.openpty()
    termios.tcsetwinsize(follower, (50, 120))
    with open(follower, "w", encoding="ascii") as stream:  # noqa: PTH123  a descriptor has no path
        yield stream
    os.close(leader)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({"TERM": "xterm"}, True, id="plain"),
        pytest.param({"TERM": "xterm", "NO_COLOR": ""}, True, id="empty-NO_COLOR-says-nothing"),
        pytest.param({"TERM": "xterm", "NO_COLOR": "1"}, False, id="NO_COLOR"),
        pytest.param({"TERM": "dumb"}, False, id="dumb"),
    ],
)
def test_a_terminal_has_colour_by_default(terminal: TextIO, environ: dict[str, str], expected: bool) -> None:
    """Output on a terminal has colour, unless NO_COLOR or TERM says no."""
    assert wants_colour(terminal, environ) is expected


def test_a_pipe_has_no_colour() -> None:
    """Output into a pipe has no colour."""
    assert not wants_colour(io.StringIO(), {"TERM": "xterm"})


def test_closed_output_is_no_terminal() -> None:
    """A stream that the shell closed (`>&-`) is None and counts as no terminal; only writing to it is an error."""
    assert not wants_colour(None, {"TERM": "xterm"})
    assert (columns(None, {}), columns(None, {"COLUMNS": "100"})) == (80, 100)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({}, 120, id="terminal"),
        pytest.param({"COLUMNS": "100"}, 100, id="COLUMNS"),
        pytest.param({"COLUMNS": "wide"}, 120, id="nonsense"),
        pytest.param({"COLUMNS": "0"}, 80, id="zero"),
        pytest.param({"COLUMNS": "10"}, 40, id="narrowest"),
        pytest.param({"COLUMNS": "500"}, 200, id="widest"),
    ],
)
def test_columns(terminal: TextIO, environ: dict[str, str], expected: int) -> None:
    """The width is $COLUMNS, else the terminal's, within 40 to 200."""
    assert columns(terminal, environ) == expected


def test_a_pipe_has_80_columns() -> None:
    """The width of a pipe is 80."""
    assert columns(io.StringIO(), {}) == 80
