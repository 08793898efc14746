"""CMK's commands and pods on a real cluster of one node with seven cores of two threads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pinning.machine.cpuset import CPUSet
from tests.environments.guest.guest import Report

STEPS = ["start", "install", "look", "examples", "hold", "kill", "without_webhook", "uninstall"]


def pools(walk: Report, step: str) -> Any:
    """Return CMK's pools as described at one step."""
    (found,) = [it["pools"] for it in walk.all("described") if it["step"] == step]
    return found


def lists(described: Any, pool: str) -> dict[str, list[int | str]]:
    """Return the CPU lists of a pool with their tasks."""
    return {cpus: it["tasks"] for cpus, it in described[pool]["cpuLists"].items()}


def test_walk_comes_to_its_end(cmk_walk: Report) -> None:
    """Every step of the walk succeeded within its timeout."""
    assert [failure["traceback"] for failure in cmk_walk.facts.get("failed", [])] == []
    assert [passed["step"] for passed in cmk_walk.all("passed")] == STEPS
    assert [call["command"] for call in cmk_walk.all("kubectl") if call["status"]] == []


def test_node_is_cut_as_cmk_cut_it(cmk_walk: Report) -> None:
    """The pools equal CMK's: four exclusive cores, one shared, one outside of isolcpus, and the reserved one in infra."""
    described = pools(cmk_walk, "look")
    assert lists(described, "exclusive") == {f"{cpu},{cpu + 1}": [] for cpu in (2, 4, 6, 8)}
    assert lists(described, "shared") == {"10,11": []}
    assert lists(described, "exclusive-non-isolcpus") == {"12,13": []}
    assert lists(described, "infra").keys() == {"0,1"}


ALL = {"exclusive": "Exclusive", "shared": "Shared", "infra": "Infra"}
NON_ISOLCPUS = {"exclusive-non-isolcpus": "Exclusive-Non-Isolcpus"}


@pytest.mark.parametrize(
    ("step", "pod", "expected", "injected"),
    [
        ("examples", "cmk-isolate-pod", ALL, True),
        ("examples", "cmk-isolate-excl-non-isolcpus-pod", NON_ISOLCPUS, True),
        ("examples", "cmk-isolate-pod-no-webhook", ALL, True),
        ("examples", "cmk-isolate-excl-non-isolcpus-pod-no-webhook", NON_ISOLCPUS, True),
        ("without_webhook", "cmk-isolate-pod-no-webhook", ALL, False),
        ("without_webhook", "cmk-isolate-excl-non-isolcpus-pod-no-webhook", NON_ISOLCPUS, False),
    ],
)
def test_example_pods_run_unchanged(
    cmk_walk: Report, step: str, pod: str, expected: dict[str, str], *, injected: bool
) -> None:
    """Each example pod succeeds with the output of its command, and its obsolete flag causes a warning."""
    (seen,) = [it for it in cmk_walk.all("example") if (it["step"], it["pod"]) == (step, pod)]
    assert (seen["phase"], seen["injected"]) == ("Succeeded", injected)
    assert seen["said"].keys() == {f"cmk-isolate-{pool}" for pool in expected}
    for pool, word in expected.items():
        told = seen["said"][f"cmk-isolate-{pool}"]
        assert f"Hello World {word}!!!" in told
        assert "--conf-dir does nothing" in told


def test_wrapped_command_is_pinned_and_described(cmk_walk: Report) -> None:
    """The reported pid is the wrapped command's, which runs alone on its two cores with CMK's variables."""
    seen = cmk_walk.one("held")
    mine = CPUSet(int(cpu) for cpus in seen["cpus"] for cpu in cpus.split(","))
    assert seen["command"] == ["sleep", "1000000"]
    assert (len(mine), CPUSet.parse(seen["allowed"])) == (4, mine)
    assert CPUSet.parse(seen["environment"]["CMK_CPUS_ASSIGNED"]) == mine
    assert CPUSet.parse(seen["environment"]["CMK_CPUS_SHARED"]) == CPUSet([10, 11])
    described = lists(pools(cmk_walk, "held"), "exclusive")
    assert [cpus for cpus, tasks in described.items() if tasks == [seen["pid"]]] == seen["cpus"]
    assert sum(not tasks for tasks in described.values()) == 2


def test_killed_command_gives_its_cores_back(cmk_walk: Report) -> None:
    """The report has an entry for each core of a killed command, with process and pool."""
    seen = cmk_walk.one("reconciled")
    reclaimed = json.loads(seen["said"])["reclaimedCpuLists"]
    mine = [it for it in reclaimed if it["pid"] == seen["pid"]]
    if not mine and not seen["is_known"]:
        return
    assert {it["pool"] for it in mine} == {"exclusive"}
    assert sorted(it["cpus"] for it in mine) == sorted(cmk_walk.one("held")["cpus"])


def test_uninstall_leaves_nothing_on_the_node(cmk_walk: Report) -> None:
    """After the uninstall the node has no labels, annotations, taint or `cmk` command of corepin."""
    left = cmk_walk.one("left")
    assert {name: found for name, found in left.items() if found} == {}
