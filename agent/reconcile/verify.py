"""Comparison of the affinity of every task in a container's cgroups with the container's CPUs.

A pass reads back the cpuset of the container; this check finds single tasks that may run on other or fewer CPUs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.errors import AgentError, TooMany
from pinning.planning.observed import Owner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from agent.clock import Clock
    from agent.interfaces import Cgroups, Tasks
    from agent.node_state import ContainerState, NodeState, PodState, Proof
    from agent.reconcile.container_record import ContainerRecord
    from agent.reconcile.observe import Observer

AT_ONCE: Final = 8  # containers between two yields to the event loop
TURN_SECONDS: Final = (
    0.02  # CPU time between two yields within one container, which may have a thousand cgroups
)
POLL_SECONDS: Final = 2.0  # between two rounds that count tasks on own CPUs and on pools
REST: Final = 50.0  # seconds of rest per second of counting, so that counting takes at most 2 % of a core
# Most changed containers that one round publishes, so that programs that keep changing their masks cause at most
# 4 requests a second to the API server.
MOST_SHOWN: Final = 8

logger = logging.getLogger(__name__)


class Sweep(NamedTuple):
    """The result of one check of all tasks."""

    is_whole: bool  # the check was not interrupted
    is_news: bool  # results that are published have changed


async def prove_tasks(
    records: Iterable[ContainerRecord],
    cgroups: Cgroups,
    vm_tasks: Callable[[str], frozenset[int]],
    is_wanted_elsewhere: Callable[[], bool],
    cpu_time: Callable[[], float] = time.thread_time,
) -> Sweep:
    """Compare the tasks of each container with its planned CPUs, until other work is pending.

    A first process that started on fewer CPUs is widened once; later changes are its own choice. The threads of a
    container's virtual machine (`vm_tasks`) do not count as narrowed, because this agent or libvirt pinned them.
    """
    is_news, begun = False, cpu_time()
    for number, record in enumerate(records, 1):
        is_news |= _prove(record, cgroups, vm_tasks(record.seen.id))
        may_end = number % AT_ONCE == 0
        if may_end or cpu_time() - begun > TURN_SECONDS:
            await asyncio.sleep(0)
            begun = cpu_time()
        if may_end and is_wanted_elsewhere():
            return Sweep(is_whole=False, is_news=is_news)
    return Sweep(is_whole=True, is_news=is_news)


def _prove(record: ContainerRecord, cgroups: Cgroups, vm_tasks: frozenset[int]) -> bool:
    if record.proof is None or record.cgroup is None or not record.is_running:
        return False
    if record.split_home:
        return prove_parts(record, cgroups)
    tasks = cgroups.tasks
    try:
        is_first_placed = record.seen.pid in vm_tasks
        if record.is_new and record.seen.pid and not is_first_placed and record.proof.cpus <= record.wanted:
            _widen(record, record.cgroup, tasks)
        stray = tasks.stray_tasks(record.cgroup, record.wanted)
    except TooMany as error:
        return record.not_compared(str(error))
    except AgentError:  # the container exits, or the next sweep reads it again
        return False
    return record.compared(len(stray.outside), len(set(stray.narrowed) - vm_tasks))


def prove_parts(record: ContainerRecord, cgroups: Cgroups) -> bool:
    """Count the tasks on the own CPUs and on the pools of a container; return whether the counts changed."""
    if record.cgroup is None or not record.is_running:
        return False
    try:
        tally = cgroups.split.look(record.cgroup, record.parts)
        stray = cgroups.tasks.stray_tasks(record.cgroup, record.wanted)
    except TooMany as error:
        return record.not_compared(str(error))
    except AgentError:
        return False
    return record.compared(len(stray.outside), 0, tally)


def _widen(record: ContainerRecord, cgroup: str, tasks: Tasks) -> None:
    record.looked_at()
    count = tasks.widen_tasks(cgroup, record.seen.pid)
    if count:
        logger.info(
            "started on fewer CPUs, widened", extra={"facts": {"container": record.name, "tasks": count}}
        )


class TallyWatch:
    """Counts tasks on own CPUs and on pools between sweeps, because the kernel reports no affinity changes.

    It moves nothing and requests no pass.
    """

    def __init__(self, observer: Observer, cgroups: Cgroups, clock: Clock) -> None:
        self._observer = observer
        self._cgroups = cgroups
        self._clock = clock
        self._first = 0  # index of the first container of the next round
        self._is_counting = False  # a round is due

    def begins(self) -> bool:
        """Return whether the first round becomes due, because a pass split a container and no round was due."""
        before, self._is_counting = self._is_counting, self._is_counting or bool(self._records())
        return self._is_counting and not before

    async def look(self, show: Callable[[Mapping[Owner, Proof]], None]) -> float | None:
        """Count once, and show the proofs that changed; return the seconds until the next round.

        None if no container is split: then a pass that splits one makes the next round due.
        """
        began = self._clock.monotonic()
        if changed := await self.count():
            show(changed)
        self._is_counting = bool(self._records())
        return max(POLL_SECONDS, REST * (self._clock.monotonic() - began)) if self._is_counting else None

    async def count(self) -> Mapping[Owner, Proof]:
        """Count the tasks of each container in turn, until MOST_SHOWN proofs changed; return these."""
        records = self._records()
        changed: dict[Owner, Proof] = {}
        first = self._first % len(records) if records else 0
        for record in records[first:] + records[:first]:
            self._first += 1
            if prove_parts(record, self._cgroups) and record.proof:
                changed[record.owner] = record.proof
            if len(changed) == MOST_SHOWN:
                break
            await asyncio.sleep(0)
        return changed

    def _records(self) -> list[ContainerRecord]:
        return [record for record in self._observer.records.values() if record.split_home]


def with_proofs(state: NodeState, proofs: Mapping[Owner, Proof]) -> NodeState:
    """Return a state with newer task counts, for containers whose CPUs are unchanged."""
    uids = {owner.pod_uid for owner in proofs}
    return replace(state, pods=tuple(_pod(pod, proofs) if pod.uid in uids else pod for pod in state.pods))


def _pod(pod: PodState, proofs: Mapping[Owner, Proof]) -> PodState:
    return replace(pod, containers=tuple(_container(pod.uid, each, proofs) for each in pod.containers))


def _container(uid: str, container: ContainerState, proofs: Mapping[Owner, Proof]) -> ContainerState:
    proof = proofs.get(Owner(uid, container.name))
    is_of_the_same = proof and container.proof and proof.cpus == container.proof.cpus
    return replace(container, proof=proof) if is_of_the_same else container
