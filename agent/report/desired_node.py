"""The desired annotations, labels, taints, conditions and extended resources of the Node object. Pure.

`desired_node` derives them from the node's state; `agent.report.node_patch` computes the patch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import structs

from agent import published_parts as parts
from agent.report.extended_resources import RESOURCES, node_resources
from agent.report.node_types import Condition, Taint
from agent.report.owner_fit import fitting_owners
from pinning.contract import (
    CMK_NODE_LABEL,
    CMK_TAINT_KEY,
    CMK_TAINT_VALUE,
    CPU_GROUP_LABEL,
    CPUMANAGER_LABELS,
    DEGRADED_CONDITION,
    GATE_CPU_MANAGER,
    GUARDED,
    KUBELET_CONDITION,
    NEAR_CPUS,
    NOISE_CONDITION,
    NOT_READY_TAINT_KEY,
    OVERCOMMIT_CONDITION,
    OVERCOMMIT_TAINT_KEY,
    PLUGIN_CONDITION,
    STATUS_POOLS,
    STATUS_TOPOLOGY,
    KubeletPolicy,
)
from pinning.planning.cpu_groups import key_of
from pinning.planning.requests import Overcommit, in_shared_set, overcommit, sidecars, system_load
from published.codec import encode
from published.node_pools import Hidden, Owner, Pools, Sidecars
from published.node_topology import encode_topology
from published.pod_status import POD, POOL_OWNER

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from agent.config import NodeOptions
    from agent.node_state import NodeState, QuietResult
    from pinning.planning.ledger import Assignment
    from pinning.pods.types import Pod

LONGEST_MESSAGE: Final = 1024  # characters of a condition's message
LONGEST_LABEL: Final = 63
NO_SCHEDULE: Final = "NoSchedule"
KUBELET_REMEDY: Final = "set cpuManagerPolicy to none in the kubelet's configuration"
CMK_TAINT: Final = Taint(CMK_TAINT_KEY, NO_SCHEDULE, CMK_TAINT_VALUE)
NO_LOAD: Final = Overcommit(0, 0)
OVERCOMMIT_TAINT: Final = Taint(OVERCOMMIT_TAINT_KEY, NO_SCHEDULE, "true")


@dataclass(frozen=True)
class DesiredNode:
    """Desired fields of the Node object. None removes a field; fields that are not named stay unchanged."""

    annotations: Mapping[str, str | None] = field(default_factory=dict)
    labels: Mapping[str, str | None] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    no_taints: tuple[Taint, ...] = ()  # taints of the agent to remove
    no_taint_keys: frozenset[str] = frozenset()  # keys of taints to remove, whatever their value and effect
    resources: Mapping[str, int | None] = field(default_factory=dict)
    # Resources with this prefix that are not in `resources` are removed; empty: none are.
    no_other_resources: str = ""
    conditions: tuple[Condition, ...] = ()
    no_conditions: tuple[str, ...] = ()


def desired_node(
    state: NodeState,
    pods: Collection[Pod],
    options: NodeOptions,
    published: Mapping[str, int] | None = None,
    labelled: str | None = None,
) -> DesiredNode | None:
    """Return the desired Node object; None while pods or ledger are incomplete.

    While the runtime does not list its containers, only the Degraded condition is set. `published` are the last written
    counts of extended resources, `labelled` is the CPU group in the node's label; None: unknown.
    """
    resources = node_resources(state, pods, published, near=options.near_cpus)
    if resources is None:
        return DesiredNode(conditions=(_degraded(state, labelled),)) if state.runtime_reason else None
    load = overcommit(in_shared_set(pods, state.sets), state.ledger, len(state.shared))
    taints = _taints(options, load)
    return DesiredNode(
        annotations={
            STATUS_TOPOLOGY: topology_text(state),
            STATUS_POOLS: pools_text(state, pods, options, resources),
        },
        labels=dict.fromkeys(_labels(options) if _can_pin(state) else (CMK_NODE_LABEL,), "true"),
        taints=taints,
        no_taints=() if OVERCOMMIT_TAINT in taints else (OVERCOMMIT_TAINT,),
        no_taint_keys=frozenset({NOT_READY_TAINT_KEY}),
        resources=resources,
        no_other_resources=NEAR_CPUS,
        conditions=(
            _kubelet(state),
            _overcommit(load, system_load(state.seen_pods, state.sets)),
            _plugins(state),
            _degraded(state, labelled),
            *([_noise(state.quiet)] if state.quiet else []),
        ),
        no_conditions=() if state.quiet else (NOISE_CONDITION,),
    )


def cleared(options: NodeOptions) -> DesiredNode:
    """Return the Node object for uninstall: every field of the agent is removed."""
    return DesiredNode(
        annotations=dict.fromkeys((STATUS_TOPOLOGY, STATUS_POOLS)),
        labels=dict.fromkeys(_labels(options)),
        no_taints=(*_taints(options, NO_LOAD), OVERCOMMIT_TAINT),
        resources=dict.fromkeys(RESOURCES),
        no_other_resources=NEAR_CPUS,
        no_conditions=(
            KUBELET_CONDITION,
            OVERCOMMIT_CONDITION,
            PLUGIN_CONDITION,
            DEGRADED_CONDITION,
            NOISE_CONDITION,
        ),
    )


def topology_text(state: NodeState) -> str:
    """Return the topology as compact JSON."""
    return encode_topology(state.topology).decode()


def pools_text(
    state: NodeState,
    pods: Collection[Pod],
    options: NodeOptions,
    resources: Mapping[str, int] = MappingProxyType({}),
) -> str:
    """Return the node's CPU sets, their owners and hidden costs as JSON; `resources` are the published counts."""
    injected = sidecars(pods, state.seen_pods, options.sidecar)
    by_name = sorted(state.ledger, key=lambda assignment: assignment.name)
    owners = {assignment.name: _owner(assignment) for assignment in by_name} | _pod_pools(state)
    shown = fitting_owners(owners)
    published = Pools(
        **(parts.sets(state) | parts.near_cpus(state, resources)),
        observes=state.observes,
        owners=shown,
        more_owners=len(owners) - len(shown),
        hidden=Hidden(
            idle_cpus=len(state.idle),
            sidecars=Sidecars(
                containers=injected.containers, cpu=f"{injected.millicores}m", memory=str(injected.bytes)
            ),
        ),
    )
    return encode(published).decode()


