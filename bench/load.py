"""Put load on one server with wrk and read off the kernel what it cost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

SCRIPT = Path(__file__).parent / "post.lua"
CONNECTIONS = 8  # an API server has a few to each webhook
TICKS = os.sysconf("SC_CLK_TCK")


class LoadFailed(Exception):
    """There is no wrk, or not every answer was a success."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What one spell of load showed."""

    cpu_us: float  # CPU time of the server for each review
    per_second: float
    p50_ms: float
    p99_ms: float
    resident_mb: float


def require_tools(cpus: Sequence[int]) -> None:
    """Raise unless the tools are there, and a CPU each for the server and the load."""
    if len(cpus) < 2:
        raise LoadFailed("two CPUs are needed: one for the server, one for the load")
    for tool, package in (("wrk", "wrk"), ("taskset", "util-linux")):
        if shutil.which(tool) is None:
            raise LoadFailed(f"{tool} is not on PATH: install it (Debian: apt-get install {package})")


def put(pid: int, url: str, body: Path, *, pods: str, seconds: int, cpu: int) -> Sample:
    """Send reviews of `pods` (siblings or strangers) to `url`, served by process `pid`, from one CPU for a while."""
    before = _cpu_seconds(pid)
    told = _wrk(url, (str(body), pods), seconds, cpu)
    spent = _cpu_seconds(pid) - before
    if told["refused"] or not told["requests"]:
        raise LoadFailed(f"{url}: {told['refused']} of {told['requests']} answers were no success")
    return Sample(
        cpu_us=spent / told["requests"] * 1e6,
        per_second=told["requests"] / told["seconds"],
        p50_ms=told["p50_ms"],
        p99_ms=told["p99_ms"],
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


def _cpu_seconds(pid: int) -> float:
    """Return user and system time of a process with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system = fields[11:13]  # utime and stime, counted from the state that follows the name
    return (int(user) + int(system)) / TICKS


def _resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024
