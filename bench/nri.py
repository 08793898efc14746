"""`python -m bench.nri`: delay of a container's creation by the agent, compared with a minimal Go plugin.

NRI's Go library for runtimes, which containerd uses, calls both plugins in turn: ours, in a process that runs
one full pass after the other on a simulated node of 256 CPUs, each of which moves its 250 containers, and one
with NRI's Go stub and a constant answer. Both also validate every creation. The handler's time is measured in
the agent's process, and the round trip by the Go library.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Final, NamedTuple

from bench.go_peer import NRI_STUB, program
from tests.agent.nri.nri_runtime import NRIRuntime, container, pod, running_nri

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CONTAINERS: Final = 250
ROUNDS: Final = 4000
HANDLER_P99_SECONDS: Final = 0.005
VERSION: Final = "0.12"


class Times(NamedTuple):
    """Times of one plugin, in seconds."""

    name: str
    taken: Sequence[float]

    @property
    def line(self) -> str:
        """Return the line of the table."""
        return f"{self.name:<52}{len(self.taken):>7}" + "".join(
            f"{seconds * 1e3:>9.3f}" for seconds in (median(self.taken), self.p99, max(self.taken))
        )

    @property
    def p99(self) -> float:
        """Return the 99th percentile."""
        return quantiles(self.taken, n=100)[-1]


@contextmanager
def agent(socket: Path, folder: Path, *, passes: bool) -> Iterator[subprocess.Popen[str]]:
    """Run the agent of a simulated node until the block ends."""
    command = [
        sys.executable,
        "-m",
        "bench.nri_node",
        str(socket),
        str(folder),
        "passes" if passes else "quiet",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def peer(socket: Path) -> Iterator[None]:
    """Run the Go plugin until the block ends."""
    command = [str(program(NRI_STUB)), "-socket", str(socket)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


def measure(rounds: int, *, passes: bool) -> tuple[Times, Times, Times]:
    """Return the handler's times, and the round trips of our plugin and of the Go plugin."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folders = [Path(name, part) for part in ("ours", "theirs", "node")]
        for folder in folders:
            folder.mkdir()
        ours, theirs = (stack.enter_context(running_nri(VERSION, folder)) for folder in folders[:2])
        process = stack.enter_context(agent(ours.socket, folders[2], passes=passes))
        stack.enter_context(peer(theirs.socket))
        for runtime in (ours, theirs):
            runtime.synchronized()
        pairs = [(create(ours, number), create(theirs, number)) for number in range(rounds)]
        output = process.communicate("end\n")[0]
    ends = json.loads(output)
    how = f"while {ends['passes']} passes ran" if passes else "in peace"
    return (
        Times(f"the agent's handler, {how}", ends["handler"]),
        Times(f"round trip to the agent, {how}", [mine for mine, _ in pairs]),
        Times(f"round trip to the Go plugin, {how}", [other for _, other in pairs]),
    )


def create(runtime: NRIRuntime, number: int) -> float:
    """Create one of the node's containers; return NRI's time."""
    uid = f"pod-{number % CONTAINERS}"
    runtime.do("CreateContainer", pod=pod(uid), container=container(uid, "c0"))["adjust"]["linux"][
        "resources"
    ]
    return runtime.seconds


def main() -> int:
    """Print the table; return 0 if the handler is within its limit."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.nri", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"containers to create; default: {ROUNDS}")
    rounds = max(parser.parse_args().rounds, 100)
    measured = [measure(rounds, passes=passes) for passes in (True, False)]
    print(f"{'ms':<52}{'':>7}{'p50':>9}{'p99':>9}{'max':>9}    load {os.getloadavg()[0]:.1f}")
    for times in (times for triple in measured for times in triple):
        print(times.line)
    for (_, ours, theirs), how in zip(measured, ("while passes run", "in peace"), strict=True):
        ratio = median(ours.taken) / median(theirs.taken)
        print(f"round trip, p50, {how}: {ratio:.2f} x the Go plugin's (p99 {ours.p99 / theirs.p99:.2f} x)")
    handler = measured[0][0]
    holds = handler.p99 < HANDLER_P99_SECONDS
    limit = f"{HANDLER_P99_SECONDS * 1e3:.0f} ms"
    print(
        f"{'holds ' if holds else 'MISSED'}  p99 of the handler while passes run: {handler.p99 * 1e3:.2f} ms, limit {limit}"
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