def _pod_pools(state: NodeState) -> dict[str, Owner]:
    """Return the pod-level pools as owners of CPUs by name, to publish them with the containers."""
    pools = (pool for pool in state.ledger.pools.values() if pool.cpus)
    return {
        f"{pool.name}/{POOL_OWNER}": structs.replace(_owner(pool), policy=POD)
        for pool in sorted(pools, key=lambda pool: pool.name)
    }


def _owner(assignment: Assignment) -> Owner:
    return Owner(
        policy=assignment.policy,
        cpus=str(assignment.cpus),
        smt_policy=assignment.smt if assignment.is_exclusive else "",
        idle=str(assignment.idle),
    )


def _labels(options: NodeOptions) -> tuple[str, ...]:
    """Return the labels that the agent manages; KubeVirt's only with the feature gate CPUManager."""
    kubevirt = CPUMANAGER_LABELS if GATE_CPU_MANAGER in options.feature_gates else ()
    return (CMK_NODE_LABEL, *kubevirt)


def _can_pin(state: NodeState) -> bool:
    """Return whether virtual machines get dedicated CPUs here, from the agent or from the kubelet."""
    return not state.observes or state.kubelet is KubeletPolicy.STATIC


def _taints(options: NodeOptions, load: Overcommit) -> tuple[Taint, ...]:
    """Return the taints that the agent manages.

    CMK's taint is included only with its option; otherwise an existing one stays, because an operator may have set it.
    """
    cmk = (CMK_TAINT,) if options.cmk_taint else ()
    over = (OVERCOMMIT_TAINT,) if options.overcommit_taint and load.is_over else ()
    return (*cmk, *over)


def _kubelet(state: NodeState) -> Condition:
    if not state.observes:
        message = "corepin allocates the CPUs of this node"
        return Condition(KUBELET_CONDITION, "False", "CorepinGivesCPUs", message)
    if state.kubelet is KubeletPolicy.STATIC:
        message = f"the kubelet's static policy allocates CPUs, so corepin only observes: {KUBELET_REMEDY}"
        return Condition(KUBELET_CONDITION, "True", "KubeletStaticPolicy", message)
    message = "corepin is configured to observe only: set observe to false"
    return Condition(KUBELET_CONDITION, "True", "ObserveMode", message)


