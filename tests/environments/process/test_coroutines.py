"""Tests that are coroutines are awaited, by the hook of tests/conftest.py."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest


@pytest.fixture
def reached() -> Iterator[list[int]]:
    """Return a list, which must have a number when the test has ended."""
    numbers: list[int] = []
    yield numbers
    assert numbers == [1]


@pytest.mark.parametrize("number", [1])
async def test_coroutine_runs_to_its_end_with_its_arguments(number: int, reached: list[int]) -> None:
    """A coroutine is run to its end, with parameters and fixtures as its arguments."""
    await asyncio.sleep(0)
    reached.append(number)
