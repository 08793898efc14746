"""The desired node: core counts, shared load, hidden cost, and patches that keep fields of other programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from agent.config import NodeOptions
from agent.node_state import NodeState, QuietPart, QuietResult
from agent.report.desired_node import CMK_TAINT, DesiredNode, cleared, desired_node, pools_text
from agent.report.extended_resources import RESOURCES, node_resources
from agent.report.node_patch import differences
from agent.report.node_types import Condition, Node, Taint
from agent.report.owner_fit import MOST_BYTES, fitting_owners
from pinning.contract import (
    NOISE_CONDITION,
    OVERCOMMIT_CONDITION,
    OVERCOMMIT_TAINT_KEY,
    KubeletPolicy,
    QuietWord,
)
from pinning.machine.cpuset import CPUSet
from pinning.planning.node_config import NodeConfig, StaticPools
from pinning.planning.requests import Overcommit, in_shared_set, overcommit
from pinning.pods.types import Pod
from published.node_pools import Owner
from tests.agent.states import EXCLUSIVE, ISOLATE, MACHINE, bound, state_of
from tests.pods import CORES, OTHER_CORES, container
from tests.tables import table

NOW = "2026-11-20T12:00:00Z"
ISOLATED = "corepin.io/isolated-cores"
WHOLE, NUMA = "corepin.io/whole-cores", "corepin.io/numa-cpus"
NOTHING = dict.fromkeys(RESOURCES, 0)
REQUIRE = {"smt-policy.corepin.io/pod": "require"}
SINGLE = {"cpu-manager.corepin.io/pod": "exclusive", "numa-policy.corepin.io/pod": "single"}
OPTIONS = NodeOptions()


def cores(name: str, number: int, resource: str = CORES, **more: Any) -> Pod:
    """Return a pod that claims whole cores."""
    return bound(name, container("main", {resource: number}), **more)


def isolated(name: str, number: int) -> Pod:
    """Return a pod with the count of isolated cores that the webhook adds."""
    return bound(name, container("main", {"cpu": number, ISOLATED: number}), annotations=ISOLATE)


def counted(name: str, cpus: int, resource: str, number: int, words: Mapping[str, str]) -> Pod:
    """Return a pod with the count that the webhook adds for its CPUs."""
    return bound(name, container("main", {"cpu": cpus, resource: number}), annotations=words)


def over(pod: Pod) -> Pod:
    """Return the pod in phase Succeeded."""
    return {**pod, "status": {"phase": "Succeeded"}}


@table(
    "pods, numbers",
    {
        "all free cores, the reserved one is none": ([], (3, 3, 3, 3, 6)),
        "CPUs of others take a core away": ([bound("a", annotations=EXCLUSIVE)], (2, 2, 2, 2, 4)),
        "held by such claims, and free": ([cores("a", 2)], (3, 1, 1, 1, 2)),
        "each counts its own": ([cores("a", 1), isolated("b", 1)], (2, 1, 2, 1, 2)),
        "the idle sibling of an odd count": ([counted("a", 3, WHOLE, 2, REQUIRE)], (1, 1, 1, 3, 2)),
        "CPUs of one NUMA node": ([counted("a", 2, NUMA, 2, SINGLE)], (2, 2, 2, 2, 6)),
        "no NUMA node has so many": ([counted("a", 5, NUMA, 5, SINGLE)], (3, 3, 3, 3, 6)),
        "never below what bound pods claim": ([cores("a", 9)], (9, 3, 3, 3, 6)),
        "pods that are over claim nothing": ([over(cores("a", 9))], (3, 3, 3, 3, 6)),
        "half a core": ([bound("a", container("main", 1), annotations=EXCLUSIVE)], (2, 2, 2, 2, 5)),
    },
)
def test_resources(pods: list[Pod], numbers: tuple[int, ...]) -> None:
    """Resources count free exclusive, non-isolcpus, isolated and whole cores, and CPUs of NUMA nodes."""
    resources = node_resources(state_of(*pods), pods)
    assert resources == dict(zip(RESOURCES, numbers, strict=True))


def test_cores_of_a_deleted_pod_that_still_runs_are_not_published() -> None:
    """Cores of a deleted pod whose container still runs are not published as free."""
    pod = cores("a", 2)
    state = state_of(pod)
    gone = replace(state, seen_pods=())
    resources = node_resources(gone, [])
    assert resources is not None
    assert resources[CORES] == 1


def test_nothing_is_published_before_everything_is_known() -> None:
    """Nothing is published before all pods and containers are known, because numbers would be wrong."""
    state = state_of(complete=False)
    assert node_resources(state, []) is None
    assert desired_node(state, [], OPTIONS) is None


def test_static_pools_bound_the_numbers() -> None:
    """With CMK's static pools only the cores of the pools count, each for its own resource."""
    pools = StaticPools(exclusive_cores=1, exclusive_non_isolcpus=CPUSet([3]))
    resources = node_resources(state_of(config=NodeConfig(pools=pools)), [])
    assert resources == {CORES: 1, OTHER_CORES: 1, ISOLATED: 1, WHOLE: 1, NUMA: 2}


