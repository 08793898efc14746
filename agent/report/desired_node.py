"""What the agent says about its node: annotations, labels, taints, conditions, resources. Pure.

`wanted` is everything that shall be said; `differences` turns it into the two patches that make it so, or into none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from agent.kubelet.policy import KubeletPolicy
from agent.report.extended_resources import RESOURCES, node_resources
from pinning.contract import (
    CMK_NODE_LABEL,
    CMK_TAINT_KEY,
    CMK_TAINT_VALUE,
    CPUMANAGER_LABELS,
    GATE_CPU_MANAGER,
    KUBELET_CONDITION,
    NOT_READY_TAINT_KEY,
    OVERCOMMIT_CONDITION,
    OVERCOMMIT_TAINT_KEY,
    STATUS_POOLS,
    STATUS_TOPOLOGY,
)
from pinning.planning.requests import SIDECAR, Amount, Overcommit, overcommit, sidecars

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from agent.node_state import NodeState
    from pinning.planning.ledger import Assignment
    from pinning.pods.types import Pod

VERSION: Final = 1  # of the pools annotation
NO_SCHEDULE: Final = "NoSchedule"
KUBELET_REMEDY: Final = "set cpuManagerPolicy to none in the kubelet's configuration"


class Taint(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One taint of a node."""

    key: str
    effect: str
    value: str = ""
    time_added: str | None = None

    @property
    def place(self) -> tuple[str, str]:
        """What no two taints of a node have in common."""
        return self.key, self.effect


class Condition(msgspec.Struct, frozen=True, rename="camel"):
    """One condition of a node."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class NodeMeta(msgspec.Struct, rename="camel"):
    """The metadata of a node."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class NodeSpec(msgspec.Struct):
    """The specification of a node."""

    taints: list[Taint] | None = None


class NodeStatus(msgspec.Struct):
    """The status of a node."""

    capacity: dict[str, str] | None = None
    allocatable: dict[str, str] | None = None
    conditions: list[Condition] | None = None


class Node(msgspec.Struct):
    """A node, as far as the agent reads it."""

    metadata: NodeMeta
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


CMK_TAINT: Final = Taint(CMK_TAINT_KEY, NO_SCHEDULE, CMK_TAINT_VALUE)
NO_LOAD: Final = Overcommit(0, 0)
OVERCOMMIT_TAINT: Final = Taint(OVERCOMMIT_TAINT_KEY, NO_SCHEDULE, "true")


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """What an operator may choose about the words on nodes."""

    feature_gates: frozenset[str] = frozenset()  # CPUManager: label the node for KubeVirt
    cmk_taint: bool = False
    overcommit_taint: bool = False
    sidecar: Amount = SIDECAR


@dataclass(frozen=True)
class Wanted:
    """What shall be on the node. Values of None shall not be there; what is not named is not touched."""

    annotations: Mapping[str, str | None] = field(default_factory=dict)
    labels: Mapping[str, str | None] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    no_taints: tuple[Taint, ...] = ()  # of ours, not wanted now
    no_taint_keys: frozenset[str] = frozenset()  # not wanted, whatever their value and effect
    resources: Mapping[str, int | None] = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
    no_conditions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Differences:
    """The two patches that a node needs; None where it needs none."""

    status: dict[str, Any] | None = None  # a strategic merge patch of the status, with labels and annotations
    spec: dict[str, Any] | None = None  # a merge patch of the taints, good for one version of the node


def wanted(
    state: NodeState, pods: Collection[Pod], options: NodeOptions, before: Mapping[str, int] | None = None
) -> Wanted | None:
    """Return what to say of the node; None while pods or ledger are not complete."""
    numbers = node_resources(state, pods, before)
    if numbers is None:
        return None
    load = overcommit(pods, state.ledger, len(state.shared))
    own = _taints(options, load)
    return Wanted(
        annotations={STATUS_TOPOLOGY: topology_text(state), STATUS_POOLS: pools_text(state, pods, options)},
        labels=dict.fromkeys(_labels(options), "true"),
        taints=own,
        no_taints=() if OVERCOMMIT_TAINT in own else (OVERCOMMIT_TAINT,),
        no_taint_keys=frozenset({NOT_READY_TAINT_KEY}),
        resources=numbers,
        conditions=(_kubelet(state), _overcommit(load)),
    )


