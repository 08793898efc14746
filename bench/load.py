"""Load on one server, by wrk if it keeps connections, and the server's CPU time and memory."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SCRIPT = Path(__file__).parent / "post.lua"
CONNECTIONS = 8  # like an API server, which has a few to each webhook
TICKS = os.sysconf("SC_CLK_TCK")


class LoadFailed(Exception):
    """wrk is missing, or a response is not a success."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Figures of one period of load."""

    cpu_us: float  # CPU time of the server for each review
    per_second: float
    p50_ms: float
    p99_ms: float
    resident_mb: float


def require_tools(cpus: Sequence[int]) -> None:
    """Raise LoadFailed unless wrk exists and there are two CPUs, for server and load."""
    if len(cpus) < 2:
        raise LoadFailed("two CPUs are needed: one for the server, one for the load")
    for tool, package in (("wrk", "wrk"), ("taskset", "util-linux")):
        if shutil.which(tool) is None:
            raise LoadFailed(f"{tool} is not on PATH: install it (Debian: apt-get install {package})")


def put(pid: int, url: str, body: Path, *, pods: str, seconds: int, cpu: int) -> Sample:
    """Send reviews of `pods` (siblings or strangers) to `url`, served by process `pid`, from one CPU."""
    return _sample(pid, url, lambda: _wrk(url, (str(body), pods), seconds, cpu))


def put_one_by_one(pid: int, url: str, ask: Callable[[], object], *, seconds: int, cpu: int) -> Sample:
    """Put load on a server that closes connections, which wrk counts as errors: `ask` sends one request."""
    return _sample(pid, url, lambda: _threads(ask, seconds, cpu))


def _sample(pid: int, url: str, load: Callable[[], dict[str, float]]) -> Sample:
    before = _cpu_seconds(pid)
    result = load()
    spent = _cpu_seconds(pid) - before
    if result["refused"] or not result["requests"]:
        raise LoadFailed(f"{url}: {result['refused']} of {result['requests']} answers were no success")
    return Sample(
        cpu_us=spent / result["requests"] * 1e6,
        per_second=result["requests"] / result["seconds"],
        p50_ms=result["p50_ms"],
        p99_ms=result["p99_ms"],
        resident_mb=_resident_mb(pid),
    )


def _wrk(url: str, words: Sequence[str], seconds: int, cpu: int) -> dict[str, float]:
    flags = ["--threads=1", f"--connections={CONNECTIONS}", f"--duration={seconds}s", "--timeout=10s"]
    command = ["taskset", "-c", str(cpu), "wrk", *flags, f"--script={SCRIPT}", url, "--", *words]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise LoadFailed(f"wrk failed: {run.stderr or run.stdout}")
    figures: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return figures


def _threads(ask: Callable[[], object], seconds: int, cpu: int) -> dict[str, float]:
    begun = time.perf_counter()

    def ask_on() -> list[float]:
        os.sched_setaffinity(0, {cpu})  # applies to this thread
        took = []
        while (at := time.perf_counter()) < begun + seconds:
            ask()
            took.append(time.perf_counter() - at)
        return took

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        spells = [future.result() for future in [pool.submit(ask_on) for _ in range(CONNECTIONS)]]
    took = [duration for spell in spells for duration in spell]
    cuts = statistics.quantiles(took, n=100)
    figures = {"p50_ms": cuts[49] * 1e3, "p99_ms": cuts[98] * 1e3, "refused": 0.0}
    return figures | {"requests": float(len(took)), "seconds": time.perf_counter() - begun}


def _cpu_seconds(pid: int) -> float:
    """Return user and system time of a process with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system = fields[11:13]  # utime and stime, counted from the state that follows the name
    return (int(user) + int(system)) / TICKS


def _resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024
