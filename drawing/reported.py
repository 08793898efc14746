"""Picture of a node from the texts that its agent publishes; an invalid CPU list raises BadCPUList."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drawing.picture import Holder, Picture, pools_drawn, reading_order
from pinning.contract import CPUPolicy
from pinning.machine.cpuset import CPUSet

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pinning.machine.topology import Topology
    from published.node_pools import Owner, Sets
    from published.pod_status import Container


def picture_of(
    topology: Topology,
    sets: Sets,
    owners: Mapping[str, Owner] | Mapping[str, Owner | Container],
    devices: Mapping[int, str],
) -> Picture:
    """Return the picture of a machine, given its CPU sets, its owners by name, and device names by NUMA node."""
    shared = CPUSet.parse(sets.shared)
    free = CPUSet.parse(sets.free) - shared - topology.isolated
    drawn = (
        Holder(
            name,
            CPUSet.parse(owner.cpus),
            CPUSet.parse(owner.idle or ""),
            shares=owner.policy == CPUPolicy.SHARE,
        )
        for name, owner in owners.items()
    )
    return Picture(
        topology,
        tuple(sorted(drawn, key=lambda owner: reading_order(owner.name))),
        reserved=CPUSet.parse(sets.reserved),
        shared=shared,
        pools=pools_drawn(CPUSet.parse(sets.set_aside), free),
        reserve_source=sets.reserved_by,
        devices=devices,
    )
