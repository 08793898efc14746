"""Reports of `cmk describe`, `node-report` and `reconcile`: shapes, order, pids, and overlapping lists."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given

from agent.report.cmk_node import TEXTS, cmk_node
from kubeyaml.reader import read_yaml
from pinning.cmk.pools import (
    EXCLUSIVE,
    INFRA,
    INIT,
    MOST_TASKS,
    SHARED,
    CMKNode,
    ExitSource,
    Reclaimed,
    Task,
    cmk_pools,
    cmk_yaml,
    cpu_lists,
    within_limit,
)
from pinning.cmk.reports import describe, node_report, reconcile_report, report_text
from pinning.machine.cpuset import CPUSet
from pinning.machine.topology import CPUFacts, assemble
from pinning.planning.ledger import Ledger
from pinning.planning.node_config import NodeConfig, StaticPools
from pinning.planning.node_sets import NodeSets
from tests.agent.states import EXCLUSIVE as EXCLUSIVE_POD
from tests.agent.states import bound, state_of
from tests.pods import CORES, container
from tests.strategies import static_nodes

TWO = bound("a", container("main", {CORES: 2}))
STATIC = NodeConfig(pools=StaticPools(exclusive_cores=2, shared_cores=1))
NAME = "default/a/main"


def task(pid: int, pool: str, cpus: str, name: str = NAME) -> Task:
    """Return a process that called `cmk isolate`."""
    return Task(pid, name, pool, CPUSet.parse(cpus))


def test_tasks_are_process_ids() -> None:
    """A core with a wrapper lists its pid, one that is only held the container's first; a shared pool lists its callers."""
    tasks = (
        task(48624, EXCLUSIVE, "1,5"),
        task(9, SHARED, "3,7", "default/b/main"),
        task(70, INFRA, "0,4", "default/c/main"),
    )
    pools = cmk_pools(cmk_node(state_of(TWO, config=STATIC))._replace(tasks=tasks, pids={NAME: 48000}))
    assert pools[EXCLUSIVE] == {0: {"1,5": [48624]}, 1: {"2,6": [48000]}}
    assert pools[SHARED] == {0: {}, 1: {"3,7": [9]}}
    assert pools[INFRA] == {0: {"0,4": [70]}, 1: {}}
    assert "    '1,5': ['48624']\n" in cmk_yaml(pools)


def test_a_held_core_without_a_known_process_lists_process_1() -> None:
    """A held core without a known process lists pid 1, which is not free and cannot be signalled."""
    pools = cmk_pools(cmk_node(state_of(TWO, config=STATIC)))
    assert pools[EXCLUSIVE] == {0: {"1,5": [INIT]}, 1: {"2,6": [INIT]}}


def test_two_wrappers_of_one_container_stand_in_the_order_of_their_pids() -> None:
    """Wrappers are sorted by pid as a number."""
    tasks = (task(1000, EXCLUSIVE, "1,5"), task(999, EXCLUSIVE, "1,5"))
    pools = cmk_pools(cmk_node(state_of(TWO, config=STATIC))._replace(tasks=tasks))
    assert pools[EXCLUSIVE][0] == {"1,5": [999, 1000]}


def test_a_container_that_shares_its_cpus_holds_no_core() -> None:
    """A container that shares its CPUs holds no core, so that its core's list is free for CMK's tools."""
    share = bound("a", container("main", 2), annotations={"cpu-manager.corepin.io/pod": "share"})
    pools = cmk_pools(cmk_node(state_of(share)))
    assert pools[EXCLUSIVE][0] == {"1,5": []}


def test_describe_has_cmks_shape() -> None:
    """Pools, their CPU lists of all sockets, tasks as numbers, and whether they are exclusive."""
    node = cmk_node(state_of(TWO, config=STATIC))._replace(tasks=(task(7, EXCLUSIVE, "1-2,5-6"),))
    assert describe(cmk_pools(node))["pools"] == {
        "exclusive": {
            "cpuLists": {"1,5": {"cpus": "1,5", "tasks": [7]}, "2,6": {"cpus": "2,6", "tasks": [7]}},
            "exclusive": True,
            "name": "exclusive",
        },
        "exclusive-non-isolcpus": {"cpuLists": {}, "exclusive": True, "name": "exclusive-non-isolcpus"},
        "infra": {
            "cpuLists": {"0,4": {"cpus": "0,4", "tasks": []}},
            "exclusive": False,
            "name": "infra",
        },
        "shared": {
            "cpuLists": {"3,7": {"cpus": "3,7", "tasks": []}},
            "exclusive": False,
            "name": "shared",
        },
    }