def test_an_offline_sibling_leaves_a_core() -> None:
    """A core counts if one of its CPUs is online."""
    machine = MACHINE.with_online(CPUSet([0, 1, 2, 4, 6]))
    resources = node_resources(state_of(machine=machine), [])
    assert resources is not None
    assert resources[CORES] == 2


def test_numbers_never_rise_while_observing() -> None:
    """While the agent observes, resources cover only what bound pods request and never rise."""
    pods = [cores("a", 2)]
    state = state_of(*pods, config=NodeConfig(observe=True))
    assert node_resources(state, pods) == {**NOTHING, CORES: 2}
    assert node_resources(state, pods, {CORES: 1}) == {**NOTHING, CORES: 1}
    assert node_resources(state, [], {CORES: 2}) == NOTHING


@table(
    "observes, kubelet, is_true",
    {
        "the agent pins": (False, "none", True),
        "the agent pins, whatever the kubelet does": (False, "unknown", True),
        "the kubelet allocates, and the agent pins inside": (True, "static", True),
        "nobody does": (True, "none", False),
        "nobody knows who does": (True, "unknown", False),
    },
)
def test_labels_of_kubevirt_are_kept_while_the_node_can_pin(
    observes: bool,
    kubelet: str,
    is_true: bool,
) -> None:
    """KubeVirt's labels are set while CPUs are pinned, and left to KubeVirt's handler otherwise."""
    state = replace(state_of(), observes=observes, kubelet=KubeletPolicy(kubelet))
    wanted = desired_node(state, [], NodeOptions(frozenset({"CPUManager"})))
    assert wanted
    labels = ("cpumanager", "kubevirt.io/cpumanager") if is_true else ()
    assert wanted.labels == dict.fromkeys(("cmk.intel.com/cmk-node", *labels), "true")


def test_shared_requests_are_compared_with_the_shared_cpus() -> None:
    """The shared load excludes exclusive containers and finished pods, and is exact in millicores."""
    owner = bound("a", container("main", 2), container("side", requests="500m"), annotations=EXCLUSIVE)
    pods = [owner, bound("b", container("x", requests="2500m")), over(bound("c", container("x", requests=9)))]
    state = state_of(*pods)
    assert overcommit(pods, state.ledger, 2) == Overcommit(3000, 2000)
    assert Overcommit(3000, 2000).is_over
    assert not Overcommit(2000, 2000).is_over


@pytest.mark.parametrize(
    ("pools", "status", "taints"),
    [(None, "False", []), (StaticPools(exclusive_cores=2, shared_cores=1), "True", [OVERCOMMIT_TAINT_KEY])],
    ids=["dynamic", "static"],
)
def test_cores_of_static_pools_are_no_shared_cpus(
    pools: StaticPools | None, status: str, taints: list[str]
) -> None:
    """With static pools the shared CPUs are only the pool's, so the same requests overcommit the node."""
    pods = [bound("a", container("x", requests="1500m")), bound("b", container("x", requests="1500m"))]
    state = state_of(*pods, config=NodeConfig(pools=pools))
    desired = wanted(state, pods, NodeOptions(overcommit_taint=True))
    assert [it.status for it in desired.conditions if it.type == OVERCOMMIT_CONDITION] == [status]
    assert [it.key for it in desired.taints] == taints


