"""No review costs more than its size: whatever doubles in an object, its review takes twice the work and not four times.

Two measures: CPU time of the thread, and the characters of all texts that functions of ours hold when they end, which
sees what `split` or `join` are given. Each input is doubled alone, beside each other one, and with all others.
"""

from __future__ import annotations

import gc
import sys
import time
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from pinning.errors import Cause
from tests.webhook.growing import CASES, Case, review, scaled, split_for_each_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType

MOST_GROWTH: Final = 2.3  # for each doubling; what grows with the body alone stays at 2
ROUNDS: Final = 25  # of measuring, until the least times of both sizes tell that all is well
LEAST_ROUNDS: Final = 5  # of the smaller body: a time that is too long would hide a growth
REPEATS: Final = 4  # of all sizes; two were too few beside a load of 55 on two CPUs
ALONE_SECONDS: Final = 0.005  # what a review takes where doubling begins
BESIDE_SECONDS: Final = 0.0015
TEXTS_SHARE: Final = 1 / 4  # texts are counted in smaller objects, because counting takes its time
LARGEST_BODY: Final = 2**17  # where doubling begins at the latest
OURS: Final = tuple(str(Path(__file__).parents[3] / part) for part in ("webhook", "pinning", "tests/webhook"))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_twice_the_input_is_twice_the_work(case: Case) -> None:
    """Each input alone, every pair of them and all together double without costing more than twice as much."""
    alone = {name: begin(case, name, ALONE_SECONDS) for name in case.inputs}
    beside = {name: begin(case, name, BESIDE_SECONDS) for name in case.inputs}
    all_of_them = {name: max(size // 4, 1) for name, size in beside.items()}
    sizes: list[Mapping[str, int]] = [{name: size} for name, size in alone.items()]
    sizes += [{one: beside[one], other: beside[other]} for one, other in combinations(case.inputs, 2)]
    for size in (*sizes, all_of_them):
        assert any(times_growth(*pair) <= MOST_GROWTH for pair in doublings(case, size)), size
        assert any(
            texts_growth(*pair) <= MOST_GROWTH for pair in doublings(case, scaled(size, TEXTS_SHARE))
        ), size


def doublings(case: Case, size: Mapping[str, int]) -> Iterator[tuple[bytes, bytes]]:
    """Yield a body and one of twice the size, at three sizes, and all of them again until one of them is as it must be.

    A full cache is a step at one size, and a busy neighbour a step at one time; a square grows at each.
    """
    for factor in (1, 2, 4) * REPEATS:
        yield case.body(scaled(size, factor)), case.body(scaled(size, 2 * factor))


def test_what_is_quadratic_is_seen() -> None:
    """The measures tell work that grows with the square, also inside of a method of a text."""
    small, large = b"x;" * 1000, b"x;" * 2000
    assert times_growth(small, large, split_for_each_part) > 3
    assert texts_growth(small, large, split_for_each_part) > 3


def begin(case: Case, name: str, seconds: float) -> int:
    """Return how large an input is when its review takes that long, or when it is large enough."""
    size, before, body = 32, b"", case.body({name: 32})
    while len(before) < len(body) < LARGEST_BODY and cpu_seconds(body) < seconds:
        size, before, body = 2 * size, body, case.body({name: 2 * size})
    return size


def times_growth(small: bytes, large: bytes, work: Callable[[bytes], None] = review) -> float:
    """Return how the CPU time grows for each doubling of the body, by the least times of up to ROUNDS."""
    least_small = min(cpu_seconds(small, work) for _ in range(LEAST_ROUNDS))
    least_large = float("inf")
    for _ in range(ROUNDS):
        least_small = min(least_small, cpu_seconds(small, work))
        least_large = min(least_large, cpu_seconds(large, work))
        growth = per_doubling(least_large / least_small, small, large)
        if growth <= MOST_GROWTH:
            break
    return growth


def texts_growth(small: bytes, large: bytes, work: Callable[[bytes], None] = review) -> float:
    """Return how the number of characters grows that functions of ours hold when they end."""
    return per_doubling(characters(large, work) / characters(small, work), small, large)


def per_doubling(growth: float, small: bytes, large: bytes) -> float:
    """Return a growth as it would be had the body doubled: two inputs that multiply make it four times as large."""
    return growth / max(len(large) / len(small) / 2, 1)


def cpu_seconds(body: bytes, work: Callable[[bytes], None] = review) -> float:
    """Return the CPU time that a body takes this thread, without the collector, which comes when it likes."""
    gc.disable()
    began = time.thread_time()
    work(body)
    taken = time.thread_time() - began
    gc.enable()
    return taken


def characters(body: bytes, work: Callable[[bytes], None]) -> int:
    """Return how many characters the texts have that functions of ours hold at each of their ends and yields."""
    found = 0

    def count(frame: FrameType, event: str, result: Any) -> None:
        nonlocal found
        if event == "return" and frame.f_code.co_filename.startswith(OURS):
            found += sum(length(value) for value in (*frame.f_locals.values(), result))

    sys.setprofile(count)
    try:
        work(body)
    finally:
        sys.setprofile(None)
    return found


def length(value: object) -> int:
    """Return the characters of a text, or of what a cause tells."""
    if isinstance(value, Cause):
        return len(value.field) + len(value.message)
    return len(value) if isinstance(value, str) else 0
