"""Foreign writes of a cpuset: when a conflict begins and ends, and in which order child cgroups are moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import Unfinished
from agent.interfaces import RuntimeContainer
from agent.reconcile.container_record import ContainerRecord
from agent.reconcile.foreign_writes import WINDOW_SECONDS, ChildCgroups, ForeignWrites
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import Owner, State

if TYPE_CHECKING:
    from tests.agent.fakes import FakeNode

ONE, OTHER = Owner("a", "c0"), Owner("b", "c0")


def after(*times: float) -> ForeignWrites[Owner]:
    """Return the record of a container with foreign writes at these times."""
    writes: ForeignWrites[Owner] = ForeignWrites()
    for time in times:
        writes = writes.at(time).saw(ONE, time)
    return writes


@pytest.mark.parametrize(
    ("times", "is_conflict"),
    [
        pytest.param((0,), False, id="one"),
        pytest.param((0, 1), False, id="two"),
        pytest.param((0, 1, 2), True, id="three"),
        pytest.param((0, 300, 599), True, id="three within ten minutes"),
        pytest.param((0, 300, 601), False, id="three in more than ten minutes"),
        pytest.param((0, 1, 2, 500, 1000), True, id="a conflict goes on while it is not quiet"),
        pytest.param((0, 1, 2, 700), False, id="ten quiet minutes end it"),
    ],
)
def test_three_rewrites_in_ten_minutes_are_a_conflict(times: tuple[float, ...], is_conflict: bool) -> None:
    """Three rewrites within ten minutes are a conflict, which ends after ten minutes without one."""
    assert after(*times).is_conflict(ONE) is is_conflict


def test_conflict_concerns_its_container_only() -> None:
    """A conflict of one container does not affect the others."""
    assert after(0, 1, 2).conflicts == (ONE,)
    assert not after(0, 1, 2).is_conflict(OTHER)


def test_many_writes_are_counted_at_once() -> None:
    """If a pass finds several foreign writes at once, it counts each of them."""
    assert after(0, 1).saw_all((ONE, OTHER), 2) == after(0, 1).saw(ONE, 2).saw(OTHER, 2)


def test_time_until_a_conflict_ends_is_known() -> None:
    """`ends` returns the seconds until the conflict is over, or None without one."""
    assert after(0, 1, 2).ends(100) == WINDOW_SECONDS - 98
    assert ForeignWrites().ends(5) is None


@given(times=st.lists(st.integers(0, 5000), max_size=12))
def test_quiet_ends_everything(times: list[int]) -> None:
    """After ten minutes without foreign writes no record of them is left."""
    writes = after(*sorted(times))
    assert writes.at(max(times, default=0) + WINDOW_SECONDS) == ForeignWrites()


def rewritten(name: str, before: str) -> ContainerRecord:
    """Return the record of a container to whose cgroup another program wrote the planned CPUs."""
    seen = RuntimeContainer(name, name, "test", name, "c0", State.RUNNING, 100, f"/{name}")
    record = ContainerRecord(seen, is_awaited=False)
    record.planned(CPUSet.parse("0-7"), is_owner=False)
    for cpus in (before, "0-7"):
        record.found(CPUSet.parse(cpus), "2026-11-29T00:00:00Z")
    return record


def test_new_rewrites_do_not_postpone_an_earlier_move(node: FakeNode) -> None:
    """The child cgroups of an earlier foreign write are moved before those of a later one that takes several passes."""
    records = {name: rewritten(name, "1,5") for name in "abc"}
    node.cgroups.version = 1
    node.cpusets |= {f"/{name}": CPUSet.parse("0-7") for name in records}
    node.cgroups.errors = {f"/{name}": Unfinished("has more than 1024 cgroups") for name in records}
    children = ChildCgroups(node.cgroups)
    children.follow([records["a"]], records)
    del node.cgroups.errors["/a"]
    for name in "bc":
        children.follow([records[name]], records)
    assert node.cgroups.befores == [("/a", "1,5")]


def test_move_continues_from_the_newest_rewrite(node: FakeNode) -> None:
    """After another foreign write, child cgroups are moved from the CPUs that they had before that write."""
    node.cgroups.version = 1
    node.cpusets["/a"] = CPUSet.parse("0-7")
    node.cgroups.errors["/a"] = Unfinished("has more than 1024 cgroups")
    children = ChildCgroups(node.cgroups)
    for before in ("1,5", "2,6"):
        record = rewritten("a", before)
        children.follow([record], {"a": record})
    node.cgroups.errors.clear()
    children.follow([], {"a": record})
    assert node.cgroups.befores == [("/a", "2,6")]