def test_without_a_core_set_aside_infra_names_who_asked_for_shared() -> None:
    """Without a shared pool callers of `shared` are listed under infra, and `shared` has no list, as in CMK."""
    config = NodeConfig(pools=StaticPools(exclusive_cores=2))
    tasks = (task(9, SHARED, "0,3-4,7", "default/b/main"), task(8, INFRA, "0,3-4,7", "default/c/main"))
    pools = cmk_pools(cmk_node(state_of(TWO, config=config))._replace(tasks=tasks))
    assert pools[SHARED] == {0: {}, 1: {}}
    assert pools[INFRA] == {0: {"0,4": [8, 9]}, 1: {"3,7": [8, 9]}}


@given(static_nodes())
def test_no_cpu_of_static_pools_is_in_two(sets: NodeSets) -> None:
    """No CPU is in two static pools, whatever is offline, isolated or listed."""
    cut, ledger = sets.pools, Ledger()
    node = CMKNode(
        sets.topology,
        sets.universe,
        cut.exclusive,
        cut.non_isolcpus,
        cut.set_aside,
        sets.shared(ledger),
        ledger,
        is_static=cut.is_static,
    )
    pools = cmk_pools(node).values()
    named = [
        cpu for sockets in pools for lists in sockets.values() for cpus in lists for cpu in cpus.split(",")
    ]
    assert len(named) == len(set(named))


