"""Picture of a node from its agent's report: annotations or socket. Invalid reports raise the parsers' errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drawing.picture import Holder, Picture, pools_drawn, reading_order
from pinning.contract import CPUPolicy, ReserveSource
from pinning.machine.cpuset import CPUSet

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pinning.machine.topology import Topology


def picture_of(topology: Topology, sets: Mapping[str, Any], owners: Mapping[str, Any]) -> Picture:
    """Return the picture of a machine with its sets and owners by name."""
    shared = CPUSet.parse(sets["shared"])
    free = CPUSet.parse(sets["free"]) - shared - topology.isolated
    drawn = (
        Holder(
            name,
            CPUSet.parse(owner["cpus"]),
            CPUSet.parse(owner.get("idle", "")),
            shares=owner["policy"] == CPUPolicy.SHARE,
        )
        for name, owner in owners.items()
    )
    return Picture(
        topology,
        tuple(sorted(drawn, key=lambda owner: reading_order(owner.name))),
        reserved=CPUSet.parse(sets["reserved"]),
        shared=shared,
        pools=pools_drawn(CPUSet.parse(sets["setAside"]), free),
        reserve_source=ReserveSource(sets["reservedBy"]) if "reservedBy" in sets else None,
    )
