"""CPUSet: the kernel's list format both ways, and set arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinning.errors import BadCPUList
from pinning.machine.cpuset import EMPTY, MAX_CPU, CPUSet, union

if TYPE_CHECKING:
    from collections.abc import Iterable

numbers = st.frozensets(st.integers(0, 600), max_size=80)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        pytest.param("0-3,8", [0, 1, 2, 3, 8], id="range and single"),
        pytest.param("8,0-3", [0, 1, 2, 3, 8], id="unsorted"),
        pytest.param(" 0 , 2-3\n", [0, 2, 3], id="blanks and newline"),
        pytest.param("", [], id="empty"),
        pytest.param("\n", [], id="as an empty kernel file reads"),
        pytest.param("0-31:2/8", [0, 1, 8, 9, 16, 17, 24, 25], id="groups"),
        pytest.param("0-6:2/4", [0, 1, 4, 5], id="a group cut by the end"),
        pytest.param("3-20:2/5", [3, 4, 8, 9, 13, 14, 18, 19], id="groups from a number on"),
        pytest.param("2-3:999999999/999999999", [2, 3], id="a group larger than the range"),
        pytest.param("1-1", [1], id="range of one"),
        pytest.param("0-2,1-3", [0, 1, 2, 3], id="overlap"),
    ],
)
def test_the_kernel_list_format_is_read(text: str, cpus: list[int]) -> None:
    """Every form of the kernel's list format gives its CPUs."""
    assert list(CPUSet.parse(text)) == cpus


@pytest.mark.parametrize(
    "text",
    [
        "3-1",
        "a",
        "1,,2",
        "1,",
        "-1",
        "1-",
        "0-7:3/2",
        "0-7:0/2",
        "0-7:2",
        "0x1",
        str(MAX_CPU + 1),
        "1 2",
        "٣",
        "9" * 30,
    ],
)
def test_a_text_that_is_no_cpu_list_is_refused(text: str) -> None:
    """The error quotes the text that was given."""
    with pytest.raises(BadCPUList) as refused:
        CPUSet.parse(text)
    assert text[:8].split(",")[0] in str(refused.value)


@given(numbers)
def test_printing_and_parsing_gives_the_same_set(cpus: frozenset[int]) -> None:
    """parse(str(s)) == s for every set."""
    assert CPUSet.parse(str(CPUSet(cpus))) == CPUSet(cpus)


@given(numbers, numbers)
def test_operators_agree_with_frozenset(left: frozenset[int], right: frozenset[int]) -> None:
    """Union, intersection, difference, subset and disjointness are those of sets."""
    first, second = CPUSet(left), CPUSet(right)
    assert set(first | second) == left | right == set(union([first, second]))
    assert set(first & second) == left & right
    assert set(first - second) == left - right
    assert (first <= second) == (left <= right)
    assert first.isdisjoint(second) == left.isdisjoint(right)
    assert (first == second) == (left == right)
    assert len(first) == len(left)
    assert bool(first) == bool(left)


@given(numbers)
def test_membership_and_order(cpus: frozenset[int]) -> None:
    """Iteration ascends, `in` agrees with it, and the lowest CPU comes first."""
    cpu_set = CPUSet(cpus)
    assert list(cpu_set) == sorted(cpus)
    assert all((cpu in cpu_set) == (cpu in cpus) for cpu in range(-2, 602))
    if cpus:
        assert cpu_set.lowest() == min(cpus)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("ff", range(8)),
        ("0000000f,ffffff00", range(8, 36)),
        ("1,0000000E,00000001", [0, 33, 34, 35, 64]),
        ("0", []),
    ],
)
def test_the_kernel_mask_format_is_read(text: str, cpus: Iterable[int]) -> None:
    """Hex digits are in groups of eight, of which the first may be shorter."""
    assert CPUSet.parse_mask(text) == CPUSet(cpus)


@pytest.mark.parametrize(
    "text",
    ["", "x", "0x1", "f_f", "f,f", "f,ffffffff,f", "123456789", ",00000001", "1,", "1" + ",00000000" * 256],
)
def test_a_text_that_is_no_mask_is_refused(text: str) -> None:
    """A mask is never guessed from groups of another width, and has no CPU above the largest."""
    with pytest.raises(BadCPUList):
        CPUSet.parse_mask(text)


def test_the_empty_set_has_no_lowest_cpu() -> None:
    """Asking the empty set for its lowest CPU is an error, not CPU 0."""
    with pytest.raises(BadCPUList):
        EMPTY.lowest()


@pytest.mark.parametrize("cpu", [-1, MAX_CPU + 1])
def test_a_cpu_number_out_of_range_is_refused(cpu: int) -> None:
    """A set never holds a CPU that no kernel knows."""
    with pytest.raises(BadCPUList):
        CPUSet([cpu])


def test_a_set_cannot_be_changed() -> None:
    """There is no way to write to a CPUSet."""
    cpu_set = CPUSet([1])
    with pytest.raises(AttributeError):
        cpu_set.mask = 3
    assert cpu_set != {1}


def test_equal_sets_hash_alike_and_print_themselves() -> None:
    """Sets are usable as keys, and repr shows how to make one."""
    assert {CPUSet([1, 2]): "x"}[CPUSet.parse("1-2")] == "x"
    assert repr(CPUSet([1, 2, 4])) == "CPUSet.parse('1-2,4')"


def test_the_mask_is_upper_case_hex_as_cmk_prints_it() -> None:
    """CMK's documentation: CPUs 0, 1 and 35 give 800000003."""
    assert CPUSet([0, 1, 35]).to_hex() == "800000003"


@given(st.sets(st.integers(0, MAX_CPU)))
def test_masks_are_read_back(numbers: set[int]) -> None:
    """Each set has one mask in the kernel's format, in groups of eight digits."""
    cpus = CPUSet(numbers)
    assert CPUSet.parse_mask(cpus.to_mask()) == cpus
    assert (CPUSet([0, 33, 34, 35, 64]).to_mask(), EMPTY.to_mask()) == ("1,0000000e,00000001", "0")


@pytest.mark.parametrize(
    ("cpus", "mask"),
    [([], "0"), (range(8), "ff"), ([0, 33, 34, 35, 64], "1,0000000e,00000001")],
)
def test_the_kernel_mask_format_is_written(cpus: Iterable[int], mask: str) -> None:
    """Groups have eight digits, the first no leading zeros."""
    assert CPUSet(cpus).to_mask() == mask
