"""The effective reserve: unless one is configured, it does not change while containers hold CPUs."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from pinning.contract import ReserveSource
from pinning.errors import BadContract
from pinning.planning.node_sets import check_machine, known_cpus, lowest_core

if TYPE_CHECKING:
    from agent.interfaces import Machine
    from agent.reconcile.checkpoint import Saved
    from pinning.machine.cpuset import CPUSet
    from pinning.machine.topology import Topology
    from pinning.planning.ledger import Ledger
    from pinning.planning.node_config import NodeConfig
    from pinning.planning.node_sets import NodeSets
    from pinning.planning.observed import Observed

logger = logging.getLogger(__name__)


class ReserveKeeper:
    """Keeps the default reserve of a node unchanged while containers hold CPUs."""

    def __init__(self) -> None:
        self._kept: CPUSet | None = None

    def resume(self, saved: Saved, machine: Machine, config: NodeConfig) -> None:
        """Keep the reserve of a checkpoint; after a reboot no container runs, and the default is chosen again."""
        kept = saved_reserve(saved, machine.boot_id())
        if kept is None or config.reserved is not None:
            return
        topology = machine.topology()
        problem = _misfit(topology, machine.universe(topology), _keeping(kept, config))
        if problem:
            facts = {"reserved": str(kept), "reason": str(problem)}
            logger.warning(
                "reserved CPUs change, because the configuration needs them", extra={"facts": facts}
            )
        else:
            self._kept = kept

    def config(self, config: NodeConfig, ledger: Ledger | None, observed: Observed) -> NodeConfig:
        """Return the configuration of a pass: with the kept reserve while containers hold CPUs.

        Later it is dropped, unless the default reserve does not fit the machine.
        """
        if self._kept is None or config.reserved is not None:
            return config
        if not ledger and not _misfit(observed.topology, observed.universe, config):
            self._kept = None
            return config
        return _keeping(self._kept, config)

    def planned(self, sets: NodeSets) -> None:
        """Remember the reserved CPUs of the last plan."""
        self._kept = sets.reserved


def start_config(config: NodeConfig, saved: Saved | None, machine: Machine) -> NodeConfig:
    """Return the configuration of the first pass after a start: with the reserve of the checkpoint, if that fits."""
    kept = saved and saved_reserve(saved, machine.boot_id())
    if not kept or config.reserved is not None:
        return config
    keeping, topology = _keeping(kept, config), machine.topology()
    return config if _misfit(topology, machine.universe(topology), keeping) else keeping


def saved_reserve(saved: Saved, boot_id: str) -> CPUSet | None:
    """Return the reserve under which containers got their CPUs; None if none hold any, or the node rebooted.

    Earlier agents saved no reserve and used the core of the lowest CPU, even an isolated one.
    """
    if saved.boot_id != boot_id or not saved.ledger:
        return None
    known = known_cpus(saved.topology, saved.universe) & saved.topology.cpus
    return saved.reserved or (lowest_core(saved.topology, known) if known else None)


def _keeping(reserved: CPUSet, config: NodeConfig) -> NodeConfig:
    return replace(config, reserved=reserved, reserve_source=ReserveSource.KEPT)


def _misfit(topology: Topology, universe: CPUSet, config: NodeConfig) -> BadContract | None:
    """Return why the configuration does not fit the machine, or None."""
    try:
        check_machine(topology, universe, config)
    except BadContract as problem:
        return problem
    return None
