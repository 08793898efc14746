"""For how long a new container may have run elsewhere before it was on its CPUs: its window."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from agent.errors import AgentError
from agent.node_state import Path

if TYPE_CHECKING:
    from agent.clock import Clock
    from agent.interfaces import Tasks
    from agent.metrics import Metrics
    from agent.reconcile.container_record import ContainerRecord
    from agent.reconcile.created_updates import CreatedUpdates
    from agent.reconcile.prestart import PreStartPinner
    from pinning.machine.cpuset import CPUSet


def note_right(record: ContainerRecord, cpus: CPUSet, tasks: Tasks, clock: Clock) -> None:
    """Note for how long a container that is on `cpus` now may have run elsewhere."""
    if record.cgroup is None:
        record.was_right(cpus, seconds_in_vm(record, clock))
    elif record.is_awaited:
        with suppress(AgentError):
            start = tasks.start_state(record.cgroup)
            record.was_right(cpus, start.seconds or 0.0 if record.is_running or start.has_begun else 0.0)


def seconds_in_vm(record: ContainerRecord, clock: Clock) -> float:
    """Return for how long a container runs of whose processes only the runtime knows; 0: not yet, or not known."""
    started = record.seen.started
    return max(0.0, clock.wall().timestamp() - started) if started else 0.0


class Exposure:
    """Closes the window of each new container, once nothing is on its way to it any more."""

    def __init__(self, prestart: PreStartPinner, created_updates: CreatedUpdates, metrics: Metrics) -> None:
        self._prestart = prestart
        self._created_updates = created_updates
        self._metrics = metrics

    def close(self, record: ContainerRecord) -> None:
        """Report for how long a container that is right may have run elsewhere.

        What was written beside the passes has to be read by one first: the runtime's word is no proof.
        """
        container_id = record.seen.id
        is_read = bool(record.applied) or record.cgroup is None
        is_on_its_way = self._prestart.is_pinning(container_id) or self._created_updates.is_sending(
            container_id
        )
        if not is_read or is_on_its_way:
            return
        seconds = self._prestart.window(container_id, record.home or record.wanted)
        if seconds is not None:
            record.was_right(record.wanted, seconds)
        window = record.settled()
        if window is not None:
            path = Path.CGROUP if seconds is not None else record.path
            path = Path.NRI if record.started_right else path
            self._metrics.window_seconds.labels(str(path)).observe(window)
