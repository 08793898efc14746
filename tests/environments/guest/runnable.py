"""Run time of an emulated machine without CPU steal, so that time limits do not depend on the host's load."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROC: Final = Path("/proc")
SAMPLE_SECONDS: Final = 1.0
_KEPT: Final = 3600  # samples


class _Sample(NamedTuple):
    wall: float
    runnable: float


class RunnableClock:
    """Wall time minus run-queue waits: in each sample the longest one of a thread of the process or its children.

    The kernel counts these waits in `schedstat`; without it this is wall time.
    """

    def __init__(self, pid: int, proc: Path = PROC, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._pid, self._proc, self._monotonic = pid, proc, monotonic
        self._waits: dict[str, int] = {}
        self._samples = deque([_Sample(monotonic(), 0.0)], _KEPT)

    def seconds(self) -> float:
        """Return the seconds in which the process could run, sampled at most once a second."""
        last, now = self._samples[-1], self._monotonic()
        if now - last.wall >= SAMPLE_SECONDS:
            before, self._waits = self._waits, dict(self._read())
            waits = (wait - before.get(task, 0) for task, wait in self._waits.items())
            waited = max(waits, default=0) / 1e9
            self._samples.append(_Sample(now, last.runnable + max(0.0, now - last.wall - waited)))
        return self._samples[-1].runnable

    def share(self, seconds: float) -> float:
        """Return the runnable share of at least the last `seconds`; 1 before the first sample."""
        self.seconds()
        last = self._samples[-1]
        before = (it for it in reversed(self._samples) if it.wall <= last.wall - seconds)
        first = next(before, self._samples[0])
        if first is last:
            return 1.0
        return (last.runnable - first.runnable) / (last.wall - first.wall)

    def _read(self) -> Iterator[tuple[str, int]]:
        """Yield each thread with its run-queue wait in nanoseconds."""
        processes = [str(self._pid)]
        for process in processes:
            with suppress(OSError, ValueError):
                for task in (self._proc / process / "task").iterdir():
                    yield task.name, int((task / "schedstat").read_text().split()[1])
                    processes += (task / "children").read_text().split()
