"""What outlives an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.wrappers.registry import Claim
    from pinning.cmk.pools import Reclaimed
    from pinning.contract import PoolUse
    from pinning.machine.cpuset import CPUSet
    from pinning.planning.observed import Owner

Used = tuple["Owner", frozenset["PoolUse"]]  # which pools a container reaches beside what it owns


class Kept(NamedTuple):
    """State of the wrappers of a node."""

    claims: tuple[Claim, ...] = ()  # of two that have one core the later counts
    uses: Mapping[str, Used] = {}  # of containers that were wrapped, by their ids
    pools: Mapping[PoolUse, CPUSet] = {}  # where processes in pools that all share run
    reclaimed: tuple[Reclaimed, ...] = ()
    dropped: int = 0  # of these, because they were too many
    has_ends: bool = True  # false: of an agent that did not write ends, so a claim may have ended long ago