def _overcommit(load: Overcommit, system: Overcommit) -> Condition:
    if system.is_over and not load.is_over:
        message = (
            f"containers of systemNamespaces request {system.requested}m CPU, but the reserved CPUs have {system.there}m:"
            " reserve more CPUs, or name fewer namespaces"
        )
        return Condition(OVERCOMMIT_CONDITION, "True", "RequestsExceedReservedCPUs", message)
    if not load.is_over:
        message = "the shared CPUs are enough for what their containers request"
        return Condition(OVERCOMMIT_CONDITION, "False", "Enough", message)
    message = (
        f"containers of the shared set request {load.requested}m CPU, but it has {load.there}m:"
        " move pods away, or lower the kubelet's allocatable CPUs"
    )
    return Condition(OVERCOMMIT_CONDITION, "True", "RequestsExceedSharedCPUs", message)


def _plugins(state: NodeState) -> Condition:
    if not state.other_plugins:
        message = "no other NRI plugin was seen to set CPUs"
        return Condition(PLUGIN_CONDITION, "False", "NoOtherPluginSeen", message)
    message = (
        f"NRI plugins that set CPUs too: {', '.join(state.other_plugins)}:"
        " stop them, because a container whose CPUs two plugins set does not start"
    )
    return Condition(PLUGIN_CONDITION, "True", "AnotherPluginSetsCPUs", message)


def _noise(quiet: QuietResult) -> Condition:
    if not quiet.all_conflicts:
        message = "no other program changes back interrupts or kernel settings of quiet CPUs"
        return Condition(NOISE_CONDITION, "False", "NoConflict", message)
    message = (
        f"another program changed these back three times: {', '.join(quiet.all_conflicts)}: stop it, or let it ban"
        f" CPUs {quiet.cpus}; the agent leaves them alone until ten minutes have passed without such a change"
    )
    reason = "InterruptsMovedBack" if quiet.conflicts else "KernelSettingsChangedBack"
    return Condition(NOISE_CONDITION, "True", reason, message[:LONGEST_MESSAGE])


def _degraded(state: NodeState, labelled: str | None) -> Condition:
    if state.runtime_reason:
        message = f"the runtime does not list its containers, so the agent changes no running container: {state.runtime_reason}"
        return Condition(DEGRADED_CONDITION, "True", "RuntimeNotListed", message[:LONGEST_MESSAGE])
    if state.listing_fault:
        message = (
            "the runtime accepts no NRI plugin, so new containers are pinned through their cgroups, and a guard that"
            f" was connected before rejects those of pods with the annotation {GUARDED}: {state.listing_fault}"
        )
        return Condition(DEGRADED_CONDITION, "True", "NRINotListed", message[:LONGEST_MESSAGE])
    if labelled is not None and labelled != state.group:
        return Condition(DEGRADED_CONDITION, "True", "GroupChanged", _group_changed(state.group, labelled))
    if state.kills:
        ends = ", ".join(
            f"{kill.pod}/{kill.container} at {kill.when or 'an unknown time'}" for kill in state.kills
        )
        message = (
            f"containers were killed for their memory limit: {ends}: raise resources.limits.memory of the"
            " DaemonSet"
        )
        return Condition(DEGRADED_CONDITION, "True", "OutOfMemory", message[:LONGEST_MESSAGE])
    message = "the runtime lists its containers, and no container of corepin was killed for its memory limit"
    return Condition(DEGRADED_CONDITION, "False", "NotDegraded", message)


def _group_changed(group: str, labelled: str) -> str:
    now = f"is now {labelled[:LONGEST_LABEL]}" if labelled else "was removed"
    taken = key_of(labelled[:LONGEST_LABEL])
    return (
        f"label {CPU_GROUP_LABEL} {now}, but the agent runs with {key_of(group)} since its start: delete its pod on"
        f" this node, so that the next one takes {taken}; containers keep their CPUs"
    )
