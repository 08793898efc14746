"""The kernel's cpusets on an SMT machine while the agent assigns its CPUs."""

from __future__ import annotations

import pytest

from pinning.machine.cpuset import CPUSet
from tests.environments.guest.facts import (
    ALL,
    CORES,
    SOCKETS,
    cpus,
    idle,
    lost_cpus,
    others,
    owned_twice,
    shared,
    whole_cores,
)
from tests.environments.guest.guest import Report

KEEPERS = ("keeper-whole", "keeper-three")


def grouped(rows: list[list[int]], column: int) -> set[CPUSet]:
    """Return the CPU sets that share a value in one column of lscpu's table."""
    return {
        CPUSet(row[0] for row in rows if row[column] == number) for number in {row[column] for row in rows}
    }


def test_scenario_comes_to_its_end(node: Report) -> None:
    """Agent and kernel agree after every step, and no pass of the agent raised an exception."""
    assert node.facts.get("unsettled", []) == []
    assert node.one("log")["crashes"] == []


@pytest.mark.parametrize(
    ("column", "key"),
    [
        pytest.param(1, "cores", id="cores"),
        pytest.param(2, "packages", id="packages"),
        pytest.param(3, "numaNodes", id="numa-nodes"),
    ],
)
def test_agent_reads_the_topology_of_lscpu(node: Report, column: int, key: str) -> None:
    """The agent and lscpu see the same cores, packages and NUMA nodes."""
    topology = node.one("topology")
    listed = topology["agent"][key]
    lists = listed.values() if isinstance(listed, dict) else listed

    assert {CPUSet.parse(text) for text in lists} == grouped(topology["lscpu"], column)


def test_machine_has_sockets_cores_and_threads(node: Report) -> None:
    """The emulated machine has the sockets, cores and threads on which the tests rely."""
    rows = node.one("topology")["lscpu"]

    assert grouped(rows, 1) == set(CORES)
    assert grouped(rows, 2) == set(SOCKETS)


def test_local_runtime_uses_cgroups_of_version_2(node: Report) -> None:
    """A process of the local runtime starts on the given CPUs, moves with its child, and leaves no cgroup."""
    local = node.one("local")

    assert local["runtime"] == "local processes in cgroups v2"
    assert local["first"] == "1"
    assert local["cpuset"] == "2-3"
    assert local["processes"] == ["2-3", "2-3"]
    assert local["left"] == []


def test_prefer_takes_a_whole_core_and_one_thread(node: Report) -> None:
    """Of three CPUs two are one core, and the sibling of the third is left to the shared set."""
    seen = node.one("policies")
    mine = cpus(seen, "prefer")

    assert len(mine) == 3
    assert sum(core <= mine for core in CORES) == 1
    assert idle(seen, "prefer") == CPUSet()
    assert whole_cores(mine) - mine <= cpus(seen, "bystander")


def test_require_idles_the_last_sibling(node: Report) -> None:
    """Three CPUs under `require` are on two cores, whose fourth CPU stays idle."""
    seen = node.one("policies")
    mine = cpus(seen, "require")

    assert len(mine) == 3
    assert len(whole_cores(mine)) == 4
    assert idle(seen, "require") == whole_cores(mine) - mine
    assert not whole_cores(mine) & others(seen, "require")


def test_isolate_runs_one_thread_of_each_core(node: Report) -> None:
    """Two CPUs under `isolate` are on two cores, whose siblings stay idle."""
    seen = node.one("policies")
    mine = cpus(seen, "isolate")

    assert len(mine) == 2
    assert len(whole_cores(mine)) == 4
    assert idle(seen, "isolate") == whole_cores(mine) - mine
    assert not whole_cores(mine) & others(seen, "isolate")


def test_bystander_runs_on_the_rest(node: Report) -> None:
    """Pods without claims run on all CPUs that are neither owned nor kept idle, reserved CPUs among them."""
    seen = node.one("policies")
    taken = cpus(seen, "prefer") | whole_cores(cpus(seen, "require") | cpus(seen, "isolate"))

    assert cpus(seen, "bystander") == shared(seen) == CPUSet.parse(seen["online"]) - taken
    assert owned_twice(seen) == lost_cpus(seen) == CPUSet()


def test_removed_pods_give_everything_back(node: Report) -> None:
    """After all claims are removed the bystander may run on every CPU."""
    seen = node.one("removed")

    assert seen["held"] == {}
    assert cpus(seen, "bystander") == CPUSet.parse(seen["online"])


def test_live_change_moves_the_running_processes(node: Report) -> None:
    """Changes from exclusive to share to none move the running tasks accordingly."""
    exclusive, share, none = node.all("live")
    owned = cpus(exclusive, "moving")

    assert len(owned) == 2
    assert cpus(exclusive, "bystander") == CPUSet.parse(exclusive["online"]) - owned
    assert len(cpus(share, "moving")) == 2
    assert cpus(share, "bystander") == shared(share) >= cpus(share, "moving")
    assert cpus(none, "moving") == cpus(none, "bystander") == CPUSet.parse(none["online"])
    assert len({tuple(step["pods"]["moving"]["tasks"]) for step in node.all("live")}) == 1


