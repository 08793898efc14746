"""The cost of a review is linear: doubling any input of an object at most doubles its work.

Work is counted in operations and not in seconds, so that no load changes it. Each input is doubled alone, all together,
and each pair: what two inputs cost together beyond what each costs alone must not grow with their product either.
"""

from __future__ import annotations

from functools import cache, partial
from itertools import combinations
from typing import TYPE_CHECKING, Final

import pytest

from tests.webhook.growing import CASES, Case, review, split_for_each_part
from tests.webhook.operations import operations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Measure = Callable[[int], int]  # the operations at a size

MOST_GROWTH: Final = 2.3  # of what a size costs, where it doubles: 2 is linear, 4 is quadratic
STEP: Final = 4  # operations an entry: a buffer grows, or a name has one more block of letters
# Entries where doubling begins. A bound, or a message that is cut, is a step at one of them; a square grows at both.
# Four times as many containers are still fewer than 100 of each kind, of which a pod with claims may have no more.
SIZES: Final = (16, 24)
PAIR_SIZES: Final = (16, 32)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_twice_the_input_is_twice_the_work(case: Case) -> None:
    """Each input alone, and all together, double without costing more than twice as much."""
    review(case.body(dict.fromkeys(case.inputs, 2)))  # what is prepared once is prepared
    for inputs in (*((name,) for name in case.inputs), case.inputs):
        assert grows_linearly(partial(work_of, case, inputs), len(inputs)), inputs


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_no_two_inputs_multiply(case: Case) -> None:
    """Two inputs that double together cost at most twice as much beyond what each of them costs alone."""
    review(case.body(dict.fromkeys(case.inputs, 2)))
    alone = cache(lambda name, size: work_of(case, (name,), size))
    nothing = work_of(case, (), 0)

    def together(pair: Sequence[str], size: int) -> int:
        return work_of(case, pair, size) - sum(alone(name, size) for name in pair) + nothing

    for pair in combinations(case.inputs, 2):
        assert any(is_doubled(partial(together, pair), size) for size in PAIR_SIZES), pair


def is_doubled(work: Measure, size: int) -> bool:
    """Return whether a cost grows as a doubled size; a cost that the steps alone explain is measured once."""
    double = work(2 * size)
    return is_linear(0, double, size) or is_linear(work(size), double, size)


def work_of(case: Case, inputs: Iterable[str], size: int) -> int:
    """Return the operations that a review takes of which some inputs have a size."""
    body = case.body(dict.fromkeys(inputs, size))
    return operations(lambda: review(body))


def grows_linearly(work: Measure, inputs: int = 1) -> bool:
    """Return whether two doublings in a row add twice as much; the fixed cost of a review cancels out."""
    for size in SIZES:
        once, twice, four_times = (work(factor * size) for factor in (1, 2, 4))
        if is_linear(twice - once, four_times - twice, inputs * size):
            return True
    return False


def is_linear(cost: int, cost_of_double: int, entries: int) -> bool:
    """Return whether a cost grows linearly when a size doubles."""
    return cost_of_double <= MOST_GROWTH * max(cost, 0) + STEP * entries


def split_text(parts: list[str]) -> None:
    """Split a text again for each of its parts, as a rule once did for each container."""
    split_for_each_part(";".join(parts).encode())


def look_into_list(parts: list[str]) -> None:
    """Look for each part in a list."""
    assert all([part in parts for part in parts])  # noqa: C419 the list walks in this function


def append_to_text(parts: list[str]) -> None:
    """Make a text longer by copies of it."""
    text = ""
    for part in parts:
        text = f"{text};{part}"


def join_tuples(parts: list[str]) -> None:
    """Make a tuple longer by copies of it."""
    joined: tuple[str, ...] = ()
    for part in parts:
        joined = joined + (part,)  # noqa: RUF005 one instruction that copies in C


def look_into_set(parts: list[str]) -> None:
    """Look for each part in a set, and collect what is found."""
    known = set(parts)
    found = [part for part in parts if part in known]
    ";".join(found)


@pytest.mark.parametrize(
    ("work", "linear"),
    [
        (split_text, False),
        (look_into_list, False),
        (append_to_text, False),
        (join_tuples, False),
        (look_into_set, True),
    ],
)
def test_quadratic_work_is_detected(work: Callable[[list[str]], None], linear: bool) -> None:
    """The measure distinguishes quadratic from linear work, also in C code, and is deterministic."""

    def measure(size: int) -> int:
        parts = ["x" * 100] * size
        return operations(lambda: work(parts))

    assert grows_linearly(measure) is linear
    assert measure(4) == measure(4)


@pytest.mark.parametrize(
    ("each", "square", "doubles", "measured"),
    [
        pytest.param(2, 0, True, [32], id="steps"),
        pytest.param(50, 0, True, [32, 16], id="linear"),
        pytest.param(0, 1, False, [32, 16], id="square"),
    ],
)
def test_product_is_detected(each: int, square: int, doubles: bool, measured: list[int]) -> None:
    """A product of two inputs is detected; a cost that the steps alone explain is not measured at half the size."""
    sizes: list[int] = []

    def work(size: int) -> int:
        sizes.append(size)
        return each * size + square * size**2

    assert is_doubled(work, 16) is doubles
    assert sizes == measured