def nothing(options: NodeOptions) -> Wanted:
    """Return what is wanted of a node that the agent leaves."""
    return Wanted(
        annotations=dict.fromkeys((STATUS_TOPOLOGY, STATUS_POOLS)),
        labels=dict.fromkeys(_labels(options)),
        no_taints=(*_taints(options, NO_LOAD), OVERCOMMIT_TAINT),
        resources=dict.fromkeys(RESOURCES),
        no_conditions=(KUBELET_CONDITION, OVERCOMMIT_CONDITION),
    )


def topology_text(state: NodeState) -> str:
    """Return the machine as compact JSON, read back by `Topology.from_dict`."""
    return _json(state.topology.to_dict())


def pools_text(state: NodeState, pods: Collection[Pod], options: NodeOptions) -> str:
    """Return the sets of the node, their owners and what they cost unseen, as compact JSON."""
    sets = state.sets
    beside = sidecars(pods, state.seen_pods, options.sidecar)
    named = {
        "universe": sets.universe,
        "reserved": sets.reserved,
        "shared": state.shared,
        "setAside": sets.pools.set_aside,
        "isolated": sets.isolated,
        "free": state.free,
    }
    return _json(
        {
            "version": VERSION,
            "observes": state.observes,
            **{name: str(cpus) for name, cpus in named.items()},
            "owners": {one.name: _owner(one) for one in sorted(state.ledger, key=lambda one: one.name)},
            "hidden": {
                "idleCPUs": len(state.idle),
                "sidecars": {
                    "containers": beside.containers,
                    "cpu": f"{beside.millicores}m",
                    "memory": str(beside.bytes),
                },
            },
        }
    )


def _owner(one: Assignment) -> dict[str, str]:
    told = {"policy": str(one.policy), "cpus": str(one.cpus)}
    if one.is_exclusive:
        told["smtPolicy"] = str(one.smt)
    if one.idle:
        told["idle"] = str(one.idle)
    return told


def _labels(options: NodeOptions) -> tuple[str, ...]:
    """Return the labels that are ours; without the gate those of KubeVirt are never touched."""
    more = CPUMANAGER_LABELS if GATE_CPU_MANAGER in options.feature_gates else ()
    return (CMK_NODE_LABEL, *more)


def _taints(options: NodeOptions, load: Overcommit) -> tuple[Taint, ...]:
    """Return the taints that are ours now; CMK's may have been set by hand where the option is off."""
    cmk = (CMK_TAINT,) if options.cmk_taint else ()
    over = (OVERCOMMIT_TAINT,) if options.overcommit_taint and load.is_over else ()
    return (*cmk, *over)


def _kubelet(state: NodeState) -> Condition:
    if not state.observes:
        return Condition(KUBELET_CONDITION, "False", "CorepinGivesCPUs", "corepin gives the CPUs out")
    if state.kubelet is KubeletPolicy.STATIC:
        told = f"the kubelet's static policy gives the CPUs out, corepin only observes: {KUBELET_REMEDY}"
        return Condition(KUBELET_CONDITION, "True", "KubeletStaticPolicy", told)
    told = "corepin is configured to observe only: set observe to false"
    return Condition(KUBELET_CONDITION, "True", "ObserveMode", told)


def _overcommit(load: Overcommit) -> Condition:
    if not load.is_over:
        told = "the shared CPUs are enough for what their containers request"
        return Condition(OVERCOMMIT_CONDITION, "False", "Enough", told)
    told = f"containers of the shared set request {load.requested}m CPU, and it has {load.there}m"
    remedy = "move pods away, or lower the kubelet's allocatable CPUs"
    return Condition(OVERCOMMIT_CONDITION, "True", "RequestsExceedSharedCPUs", f"{told}: {remedy}")


def _json(told: Mapping[str, Any]) -> str:
    return msgspec.json.encode(told).decode()
