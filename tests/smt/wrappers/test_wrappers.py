"""Commands under `cmk isolate` on an SMT machine: each has whole cores of its container."""

from __future__ import annotations

import pytest

from pinning.machine.cpuset import CPUSet, union
from tests.environments.guest.facts import CORES
from tests.environments.guest.guest import Report


def parsed(lists: list[str]) -> list[CPUSet]:
    """Return sets in the order of their lowest CPUs."""
    return sorted(map(CPUSet.parse, lists), key=CPUSet.lowest)


def test_without_the_resource_it_ends_with_one(node: Report) -> None:
    """Without the resource the command exits with code 1, and its error names the resource."""
    refusal, left = node.one("without")["lines"]

    assert "cmk.intel.com/exclusive-cores" in refusal
    assert left == "left with 1"


def test_of_fifty_that_race_as_many_win_as_there_are_cores(node: Report) -> None:
    """Each of the seven allocatable cores is assigned to one command, and the other commands are refused."""
    lines = node.one("race")["lines"]
    won = [line.removeprefix("on ") for line in lines if line != "lost"]

    assert len(lines) == 50
    assert parsed(won) == CORES[1:]


def test_four_at_once_take_four_whole_cores(node: Report) -> None:
    """Each command gets another core, and the kernel confines it to that core."""
    four = node.one("at_once")
    told = parsed(four["told"])

    assert len(told) == 4
    assert [core for core in CORES if core in told] == told
    assert told == parsed(four["tasks"]) == parsed(four["allowed"])
    assert not union(told) & CPUSet.parse(four["shared"])


def test_a_program_moves_its_helper_thread(node: Report) -> None:
    """A command starts on its own core; one thread stays there alone, the other moves to the shared set."""
    threads = node.one("wrapped_threads")
    own = CPUSet.parse(threads["own"])

    assert own in CORES
    assert CPUSet.parse(node.one("began")["line"].removeprefix("began on ")) == own
    assert threads["masks"] == sorted([threads["own"], threads["shared"]])
    assert not own & CPUSet.parse(threads["shared"])
    assert threads["foreign"] == []


@pytest.mark.parametrize("agent", ["killed", "stopped"])
def test_a_number_that_comes_again_is_another_process(node: Report, agent: str) -> None:
    """A process with the reused pid of a killed command has no claim, and the core is assigned to the next command."""
    (found,) = (fact for fact in node.all("number") if fact["agent"] == agent)
    before, after, pid = found["before"], found["after"], str(found["pid"])
    (new,) = after.keys() - before.keys()

    assert len(before) == len(after) == 4
    assert pid not in after
    assert after == {**{kept: cpus for kept, cpus in before.items() if kept != pid}, new: before[pid]}
    assert CPUSet.parse(found["told"][-1]) == CPUSet.parse(before[pid])


def test_starts_and_ends_leave_nothing(node: Report) -> None:
    """After many commands no claim, file descriptor or cgroup is left, and no command was refused."""
    cycles = node.one("cycles")

    assert cycles["lines"] == ["done"]
    assert cycles["more_files"] <= 4  # connections and files of passes come and go
    assert [node.one("wrappers_end")[what] for what in ("tasks", "left")] == [{}, []]


def test_helpers_of_a_container_are_on_the_shared_set(node: Report) -> None:
    """With `shared-cpus` a container starts on its own core; a helper thread moves to the shared set."""
    alone = node.all("helped")[0]
    own, shared = CPUSet.parse(alone["own"]), CPUSet.parse(alone["shared"])

    assert own in CORES
    assert CPUSet.parse(alone["lines"][0].removeprefix("began on ")) == own
    assert CPUSet.parse(alone["cpuset"]) == own | shared
    assert alone["masks"] == sorted([alone["own"], alone["shared"]])
    assert CPUSet.parse(alone["others"]) == shared


def test_a_grant_shrinks_the_shared_part_first(node: Report) -> None:
    """At the first instruction of a new owner both threads of the other container have left its core."""
    granted = node.all("helped")[1]
    cpuset, mine, *threads, _ = (line.split()[-1] for line in granted["lines"])

    assert CPUSet.parse(mine) == CPUSet.parse(granted["granted"])
    assert CPUSet.parse(mine) in CORES
    assert len(threads) == 2
    assert not CPUSet.parse(mine) & union(map(CPUSet.parse, (cpuset, *threads)))


def test_helpers_follow_the_shared_set(node: Report) -> None:
    """The helper thread follows the shared set as it shrinks and grows; the other thread stays."""
    steps = node.all("helped")

    assert [step["step"] for step in steps] == ["alone", "granted", "given back"]
    assert [step["masks"] for step in steps] == [sorted([step["own"], step["shared"]]) for step in steps]
    assert len({step["own"] for step in steps}) == 1
    assert steps[0]["shared"] == steps[2]["shared"] != steps[1]["shared"]
