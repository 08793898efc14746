"""One reading of every noise counter on exclusive CPUs, and the difference of two. `compare` is pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from agent.errors import AgentError
from agent.node_state import ContainerNoise
from agent.quiet.cpu_counts import growth, read_slices, read_table, total
from agent.quiet.thread_times import NO_THREADS, Lost, Threads, lost, read_threads
from pinning.machine.cpuset import EMPTY, CPUSet, union

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from agent.quiet.cpu_counts import Count, Reading, Slices
    from pinning.planning.observed import Owner

_NO_CGROUP: Final = "its threads are not known: it does not run, or runs in a virtual machine"

Read: TypeAlias = Threads | str


class Measured(NamedTuple):
    """A container with exclusive CPUs."""

    owner: Owner
    cpus: CPUSet  # its own CPUs
    idle: CPUSet  # siblings kept idle for it
    cgroup: str  # cgroup of the container; empty: unknown
    kept: frozenset[str] = frozenset()  # interrupts that stay on its CPUs by policy, not counted as noise


@dataclass(frozen=True, slots=True)
class Places:
    """Paths of the counters."""

    proc: Path
    interrupts: Path  # the host's /proc/interrupts: Kubernetes masks that of ordinary containers from 1.34 on
    tasks: Callable[[str], Sequence[int]]  # returns the task ids in a cgroup and its children


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of the noise counters."""

    time: float
    measured: Mapping[Owner, Measured]
    interrupts: Reading
    softirqs: Reading
    slices: Slices
    threads: Mapping[Owner, Read]


def take_sample(
    places: Places, measured: Iterable[Measured], before: Sample | None, now: Callable[[], float]
) -> Sample:
    """Read every counter; `before` is the previous sample."""
    by_owner = {it.owner: it for it in measured}
    cpus = union(it.cpus | it.idle for it in by_owner.values())
    return Sample(
        time=now(),
        measured=by_owner,
        interrupts=read_table(places.interrupts, devices=True),
        softirqs=read_table(places.proc / "softirqs"),
        slices=read_slices(places.proc / "schedstat", cpus),
        threads={owner: _threads(places, it, before) for owner, it in by_owner.items()},
    )


def _threads(places: Places, container: Measured, before: Sample | None) -> Read:
    if not container.cgroup:
        return _NO_CGROUP
    last = before.threads.get(container.owner) if before else None
    try:
        tasks = places.tasks(container.cgroup)
    except (AgentError, ValueError) as error:
        return f"its threads cannot be listed: {error}"
    return read_threads(str(places.proc), tasks, last if isinstance(last, Threads) else NO_THREADS)


def compare(before: Sample, after: Sample) -> dict[Owner, ContainerNoise]:
    """Return the noise of each container with the same CPUs and cgroup at both readings."""
    same = [it for owner, it in after.measured.items() if before.measured.get(owner) == it]
    cpus = union(it.cpus | it.idle for it in same)
    counted = _Counted(
        growth(before.interrupts, after.interrupts, cpus, _kept(same)),
        growth(before.softirqs, after.softirqs, cpus),
        _slices(before.slices, after.slices),
    )
    seconds = after.time - before.time
    return {
        it.owner: _noise(it, counted, before.threads[it.owner], after.threads[it.owner], seconds)
        for it in same
    }


def _kept(measured: Iterable[Measured]) -> dict[bytes, CPUSet]:
    """Return the container CPUs on which each interrupt is kept by an `irq-policy`, by its number."""
    kept: dict[bytes, CPUSet] = {}
    for it in measured:
        for number in it.kept:
            kept[number.encode()] = kept.get(number.encode(), EMPTY) | it.cpus
    return kept


class _Counted(NamedTuple):
    """Growth of the counters, by CPU."""

    interrupts: Mapping[int, Count] | str
    softirqs: Mapping[int, Count] | str
    slices: Mapping[int, Count] | str


def _slices(before: Slices, after: Slices) -> dict[int, int] | str:
    if isinstance(before, str) or isinstance(after, str):
        return before if isinstance(before, str) else after
    differences = {cpu: count - before[cpu] for cpu, count in after.items() if cpu in before}
    return {cpu: difference for cpu, difference in differences.items() if difference >= 0}


def _noise(
    container: Measured, counted: _Counted, before: Read, after: Read, seconds: float
) -> ContainerNoise:
    cpus = container.cpus | container.idle
    interrupts, softirqs, slices = (total(cpus, grown) for grown in counted)
    threads = _lost(before, after, container.cpus)
    own = threads if isinstance(threads, str) else threads.slices
    others = _others(slices, "the run counts of some of its threads are not known" if own is None else own)
    unknown = (it for it in (interrupts, softirqs, threads, others) if isinstance(it, str))
    return ContainerNoise(
        seconds=seconds,
        interrupts=_known(interrupts),
        softirqs=_known(softirqs),
        wait_seconds=None if isinstance(threads, str) else threads.waited_ns / 1e9,
        involuntary_switches=None if isinstance(threads, str) else threads.switches,
        other_slices=_known(others),
        unknown=tuple(dict.fromkeys(unknown)),
    )


def _lost(before: Read, after: Read, cpus: CPUSet) -> Lost | str:
    if isinstance(before, str) or isinstance(after, str):
        return after if isinstance(after, str) else str(before)
    return lost(before, after, cpus) or "none of its threads was read twice on its own CPUs"


def _others(slices: int | str, own: int | str) -> int | str:
    """Return the timeslices of threads outside the container, or the reason why they are unknown."""
    if isinstance(slices, str) or isinstance(own, str):
        return slices if isinstance(slices, str) else str(own)
    return max(0, slices - own)


def _known(count: int | str) -> int | None:
    return None if isinstance(count, str) else count
