"""One measurement of noise on exclusive CPUs. Reads /proc only."""

from __future__ import annotations

import stat
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from agent.quiet.counters import Row, freed, growth, rows
from agent.quiet.cpu_counts import places, read_table
from agent.quiet.owners import find_owners
from agent.quiet.thread_times import NO_THREADS, read_threads
from pinning.errors import BadCPUList
from pinning.machine.cpuset import EMPTY, CPUSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from agent.quiet.cpu_counts import Reading
    from agent.quiet.owners import Owner
    from agent.quiet.thread_times import Threads

_MOST_SETTING: Final = 2**14  # bytes of a kernel setting; a list of CPUs is the longest
Table: TypeAlias = tuple[Row, ...] | str  # counted rows, or the reason why they are unknown
Result = TypeVar("Result")


class Waited(NamedTuple):
    """Time during which other threads kept one container's threads off a CPU."""

    threads: int  # threads measured from beginning to end
    of: int  # all threads that the container had
    seconds: float  # run-queue wait, summed over threads
    involuntary_switches: int
    entered: Counter[str]  # names of processes that entered the container from outside and ran on its CPUs


class Periodic(NamedTuple):
    """Settings of the kernel for periodic work on every CPU; None: unknown."""

    stat_interval: int | None = None  # seconds between two updates of memory statistics
    watchdog: CPUSet | None = None  # exclusive CPUs that the watchdog checks; empty: none


NOT_KNOWN: Final = Periodic()


@dataclass(frozen=True, slots=True)
class Noise:
    """Noise counted on exclusive CPUs."""

    interrupts: Table  # interrupts of devices and of the kernel, most frequent first
    softirqs: Table
    waited: Mapping[str, Waited] = field(default_factory=dict)  # lost time by namespace/pod/container
    # interrupts whose affinity the kernel does not let anyone write, where the kernel shows that (Linux 6.12)
    managed: frozenset[str] = frozenset()
    periodic: Periodic = NOT_KNOWN
    # interrupts of devices that were freed during the measurement, with their counts before it
    freed: tuple[Row, ...] = ()
    # CPUs that were offline at the beginning or at the end; nothing is counted on them
    offline: CPUSet = EMPTY


def measure(
    interrupts: Path, proc: Path, cpus: CPUSet, first_pids: Mapping[str, int], watch: Callable[[], Result]
) -> tuple[Noise, Result]:
    """Count noise on a set of CPUs while `watch` runs; return the counts and the result of `watch`.

    `interrupts` is the host's /proc/interrupts: Kubernetes masks that of ordinary containers from 1.34 on.
    """
    softirqs = proc / "softirqs"
    earlier = read_table(interrupts), read_table(softirqs)
    owners = find_owners(proc, first_pids, cpus)
    before = {name: read_threads(str(proc), owner.threads, NO_THREADS) for name, owner in owners.items()}
    result = watch()
    later = read_table(interrupts), read_table(softirqs)
    after = {name: read_threads(str(proc), [*first.times], first) for name, first in before.items()}
    waited = {
        name: _waited(before[name], after[name], len(owner.threads), _entered(owners[name], owner))
        for name, owner in find_owners(proc, first_pids, cpus).items()
        if name in before
    }
    counted = _online(_online(cpus, earlier[0]), later[0])
    first, last = _rows(earlier[0], counted), _rows(later[0], counted)
    grown = _growth(first, last)
    numbers = () if isinstance(grown, str) else (row.name for row in grown if row.is_device)
    measured = Noise(
        grown,
        _growth(_rows(earlier[1], counted), _rows(later[1], counted)),
        waited,
        _managed(proc, numbers),
        _periodic(proc, cpus),
        _freed(first, last),
        cpus - counted,
    )
    return measured, result


def _periodic(proc: Path, cpus: CPUSet) -> Periodic:
    """Return the kernel's settings in /proc/sys; those that cannot be read are None."""
    stat_interval = watchdog = None
    with suppress(OSError, ValueError):
        stat_interval = int(_text(proc / "sys/vm/stat_interval"))
    with suppress(OSError, ValueError, BadCPUList):
        is_on = int(_text(proc / "sys/kernel/watchdog"))
        watchdog = CPUSet.parse(_text(proc / "sys/kernel/watchdog_cpumask")) & cpus if is_on else EMPTY
    return Periodic(stat_interval, watchdog)


def _text(file: Path) -> str:
    """Return the first `_MOST_SETTING` bytes of a file as text."""
    with file.open("rb") as opened:
        return opened.read(_MOST_SETTING).decode("ascii", "replace")


def _managed(proc: Path, numbers: Iterable[str]) -> frozenset[str]:
    """Return the interrupts whose affinity is not writable, such as those of disk queues and of the timer."""
    return frozenset(it for it in numbers if _is_read_only(proc / "irq" / it / "smp_affinity_list"))


def _is_read_only(file: Path) -> bool:
    try:
        return not file.stat().st_mode & stat.S_IWUSR
    except OSError:
        return False


def _online(cpus: CPUSet, reading: Reading) -> CPUSet:
    """Return the CPUs that have a column in a table; all if the table cannot be read."""
    return cpus if isinstance(reading, str) else cpus & CPUSet(places(reading.columns))


def _rows(reading: Reading, cpus: CPUSet) -> Table:
    return reading if isinstance(reading, str) else rows(reading, cpus)


def _growth(before: Table, after: Table) -> Table:
    if isinstance(before, str):
        return before
    return after if isinstance(after, str) else growth(before, after)


def _freed(before: Table, after: Table) -> tuple[Row, ...]:
    return () if isinstance(before, str) or isinstance(after, str) else freed(before, after)


def _entered(before: Owner, after: Owner) -> Counter[str]:
    """Return how many processes that entered the container ran between two readings, by their names."""
    earlier = {task: ran for process in before.entered.values() for task, ran in process.ran.items()}
    return Counter(
        process.name
        for process in after.entered.values()
        if any(earlier.get(task) != ran for task, ran in process.ran.items())
    )


def _waited(before: Threads, after: Threads, of: int, entered: Counter[str]) -> Waited:
    lost = [
        (first, last)
        for task, last in after.times.items()
        if (first := before.times[task]).started == last.started  # numbers of threads are reused
    ]
    return Waited(
        threads=len(lost),
        of=of,
        seconds=sum(last.waited_ns - first.waited_ns for first, last in lost) / 1e9,
        involuntary_switches=sum(last.switches - first.switches for first, last in lost),
        entered=entered,
    )
