"""The second half of the proof: not only the cpuset, but every task below it keeps to the container's CPUs."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.errors import AgentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agent.interfaces import Cgroups, Tasks
    from agent.reconcile.container_record import ContainerRecord

AT_ONCE: Final = 8  # containers before others get their turn

logger = logging.getLogger(__name__)


class Sweep(NamedTuple):
    """What came of one look at all tasks."""

    is_whole: bool  # nothing broke it off
    is_news: bool  # something is to be published anew


async def prove_tasks(
    records: Iterable[ContainerRecord],
    cgroups: Cgroups,
    vm_tasks: Callable[[str], frozenset[int]],
    is_wanted_elsewhere: Callable[[], bool],
) -> Sweep:
    """Compare the tasks of each container with its planned CPUs, until other work is waiting.

    A first process that started narrower is widened, once: what it does to itself later is its own choice. The
    threads of a container's virtual machine (`vm_tasks`) are on fewer CPUs because this agent, or libvirt, put them
    there.
    """
    is_news = False
    for number, record in enumerate(records, 1):
        is_news |= _prove(record, cgroups, vm_tasks(record.seen.id))
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)
            if is_wanted_elsewhere():
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
    except AgentError:  # it ends just now, or will be read again by the next sweep
        return False
    return record.compared(len(stray.outside), len(set(stray.narrowed) - vm_tasks))


def prove_parts(record: ContainerRecord, cgroups: Cgroups) -> bool:
    """Count the tasks on each part of a container that runs on more than it owns; say whether that is news."""
    if record.cgroup is None or cgroups.split is None or not record.is_running:
        return False
    try:
        tally = cgroups.split.look(record.cgroup, record.parts)
        stray = cgroups.tasks.stray_tasks(record.cgroup, record.wanted)
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
