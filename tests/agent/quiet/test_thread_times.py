"""Wait and switches of threads between two readings, and what is unknown."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.quiet.thread_times import (
    MOST_THREADS,
    NO_THREADS,
    Lost,
    Threads,
    Times,
    lost,
    read_threads,
    sampled,
)
from pinning.machine.cpuset import CPUSet
from tests.tables import table

if TYPE_CHECKING:
    from collections.abc import Iterator

CPUS = CPUSet([2, 3])
FIRST = Times(1000, 10, 1, "500", "2-3")
LAST = Times(4000, 15, 4, "500", "2-3")


def threads(*times: Times, of: int | None = None) -> Threads:
    """Return a reading of threads 100, 101 and so on."""
    return Threads({100 + at: it for at, it in enumerate(times)}, len(times) if of is None else of)


@table(
    "before, after, known",
    {
        "one thread": (threads(FIRST), threads(LAST), Lost(3000, 3, 5)),
        "one that did not run": (threads(FIRST), threads(FIRST), Lost(0, 0, 0)),
        "one that started in between counts from its start": (
            threads(FIRST),
            threads(LAST, Times(70, 2, 1, "900", "2-3")),
            Lost(3070, 4, 7),
        ),
        "its number is used again: how often the ended one ran is not known": (
            threads(FIRST),
            threads(Times(70, 2, 1, "900", "2-3")),
            Lost(70, 1, None),
        ),
        "one that ended": (threads(FIRST, FIRST), threads(LAST), Lost(3000, 3, None)),
        "one that may run elsewhere waits for other CPUs too": (
            threads(FIRST, FIRST),
            threads(LAST, LAST._replace(allowed="2-9")),
            Lost(3000, 3, None),
        ),
        "a sample": (threads(FIRST, of=900), threads(LAST, of=900), Lost(3000, 3, None)),
        "not in the first sample": (threads(FIRST, of=900), threads(LAST, LAST, of=900), Lost(3000, 3, None)),
        "none is left": (threads(FIRST), NO_THREADS, None),
        "all are elsewhere": (threads(FIRST), threads(LAST._replace(allowed="0-7")), None),
    },
)
def test_loss_is_the_sum_over_read_threads(before: Threads, after: Threads, known: Lost | None) -> None:
    """Waits and switches are summed; slices are known only if all threads were read."""
    assert lost(before, after, CPUS) == known


@dataclass
class Proc:
    """A folder in the form of /proc."""

    root: Path

    def thread(self, task: int, *, waited: int = 5, slices: int = 1) -> None:
        """Create a thread, or advance its counters."""
        folder = self.root / str(task)
        folder.mkdir(exist_ok=True)
        (folder / "stat").write_text(f"{task} (a) b) S " + " ".join(map(str, range(1, 50))))
        (folder / "schedstat").write_text(f"9 {waited} {slices}\n")
        (folder / "status").write_text(
            "Name:\tx\nCpus_allowed_list:\t2-3\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t3\n"
        )


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    """Return a /proc with one thread."""
    proc = Proc(tmp_path)
    proc.thread(100)
    return proc


def test_thread_is_read(proc: Proc) -> None:
    """If a thread ended or is garbled, the reading is not complete."""
    proc.thread(101)
    (proc.root / "101/schedstat").write_text("nonsense")
    read = read_threads(str(proc.root), [100, 101, 999], NO_THREADS)

    assert read == Threads({100: Times(5, 1, 3, "19", "2-3")}, 3)
    assert not read.is_whole


def test_thread_that_did_not_run_costs_one_read(proc: Proc) -> None:
    """The other files of a thread that did not run are not read again, because its loss cannot have changed."""
    first = read_threads(str(proc.root), [100], NO_THREADS)
    (proc.root / "100/status").unlink()

    assert read_threads(str(proc.root), [100], first) == first
    proc.thread(100, slices=2)
    assert read_threads(str(proc.root), [100], first).times[100].slices == 2


@pytest.mark.parametrize("count", [0, 1, MOST_THREADS, MOST_THREADS + 1, 40 * MOST_THREADS])
def test_number_of_sampled_threads_is_limited(count: int) -> None:
    """If there are many threads, every n-th is read, from the first to the last."""
    sample = sampled(range(count))

    assert len(sample) <= MOST_THREADS
    assert len(sample) == count or len(sample) > MOST_THREADS // 2
    assert list(sample[:1]) == list(range(count))[:1]


def test_number_of_read_threads_is_limited(proc: Proc) -> None:
    """At most 256 of ten thousand threads are read."""
    tasks = list(range(1, 10_001))
    for task in tasks[::10]:
        proc.thread(task)
    read = read_threads(str(proc.root), tasks, NO_THREADS)

    assert 0 < len(read.times) <= MOST_THREADS
    assert read.of == len(tasks)


@pytest.fixture
def busy() -> Iterator[int]:
    """Yield one of two busy processes on the same CPU."""
    cpu = min(os.sched_getaffinity(0))
    loop = ["/bin/sh", "-c", "while :; do :; done"]
    with subprocess.Popen(loop) as process, subprocess.Popen(loop) as other:
        try:
            for pid in (process.pid, other.pid):
                os.sched_setaffinity(pid, {cpu})
            yield process.pid
        finally:
            process.kill()
            other.kill()


def test_wait_of_a_real_thread_grows(busy: int) -> None:
    """With another thread on the same CPU it waits, is preempted and runs again."""
    cpus = CPUSet([min(os.sched_getaffinity(0))])
    first = read_threads("/proc", [busy], NO_THREADS)
    deadline = time.monotonic() + 30
    found = None
    while not (found and found.waited_ns and found.switches and found.slices):
        assert time.monotonic() < deadline
        found = lost(first, read_threads("/proc", [busy], first), cpus)
