"""The CPUs of each task when those of its container change: single cases and properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.task_parts import Parts, follow, is_away, parts_of
from tests.strategies import cpu_sets

ALL = CPUSet(range(8))


def parts(text: str) -> Parts:
    """Return both parts as "own/shared"."""
    home, _, others = text.partition("/")
    return Parts(CPUSet.parse(home), CPUSet.parse(others))


@pytest.mark.parametrize(
    ("mask", "before", "after", "expected"),
    [
        pytest.param("0-7", "/0-7", "2-3/0-1,4-7", "2-3", id="parts are made: all tasks go home"),
        pytest.param("2-3", "/2-3", "2-3/0-1", "2-3", id="an owner is widened: its tasks stay"),
        pytest.param("3", "/2-3", "2-3/0-1", "3", id="who chose one CPU keeps it"),
        pytest.param("0", "/0-7", "2-3/0-1", "0", id="who chose a CPU that is shared keeps it"),
        pytest.param("2-3", "2-3/0-1", "2-3/0-1,6", "2-3", id="the shared part grows: nobody leaves home"),
        pytest.param("0-1", "2-3/0-1", "2-3/0-1,6", "0-1,6", id="who has all of it gets more"),
        pytest.param("0", "2-3/0-1", "2-3/0-1,6", "0", id="who chose a part of it keeps that"),
        pytest.param("6", "2-3/0-1,6", "2-3/0-1", "0-1", id="a CPU goes: its task stays in the shared part"),
        pytest.param("1,6", "2-3/0-1,6", "2-3/0-1", "1", id="of a choice what is left"),
        pytest.param("0-1,6", "2-3/0-1,6", "2-3/0-1", "0-1", id="all of what is left"),
        pytest.param("2-3", "2-3/0-1,6-7", "6-7/0-3", "6-7", id="home moves, its tasks with it"),
        pytest.param("3", "2-3/0-1,6-7", "6-7/0-1", "6-7", id="a choice at home that is gone"),
        pytest.param("0-1,6-7", "2-3/0-1,6-7", "6-7/0-3", "0-3", id="helpers leave what becomes home"),
        pytest.param("0-3", "2-3/0-1", "2-3/0-1,6", "0-3,6", id="who chose everything has everything"),
        pytest.param("1-2", "2-3/0-1", "2/0", "2", id="who chose some of both has what is left of it"),
        pytest.param("2-3", "2-3/0-1", "/2-3", "2-3", id="parts end: all tasks may run everywhere"),
        pytest.param("0-1", "2-3/0-1", "/2-3", "2-3", id="helpers come back when there is nothing else"),
        pytest.param("2", "2-3/0-1", "/2-4", "2", id="and a choice stays one"),
    ],
)
def test_a_task_stays_on_its_part(mask: str, before: str, after: str, expected: str) -> None:
    """Tasks on the shared part follow it and never return to the own CPUs; other tasks follow the own CPUs."""
    assert follow(CPUSet.parse(mask), parts(before), parts(after)) == CPUSet.parse(expected)


def test_a_dropped_mask_does_not_move_a_task_back() -> None:
    """A task on the shared part stays there, even if the kernel has reset its affinity."""
    assert follow(ALL, parts("2-3/0-1,4-7"), parts("2-3/0-1"), was_away=True) == CPUSet.parse("0-1")


PARTS = cpu_sets(ALL).filter(bool).map(lambda home: parts_of(ALL, home))


@given(mask=cpu_sets(ALL).filter(bool), before=PARTS, after=PARTS, was_away=st.booleans())
def test_every_task_has_a_cpu(mask: CPUSet, before: Parts, after: Parts, was_away: bool) -> None:
    """Every task gets CPUs of its container, and a task on the shared part stays in it, whatever its CPUs were."""
    target = follow(mask, before, after, was_away=was_away)

    assert target != EMPTY
    assert target <= after.cpus
    if mask.isdisjoint(before.home) and after.others:
        assert target <= after.others
    if mask <= before.home and not was_away:
        assert target <= after.home


def test_parts_keep_within_a_set() -> None:
    """Both parts are limited to the CPUs of the given set."""
    assert parts("2-3/0-1").within(CPUSet.parse("1-2")) == parts("2/1")


def test_cpuset_without_home_has_one_part() -> None:
    """A cpuset without own CPUs is entirely the shared part, and no task counts as moved there."""
    whole = parts_of(ALL, EMPTY)
    assert whole == parts("/0-7")
    assert not is_away(CPUSet([0]), whole)
    assert [is_away(CPUSet([cpu]), parts_of(ALL, CPUSet([1]))) for cpu in (0, 1)] == [True, False]
