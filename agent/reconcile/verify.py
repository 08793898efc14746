"""The second half of the proof: not only the cpuset, but every task below it keeps to the container's CPUs."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.errors import AgentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agent.interfaces import Cgroups
    from agent.reconcile.container_record import Track
    from pinning.machine.cpuset import CPUSet

AT_ONCE: Final = 8  # containers before others get their turn

logger = logging.getLogger(__name__)


class Sweep(NamedTuple):
    """What came of it."""

    is_whole: bool  # nothing broke it off
    is_news: bool  # something is to be told anew


async def prove_tasks(
    tracks: Iterable[tuple[Track, CPUSet]], cgroups: Cgroups, is_wanted_elsewhere: Callable[[], bool]
) -> Sweep:
    """Compare the tasks of each container with the CPUs it shall run on, until something else is to be done.

    A first process that was born narrower is widened, once: what it does to itself later is its own choice.
    """
    is_news = False
    for number, (track, cpus) in enumerate(tracks, 1):
        is_news |= _prove(track, cpus, cgroups)
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)
            if is_wanted_elsewhere():
                return Sweep(is_whole=False, is_news=is_news)
    return Sweep(is_whole=True, is_news=is_news)


def _prove(track: Track, cpus: CPUSet, cgroups: Cgroups) -> bool:
    if track.proof is None or track.cgroup is None or not track.is_running:
        return False
    try:
        if track.is_newborn and track.seen.pid and track.proof.cpus <= cpus:
            _widen(track, track.cgroup, cgroups)
        stray = cgroups.stray_tasks(track.cgroup, cpus)
    except AgentError:  # it ends just now, or will be read again by the next sweep
        return False
    outside, narrowed = len(stray.outside), len(stray.narrowed)
    if (outside, narrowed) == (track.proof.outside, track.proof.narrowed):
        return False
    track.proof = replace(track.proof, outside=outside, narrowed=narrowed)
    return True


def _widen(track: Track, cgroup: str, cgroups: Cgroups) -> None:
    track.is_newborn = False
    count = cgroups.widen_tasks(cgroup, track.seen.pid)
    if count:
        logger.info("born narrower, widened", extra={"facts": {"container": track.name, "tasks": count}})