@table(
    "config, request_, reason, shared",
    {
        "no system namespaces": ({}, "3", "Enough", 3000),
        "they fit": ({"system_namespaces": ("default",)}, "2", "Enough", 2000),
        "they do not fit": ({"system_namespaces": ("default",)}, "3", "RequestsExceedReservedCPUs", 3000),
        "a strict reserve is not shared": (
            {"system_namespaces": ("default",), "strict_reserved": True},
            "3",
            "RequestsExceedReservedCPUs",
            0,
        ),
        "not even shared CPUs": ({"system_namespaces": ("default",)}, "9", "RequestsExceedSharedCPUs", 9000),
    },
)
def test_system_requests_are_compared_with_the_reserved_cpus(
    config: dict[str, Any], request_: str, reason: str, shared: int
) -> None:
    """Requests above the reserved CPUs set a condition; a strict reserve keeps them off the shared load."""
    pods = [bound("a", container("x", requests=request_))]
    state = state_of(*pods, config=NodeConfig(**config))
    desired = wanted(state, pods, NodeOptions())
    assert [it.reason for it in desired.conditions if it.type == OVERCOMMIT_CONDITION] == [reason]
    assert overcommit(in_shared_set(pods, state.sets), state.ledger, 4).requested == shared


def test_the_pools_annotation_names_every_set_and_owner() -> None:
    """The pools annotation has every CPU set and owner, which is all that `corepin map` needs."""
    pods = [
        isolated("a", 1),
        bound("b", container("main", 1), annotations={"cpu-manager.corepin.io/pod": "share"}),
    ]
    pools = json.loads(pools_text(state_of(*pods), pods, OPTIONS))
    assert pools == {
        "version": 1,
        "observes": False,
        "universe": "0-7",
        "reserved": "0,4",
        "shared": "0,2-4,6-7",
        "setAside": "",
        "isolated": "",
        "free": "3,6-7",
        "reservedBy": "default",
        "alignUncore": False,
        "owners": {
            "default/a/main": {"policy": "exclusive", "cpus": "1", "smtPolicy": "isolate", "idle": "5"},
            "default/b/main": {"policy": "share", "cpus": "2"},
        },
        "hidden": {"idleCPUs": 1, "sidecars": {"containers": 0, "cpu": "0m", "memory": "0"}},
    }


def test_owners_of_few_pods_leave_room_for_the_rest_of_the_node() -> None:
    """The number of owners in the annotation is limited, because the API server refuses too large Nodes."""
    inits = [container(f"{number:03}{'c' * 60}", 1) for number in range(199)]
    share = {"cpu-manager.corepin.io/pod": "share"}
    crowd = [
        bound(f"{number}{'x' * 240}", container("main", 1), annotations=share, namespace="n" * 63)
        for number in range(4)
    ]
    for each in crowd:
        each["spec"]["initContainers"] = inits  # type: ignore[index]
    pods = [*crowd, isolated("a", 1)]
    text = pools_text(state_of(*pods), pods, OPTIONS)
    pools = json.loads(text)
    assert len(text) < MOST_BYTES + 1000
    assert "default/a/main" in pools["owners"]
    assert len(pools["owners"]) + pools["moreOwners"] == 4 * 200 + 1


def test_namespaces_with_the_most_owners_lose_some() -> None:
    """Above the limit, namespaces with the most owners lose some, and no namespace loses all."""
    owner = Owner(policy="exclusive", cpus="1")
    names = [
        *(f"a/{number:03}/c" for number in range(100)),
        *(f"b/{number:03}/c" for number in range(60)),
        "c/p/c",
    ]
    kept = fitting_owners(dict.fromkeys(names, owner), 5000)
    assert Counter(name[0] for name in kept) == {"a": 56, "b": 56, "c": 1}
    assert list(kept)[:2] == ["a/000/c", "a/001/c"]


def wanted(state: NodeState, pods: Collection[Pod], options: NodeOptions) -> DesiredNode:
    """Return the fields of a node whose state is complete."""
    desired = desired_node(state, pods, options)
    assert desired
    return desired


