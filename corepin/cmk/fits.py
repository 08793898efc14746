"""Check whether machines have enough CPUs for their configuration. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from corepin.cmk.numbers import CONFIG_MAP, read_key
from pinning.contract import STATUS_POOLS, STATUS_TOPOLOGY, ReserveSource
from pinning.errors import PinningError
from pinning.machine.cpuset import CPUSet
from pinning.planning.cpu_groups import key_of
from pinning.planning.node_config import read_node_config
from pinning.planning.node_sets import check_machine
from published.codec import decode
from published.node_pools import Pools
from published.node_topology import decode_topology

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pinning.machine.topology import Topology
    from pinning.planning.node_config import NodeConfig


class Machine(NamedTuple):
    """A node's machine, as published by its agent."""

    topology: Topology
    universe: CPUSet
    kubelets: CPUSet | None = None  # reserved CPUs, if they come from the kubelet


class Fits(NamedTuple):
    """Result of the check for all nodes."""

    refused: tuple[str, ...] = ()  # why nodes cannot have their configuration, one text per node
    unknown: tuple[str, ...] = ()  # nodes whose CPUs are not published


def check_nodes(keys: Mapping[str, str], groups: Mapping[str, str], nodes: Mapping[str, Any]) -> Fits:
    """Check the machine of each node against the configuration of its group; `groups` is by node name."""
    refused, unknown = [], []
    for name, group in sorted(groups.items()):
        if (machine := machine_of(nodes[name])) is None:
            unknown.append(name)
        elif problem := _problem(keys, key_of(group), machine):
            refused.append(f"node {name} cannot have {key_of(group)}: {problem}")
    return Fits(tuple(refused), tuple(unknown))


def machine_of(node: Any) -> Machine | None:
    """Return a node's published machine; None if it is absent or unreadable."""
    written = node["metadata"].get("annotations") or {}
    if STATUS_TOPOLOGY not in written:
        return None
    try:
        topology = decode_topology(written[STATUS_TOPOLOGY])
        if not (text := written.get(STATUS_POOLS)):
            return Machine(topology, topology.online)
        pools = decode(Pools, text)
        universe = CPUSet.parse(pools.universe) or topology.online
        is_kubelets = pools.reserved_by == ReserveSource.KUBELET
        return Machine(topology, universe, CPUSet.parse(pools.reserved) if is_kubelets else None)
    except PinningError:
        return None


def _problem(keys: Mapping[str, str], key: str, machine: Machine) -> str:
    """Return why the configuration in a key does not fit a machine; empty if it does."""
    if key not in keys:
        return f"{CONFIG_MAP} has no such key: give numbers, or another --cpu-group"
    try:
        config = read_node_config(read_key(keys, key))
        if (
            machine.kubelets
            and config.reserved is None
            and _fits(machine, _reserving(config, machine.kubelets))
        ):
            return ""
        check_machine(machine.topology, machine.universe, config)
    except PinningError as problem:
        return str(problem)
    return ""


def _reserving(config: NodeConfig, cpus: CPUSet) -> NodeConfig:
    return replace(config, reserved=cpus, reserve_source=ReserveSource.KUBELET)


def _fits(machine: Machine, config: NodeConfig) -> bool:
    try:
        check_machine(machine.topology, machine.universe, config)
    except PinningError:
        return False
    return True
