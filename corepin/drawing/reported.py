"""The picture of a node as its agent reports it: in its annotations, or on its socket. Raises what wrong words raise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from corepin.drawing.picture import Owner, Picture, pools_drawn, reading_order
from pinning.contract import CPUPolicy, ReserveSource
from pinning.machine.cpuset import CPUSet

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pinning.machine.topology import Topology


def picture_of(topology: Topology, sets: Mapping[str, Any], owners: Mapping[str, Any]) -> Picture:
    """Return the picture of a machine, its sets by their names, and its owners by theirs."""
    shared = CPUSet.parse(sets["shared"])
    free = CPUSet.parse(sets["free"]) - shared - topology.isolated
    drawn = (
        Owner(
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