def node(**parts: Any) -> Node:
    """Return a Node object."""
    metadata = {"name": "node-1", "resourceVersion": "5", **parts.pop("metadata", {})}
    return msgspec.convert({"metadata": metadata, **parts}, Node)


def applied(status: Mapping[str, Any] | None, spec: Mapping[str, Any] | None) -> Node:
    """Return an empty node after the patches."""
    parts = dict(status or {})
    taints = (spec or {}).get("spec", {})
    return node(metadata=parts.get("metadata", {}), status=parts.get("status", {}), spec=taints)


def test_patching_is_idempotent() -> None:
    """A node that already has the desired fields needs no patch."""
    pods = [cores("a", 2)]
    desired = wanted(state_of(*pods), pods, NodeOptions(frozenset({"CPUManager"}), cmk_taint=True))
    needed = differences(node(), desired, NOW)
    there = applied(needed.status, needed.spec)
    again = differences(there, desired, "2027-01-01T00:00:00Z")
    assert (again.status, again.spec) == (None, None)


@table(
    "there, after",
    {
        "added": ([], ["cmk=true:NoSchedule"]),
        "there": (["cmk=true:NoSchedule"], None),
        "beside others": (["a=b:NoExecute"], ["a=b:NoExecute", "cmk=true:NoSchedule"]),
        "in its place": (["cmk=old:NoSchedule"], ["cmk=true:NoSchedule"]),
        "ready": (
            [
                "cmk=old:NoExecute",
                "corepin.io/agent-not-ready=:NoSchedule",
                "corepin.io/agent-not-ready=:NoExecute",
            ],
            ["cmk=old:NoExecute", "cmk=true:NoSchedule"],
        ),
        "not over any more": (
            ["corepin.io/shared-overcommitted=true:NoSchedule", "cmk=true:NoSchedule"],
            ["cmk=true:NoSchedule"],
        ),
    },
)
def test_taints(there: list[str], after: list[str] | None) -> None:
    """The taint list is patched as a whole for one resourceVersion, and other taints are kept."""
    desired = wanted(state_of(), [], NodeOptions(cmk_taint=True))
    patch = differences(
        node(spec={"taints": msgspec.to_builtins([taint(text) for text in there])}), desired, NOW
    ).spec
    if after is None:
        assert patch is None
        return
    assert patch
    assert patch["metadata"] == {"resourceVersion": "5"}
    assert msgspec.convert(patch["spec"]["taints"], list[Taint]) == [taint(text) for text in after]


def taint(text: str) -> Taint:
    """Parse key=value:effect."""
    key, _, rest = text.partition("=")
    value, _, effect = rest.partition(":")
    return Taint(key, effect, value)


def test_the_overcommit_taint_is_optional() -> None:
    """The overcommit taint is set only if enabled and shared requests exceed the shared CPUs."""
    pods = [bound("a", container("x", requests=9))]
    for chosen, keys in ((False, []), (True, ["corepin.io/shared-overcommitted"])):
        desired = wanted(state_of(*pods), pods, NodeOptions(overcommit_taint=chosen))
        assert [taint.key for taint in desired.taints] == keys


def test_a_taint_of_cmk_set_by_hand_stays() -> None:
    """Without the option the CMK taint is neither added nor removed, at reset neither."""
    there = node(spec={"taints": [{"key": "cmk", "value": "true", "effect": "NoSchedule"}]})
    desired = wanted(state_of(), [], OPTIONS)
    assert differences(there, desired, NOW).spec is None
    assert differences(there, cleared(OPTIONS), NOW).spec is None
    assert differences(there, cleared(NodeOptions(cmk_taint=True)), NOW).spec
    assert CMK_TAINT.key_and_effect == ("cmk", "NoSchedule")


