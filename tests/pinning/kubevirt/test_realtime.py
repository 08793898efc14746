"""The realtime mask of KubeVirt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinning.errors import BadContract
from pinning.kubevirt.realtime import LONGEST_MASK, RealtimeMask


@pytest.mark.parametrize(
    ("mask", "selected"),
    [
        pytest.param("", {0, 1, 2, 3}, id="empty-is-all"),
        pytest.param("0", {0}, id="one"),
        pytest.param("0,2", {0, 2}, id="list"),
        pytest.param("0-2", {0, 1, 2}, id="range"),
        pytest.param("1-1", {1}, id="range-of-one"),
        pytest.param(" 0 , 3 ", {0, 3}, id="blanks"),
        pytest.param("0-3,^1", {0, 2, 3}, id="negation-after"),
        pytest.param("^1,0-3", {0, 2, 3}, id="negation-before"),
        pytest.param("0-1,1-2,0", {0, 1, 2}, id="overlap"),
        pytest.param("^3", set(), id="negation-alone"),
        pytest.param("0,^0", set(), id="all-negated"),
        pytest.param("7", set(), id="no-such-vcpu"),
        pytest.param("2-4000000000", {2, 3}, id="far-end"),
        pytest.param("03", set(), id="leading-zero"),
        pytest.param("1,^01", {1}, id="negation-with-leading-zero"),
        pytest.param("00-02", {0, 1, 2}, id="leading-zeros-in-a-range"),
        pytest.param("0-1,^3", {0, 1}, id="negation-outside"),
    ],
)
def test_mask_selects(mask: str, selected: set[int]) -> None:
    """A mask selects the listed vCPUs without the negated ones."""
    assert RealtimeMask.parse(mask).selected_count(4) == len(selected)


@pytest.mark.parametrize(
    "mask", [" ", ",", "0,", "a-b", "1-", "-1", "^", "^^1", "^0-1", "0 - 1", "1;2", "٣", "1\n2"]
)
def test_bad_mask(mask: str) -> None:
    """An item that is none of the three forms is refused and named."""
    with pytest.raises(BadContract, match="is none of the forms 3, 0-3 and \\^3"):
        RealtimeMask.parse(mask)


def test_backward_range() -> None:
    """A range that ends before it begins is refused."""
    with pytest.raises(BadContract, match="the range '1-0' runs backwards"):
        RealtimeMask.parse("1-0")


def test_mask_too_long_for_any_machine() -> None:
    """A mask of hundreds of thousands of items, which would take a second to read, is refused by its length."""
    assert RealtimeMask.parse(",".join(["0-9"] * (LONGEST_MASK // 4))).selected_count(5) == 5
    with pytest.raises(BadContract, match="its 32769 characters are more than the 32768"):
        RealtimeMask.parse("1," * (LONGEST_MASK // 2) + "1")


def test_number_too_long_for_any_machine() -> None:
    """A number of thousands of digits is refused, not converted."""
    with pytest.raises(BadContract, match="0000"):
        RealtimeMask.parse("1" + "0" * 5000)


@pytest.mark.parametrize(
    ("mask", "strangers"),
    [
        pytest.param("0-3", [], id="none"),
        pytest.param("", [], id="empty"),
        pytest.param("3,4", ["4"], id="one"),
        pytest.param("2-5,^4", ["2-5", "^4"], id="range-and-negation"),
        pytest.param("01,^02", ["01", "^02"], id="leading-zeros"),
    ],
)
def test_items_that_name_no_vcpu(mask: str, strangers: list[str]) -> None:
    """Items of a mask that name no vCPU of the VM are returned."""
    assert RealtimeMask.parse(mask).strangers(4) == strangers


ITEMS = st.one_of(
    st.integers(0, 12).map(str),
    st.integers(0, 12).map(lambda cpu: f"^{cpu}"),
    st.tuples(st.integers(0, 12), st.integers(0, 5)).map(lambda pair: f"{pair[0]}-{pair[0] + pair[1]}"),
)


@given(st.lists(ITEMS, min_size=1, max_size=8), st.integers(1, 10))
def test_count_agrees_with_listing(items: list[str], vcpus: int) -> None:
    """Counting by ranges gives what listing every vCPU gives."""
    listed: set[int] = set()
    for low, _, high in (item.partition("-") for item in items if item[0] != "^"):
        listed |= set(range(int(low), int(high or low) + 1))
    listed -= {int(item[1:]) for item in items if item[0] == "^"}
    assert RealtimeMask.parse(",".join(items)).selected_count(vcpus) == len(listed & set(range(vcpus)))
