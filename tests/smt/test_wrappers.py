"""Commands under `cmk isolate` on an SMT machine: whole cores of their container's own, whatever happens to the agent."""

from __future__ import annotations

from pinning.machine.cpuset import CPUSet
from tests.smt.facts import CORES
from tests.smt.guest import Report


def test_four_at_once_take_four_whole_cores(node: Report) -> None:
    """Each is told another core, in the order of their numbers, and the kernel holds it there."""
    four = node.one("four")
    told = [CPUSet.parse(line.removeprefix("on ")) for line in four["told"]]

    assert sorted(told, key=CPUSet.lowest) == CORES[1:5]
    assert sorted(map(str, told)) == sorted(four["tasks"]) == sorted(four["allowed"])


def test_of_fifty_that_race_for_a_core_one_wins(node: Report) -> None:
    """The others are told so; the cores that an agent gave out which was killed stay taken."""
    lines = node.one("race")["lines"]

    assert len(lines) == 50
    assert [line for line in lines if line != "lost"] == ["on 12,13"]


def test_a_thousand_starts_and_ends_leave_nothing(node: Report) -> None:
    """None was refused, and neither a claim nor a descriptor is left of them."""
    cycles = node.one("cycles")

    assert cycles["lines"] == ["done"]
    assert cycles["more_files"] <= 4  # connections and files of passes come and go
    assert node.one("wrappers_end")["left"] == []


def test_a_program_moves_its_helper_thread(node: Report) -> None:
    """One thread stays on the core of its own, the other on the shared set, and no sweep of the agent brings it back."""
    threads = node.one("wrapped_threads")

    assert threads["masks"] == sorted([threads["own"], threads["shared"]])
    assert CPUSet.parse(threads["own"]) == CORES[5]
    assert CPUSet.parse(threads["shared"]) == CORES[0]