def test_offline_cpu_is_replaced_by_a_near_one(node: Report) -> None:
    """The owner of an offline CPU keeps its other CPU and gets one of the same socket, whose sibling stays idle."""
    before, offline, _ = node.all("offline")
    gone = CPUSet((offline["cpu"],))
    kept = cpus(before, "whole") - gone
    mine = cpus(offline, "whole")

    assert whole_cores(cpus(before, "whole")) == cpus(before, "whole")
    assert kept <= mine
    assert len(mine) == 2
    assert [socket for socket in SOCKETS if mine <= socket] == [
        socket for socket in SOCKETS if kept <= socket
    ]
    assert not (whole_cores(mine) - gone) & others(offline, "whole")
    assert not gone & CPUSet.parse(offline["online"])


def test_cpu_back_online_is_idle_for_the_owner_of_its_core(node: Report) -> None:
    """A CPU that is online again stays idle for the owner of its core, and no pod moves."""
    _, offline, back = node.all("offline")
    gone = CPUSet((back["cpu"],))

    assert cpus(back, "whole") == cpus(offline, "whole")
    assert gone <= idle(back, "whole")
    assert not whole_cores(cpus(back, "whole")) & cpus(back, "bystander")
    assert owned_twice(back) == lost_cpus(back) == CPUSet()


def test_bystander_is_never_on_exclusive_cpus(node: Report) -> None:
    """While a CPU goes offline and online the bystander is never on a CPU of the owner."""
    watched = node.one("bystander")

    assert watched["looks"] > 0
    assert watched["seen"] == [""]


def test_kills_leave_no_cpu_owned_twice_and_none_lost(node: Report) -> None:
    """After each of ten kills under churn every CPU has one owner, is idle for one, or is shared."""
    kills = node.all("kill")

    assert len(kills) == 10
    assert [kill["number"] for kill in kills if owned_twice(kill)] == []
    assert [kill["number"] for kill in kills if lost_cpus(kill)] == []


def test_kills_move_no_running_container(node: Report) -> None:
    """Through all kills two long-lived pods keep their CPUs and processes."""
    first = node.one("keepers")
    kept = node.one("kept")

    assert kept == {name: [first["pods"][name]["cpuset"]] for name in KEEPERS}
    for kill in node.all("kill"):
        assert {name: kill["pods"][name] for name in KEEPERS} == {
            name: first["pods"][name] for name in KEEPERS
        }


def test_kills_cause_no_refusal(node: Report) -> None:
    """Through all kills no pod of the churn is refused."""
    assert [kill["refusals"] for kill in node.all("kill")] == [[]] * 10


def test_births_over_nri_are_on_their_cores(node: Report) -> None:
    """Containers under `require` and `isolate` start on their own whole cores, and a third one elsewhere."""
    seen = node.one("births")
    first = {name: CPUSet.parse(text) for name, text in seen["first"].items()}

    assert first == {name: cpus(seen, name) for name in first}
    assert [len(first["require"]), len(first["isolate"])] == [3, 2]
    assert [len(whole_cores(first[name])) for name in ("require", "isolate")] == [4, 4]
    assert not whole_cores(first["require"] | first["isolate"]) & first["plain"]
    assert first["plain"] == cpus(seen, "bystander") == shared(seen)


def test_container_waits_for_free_isolated_cores(node: Report) -> None:
    """A container that needs isolated cores is refused until enough are free, and then starts on them."""
    refused = node.one("refused")
    late = node.one("late")
    mine = cpus(late, "late")

    assert any(refusal["message"] in refused["error"] for refusal in refused["refusals"])
    assert CPUSet.parse(late["first"]) == mine
    assert [len(mine), len(whole_cores(mine))] == [4, 8]
    assert not whole_cores(mine) & others(late, "late")
    assert owned_twice(late) == lost_cpus(late) == CPUSet()


def test_container_of_crun_is_born_on_its_core_and_is_moved(node: Report) -> None:
    """A container of crun starts on its core, and moves to the shared CPUs when its policy changes."""
    born, moved = node.all("crun")

    assert "status" in born["files"]
    assert CPUSet.parse(born["first"]) == cpus(born, "crun")
    assert [len(cpus(born, "crun")), len(whole_cores(cpus(born, "crun")))] == [2, 2]
    assert not cpus(born, "crun") & others(born, "crun")
    assert cpus(born, "crun") <= cpus(moved, "crun") == shared(moved)


def test_strict_reserve_is_for_system_containers_alone(node: Report) -> None:
    """From its first line on a container of a system namespace has the reserved CPUs, and no other container has one."""
    seen = node.one("reserved")
    first = {name: CPUSet.parse(text) for name, text in seen["first"].items()}

    assert first == {name: cpus(seen, name) for name in first}
    assert first["system"] == CPUSet.parse(seen["sets"]["reserved"]) == CORES[0]
    assert [len(first["require"]), len(whole_cores(first["require"]))] == [3, 4]
    assert first["plain"] == cpus(seen, "bystander") == shared(seen)
    assert shared(seen) == ALL - CORES[0] - whole_cores(first["require"])