def test_cores_stand_in_the_order_of_their_numbers() -> None:
    """Cores are sorted by number; CMK's order was 1, 10, 11, 2."""
    machine = assemble([CPUFacts(cpu, cpu, cpu // 6, cpu // 6) for cpu in range(12)], CPUSet(range(12)))
    pools = cmk_pools(cmk_node(state_of(machine=machine)))
    assert list(describe(pools)["pools"]["exclusive"]["cpuLists"]) == [str(cpu) for cpu in range(1, 12)]


def test_the_node_report_shows_sockets_cores_and_isolated_cpus() -> None:
    """Cores are named by their lowest CPU, and offline CPUs are left out."""
    machine = assemble(
        [CPUFacts(cpu, cpu % 4, cpu % 4 // 2, cpu % 4 // 2) for cpu in range(8)],
        CPUSet([0, 1, 2, 3, 4, 5, 6]),
        isolated=CPUSet([2, 6]),
    )
    report = node_report(cmk_pools(cmk_node(state_of(machine=machine))), machine)
    assert report["topology"]["sockets"]["1"] == {
        "id": 1,
        "cores": [
            {"id": 2, "cpus": [{"id": 2, "isolated": True}, {"id": 6, "isolated": True}]},
            {"id": 3, "cpus": [{"id": 3, "isolated": False}]},
        ],
    }
    assert report["checks"] == {"configDirectory": {"ok": True, "errors": []}}


def test_a_core_that_is_held_and_shared_is_reported() -> None:
    """A container with half a core leaves the sibling to the shared pool, which node-report finds as an overlap."""
    half = bound("a", container("main", 1), annotations=EXCLUSIVE_POD)
    state = state_of(half)
    check = node_report(cmk_pools(cmk_node(state)), state.topology)["checks"]["configDirectory"]
    assert check["ok"] is False
    assert check["errors"][0] == "CPU list overlap detected in exclusive:1,5 and infra:0,4,5 (in both: 5)"


def test_cpus_of_a_process_are_lists_of_its_pool() -> None:
    """An exclusive pool has a list for each core, another pool one for each socket, as in CMK."""
    machine = state_of(config=STATIC).topology

    def lists(pool: str, cpus: str) -> list[str]:
        return list(cpu_lists(pool, CPUSet.parse(cpus), machine))

    assert lists(EXCLUSIVE, "1-2,5-6") == ["1,5", "2,6"]
    assert lists(INFRA, "0-1,3-5") == ["0,4,1,5", "3"]
    assert lists(SHARED, "3,7") == ["3,7"]


def test_what_was_reclaimed_is_sorted_by_pid() -> None:
    """Reclaimed lists are sorted by pid, with the source if it is known, and the number of dropped entries."""
    ended = (
        Reclaimed(12, NAME, EXCLUSIVE, "2,6"),
        Reclaimed(3, NAME, SHARED, "3,7", ExitSource.RUNTIME),
    )
    lists = [
        {"cpus": "3,7", "pid": 3, "pool": "shared", "source": "runtime: exit code 137"},
        {"cpus": "2,6", "pid": 12, "pool": "exclusive"},
    ]
    assert reconcile_report(ended) == {"reclaimedCpuLists": lists}
    assert reconcile_report(ended, 7) == {"reclaimedCpuLists": lists, "dropped": 7}


def test_keys_stand_in_cmks_order() -> None:
    """CMK sorted the keys of its reports; only CPU lists, sockets, cores and CPUs stand in the order of their numbers."""
    state = replace(state_of(TWO, config=STATIC), reclaimed=(Reclaimed(3, NAME, SHARED, "3,7"),))
    for text in TEXTS.values():
        json.loads(text(state), object_pairs_hook=_in_order)


def _in_order(pairs: list[tuple[str, object]]) -> dict[str, object]:
    keys = [key for key, _ in pairs]
    assert keys == sorted(keys) or all(key[0].isdecimal() for key in keys)
    return dict(pairs)


def test_every_report_is_json_with_two_spaces() -> None:
    """Each report is indented JSON that ends with a line feed, for printing in a container."""
    assert report_text({"a": {"b": 1}}) == '{\n  "a": {\n    "b": 1\n  }\n}\n'
    assert TEXTS.keys() == {"describe", "node-report", "reconcile"}
    for text in TEXTS.values():
        assert json.loads(text(state_of(TWO, config=STATIC)))


def test_reports_in_a_container_have_no_names_of_pods() -> None:
    """The reports have process ids and held CPUs, as CMK's had, but no names of namespaces, pods and containers."""
    state = replace(state_of(TWO, config=STATIC), tasks=(task(7, EXCLUSIVE, "1,5"),))
    texts = [text(state) for text in TEXTS.values()]
    assert not any(NAME in text for text in texts)
    lists = json.loads(TEXTS["describe"](state))["pools"]["exclusive"]["cpuLists"]
    assert [lists[cpus]["tasks"] for cpus in ("1,5", "2,6")] == [[7], [INIT]]


def crowded(most: int) -> CMKNode:
    """Return a node with so many wrappers in pool `shared` beside one on a core of its own."""
    tasks = tuple(task(1_000_000 + at, SHARED, "0,4", f"default/b{at // 1024}/main") for at in range(most))
    return cmk_node(state_of(TWO))._replace(tasks=(task(9, EXCLUSIVE, "1,5"), *tasks))


def test_reports_of_a_hundred_thousand_wrappers_are_bounded() -> None:
    """Reports stay below the ConfigMap limit of 1 MiB and count what they drop, and no held list looks free."""
    pools = cmk_pools(crowded(100_000))
    text, report = cmk_yaml(pools), describe(pools)
    listed = MOST_TASKS // 3  # two exclusive lists are held too
    assert len(text) < 2**17
    assert text.startswith(f"# {100_000 - listed} processes are left out: at most {MOST_TASKS} are listed\n")
    assert report["dropped"] == 100_000 - listed
    assert list(report) == ["dropped", "pools"]
    assert len(report["pools"][INFRA]["cpuLists"]["0,4"]["tasks"]) in {0, listed}
    assert report["pools"][EXCLUSIVE]["cpuLists"]["1,5"]["tasks"] == [9]
    ((_, read),) = read_yaml(text)
    assert list(read) == list(pools)


def test_reports_with_fewer_wrappers_are_whole() -> None:
    """Reports with fewer wrappers than the limit are complete, without a note about dropped entries."""
    pools = cmk_pools(crowded(100))
    assert not cmk_yaml(pools).startswith("#")
    assert "dropped" not in describe(pools)


def test_more_held_lists_than_the_limit_keep_a_process_each() -> None:
    """Above the limit each held list keeps one process, because a list without one counts as a free core."""
    pools = {EXCLUSIVE: {0: {str(cpu): [1, 2] for cpu in range(MOST_TASKS)}}}
    kept, left_out = within_limit(pools)
    assert set(map(tuple, kept[EXCLUSIVE][0].values())) == {(1,)}
    assert left_out == MOST_TASKS