@table(
    "config, status, reason",
    {
        "none": (NodeConfig(), "False", "CorepinGivesCPUs"),
        "static": (NodeConfig(observe=True), "True", "KubeletStaticPolicy"),
    },
)
def test_the_kubelets_policy_is_a_condition(config: NodeConfig, status: str, reason: str) -> None:
    """A condition says whether corepin or the kubelet allocates CPUs, with the remedy."""
    desired = wanted(state_of(config=config), [], OPTIONS)
    kubelet, *_ = desired.conditions
    assert (kubelet.status, kubelet.reason) == (status, reason)
    assert ("cpuManagerPolicy" in kubelet.message) == config.observe


def test_transition_time_changes_only_with_the_status() -> None:
    """The transition time changes with the status only, and an equal condition is not written."""
    old = "2026-01-01T00:00:00Z"
    pods = [bound("a", container("x", requests=9))]
    desired = wanted(state_of(*pods), pods, OPTIONS)
    _, load, *_ = desired.conditions
    assert "9000m CPU, but it has 8000m" in load.message
    for message, status, since in (("other", "True", old), (load.message, "False", NOW)):
        before = {
            **msgspec.to_builtins(load),
            "message": message,
            "status": status,
            "lastTransitionTime": old,
        }
        there = node(status={"conditions": [before]})
        patch = differences(there, desired, NOW).status
        assert patch
        [turned] = [
            condition for condition in patch["status"]["conditions"] if condition["type"] == load.type
        ]
        assert turned["lastTransitionTime"] == since
    same = Condition(load.type, load.status, load.reason, load.message, old)
    patch = differences(node(status={"conditions": [msgspec.to_builtins(same)]}), desired, NOW).status
    assert patch
    written = {condition["type"] for condition in patch["status"]["conditions"]}
    assert written == {"CorepinKubeletPolicy", "CorepinPluginConflict", "CorepinDegraded"}


def test_condition_about_noise_ends_with_the_feature() -> None:
    """When the moving of interrupts is switched off, its condition is removed from the node."""
    noise = {
        "type": NOISE_CONDITION,
        "status": "True",
        "reason": "r",
        "message": "m",
        "lastTransitionTime": NOW,
    }
    desired = wanted(state_of(), [], OPTIONS)
    patch = differences(node(status={"conditions": [noise]}), desired, NOW).status
    assert patch
    assert {"type": NOISE_CONDITION, "$patch": "delete"} in patch["status"]["conditions"]


def test_condition_about_noise_names_what_is_changed_back() -> None:
    """The condition's reason distinguishes kernel settings from interrupts that were moved back."""
    part = QuietPart(QuietWord.WORKQUEUES, "another program", ("the mask of workqueue scsi",))
    for result, reason in (
        (QuietResult(parts=(part,)), "KernelSettingsChangedBack"),
        (QuietResult(conflicts=("25 (eth0)",), parts=(part,)), "InterruptsMovedBack"),
        (QuietResult(), "NoConflict"),
    ):
        desired = wanted(replace(state_of(), quiet=result), [], OPTIONS)
        assert [it.reason for it in desired.conditions if it.type == NOISE_CONDITION] == [reason]


def test_another_plugin_is_a_condition() -> None:
    """Another NRI plugin that sets cpusets is a condition with its name and the remedy."""
    desired = wanted(replace(state_of(), other_plugins=("10-a", "20-b")), [], OPTIONS)
    *_, conflict, _ = desired.conditions
    assert (conflict.type, conflict.status) == ("CorepinPluginConflict", "True")
    assert "10-a, 20-b: stop them" in conflict.message


def test_capacity_and_allocatable_go_together() -> None:
    """Capacity and allocatable are patched together when one of them differs."""
    desired = wanted(state_of(), [], OPTIONS)
    full = {CORES: "3", OTHER_CORES: "3", ISOLATED: "3", WHOLE: "3", NUMA: "6"}
    patch = differences(
        node(status={"capacity": full, "allocatable": {**full, CORES: "0"}}), desired, NOW
    ).status
    assert patch
    assert patch["status"]["capacity"] == patch["status"]["allocatable"] == {CORES: "3"}


def test_reset_of_an_untouched_node_needs_no_patch() -> None:
    """Reset is idempotent: a node without corepin's fields gets no patch."""
    needed = differences(node(metadata={"labels": {"x": "y"}}), cleared(OPTIONS), NOW)
    assert (needed.status, needed.spec) == (None, None)
