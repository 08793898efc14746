"""`python -m bench.shim`: start-up time that `cmk isolate` adds to a command.

A command that exits at once is started alone, under the shim with a server that answers at once (the shim's own
time), and under the shim with a real agent (the user's wait). They run in turns in one container of the local
runtime, which has an exclusive core, and the fastest run of each counts, because a busy machine slows all.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from demo.agent import LocalAgent
from tests.shim.agent import fake_agent

if TYPE_CHECKING:
    from collections.abc import Sequence

ROUNDS: Final = 200
LIMIT_MS: Final = 5.0  # added start-up time with a real agent
CMK_MS: Final = 720.0  # Intel CMK 1.5.2: its own program with `--version`, on a machine like this one
COMMAND: Final = "/bin/true"
POD: Final = "measured"
CORES: Final = "cmk.intel.com/exclusive-cores"


def start_ms(words: Sequence[str]) -> float:
    """Start a command, wait for its end, and return the milliseconds."""
    began = time.perf_counter()
    pid = os.posix_spawn(words[0], list(words), os.environ)
    _, status = os.waitpid(pid, 0)
    took = (time.perf_counter() - began) * 1e3
    if status != 0:
        raise SystemExit(f"{' '.join(words)} ended with {os.waitstatus_to_exitcode(status)}")
    return took


def measure(fake: str, real: str) -> dict[str, list[float]]:
    """Start the command in each way, taking turns; return the milliseconds."""
    isolate = ("isolate", "--pool=exclusive", COMMAND)
    ways = {"alone": (COMMAND,), "answered at once": (fake, *isolate), "real agent": (real, *isolate)}
    start_ms(ways["real agent"])  # warm-up: the first use of a pool takes a pass
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, words in ways.items():
            taken[name].append(start_ms(words))
    return taken


def run() -> dict[str, list[float]]:
    """Start both agents and a container in which the measurement runs."""
    command = Path(sys.prefix, "libexec", "cmk")
    subprocess.run(["scripts/shim", str(command)], check=True)
    with tempfile.TemporaryDirectory(prefix="shim-", dir="/tmp") as folder, fake_agent(command) as fake:
        install_dir, result = Path(folder, "bin"), Path(folder, "result.json")
        shutil.copytree(fake.folder, install_dir, ignore=shutil.ignore_patterns("*.sock"))
        agent = LocalAgent(Path(folder), "--cmk-install-dir", str(install_dir))
        with agent.running():
            agent.put(pod(["--inside", str(fake.command), str(install_dir / "cmk"), str(result)]))
            agent.until("it is measured", result.exists)
        taken: dict[str, list[float]] = json.loads(result.read_text())
        return taken


def pod(arguments: Sequence[str]) -> dict[str, object]:
    """Return the container that measures."""
    amounts = {CORES: "1", "cpu": "1"}
    container = {
        "name": "app",
        "image": "none",
        "command": [sys.executable, "-m", "bench.shim", *arguments],
        "env": [{"name": "PYTHONPATH", "value": str(Path.cwd())}],
        "resources": {"requests": amounts, "limits": amounts},
    }
    spec = {"containers": [container], "restartPolicy": "Never"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD}, "spec": spec}


def inside(fake: str, real: str, result: str) -> None:
    """Measure in the container, and write the result atomically."""
    partial = Path(f"{result}.partial")
    partial.write_text(json.dumps(measure(fake, real)))
    partial.rename(result)


def report(taken: dict[str, list[float]]) -> bool:
    """Print the table; return whether the limit holds."""
    fast = {name: min(values) for name, values in taken.items()}
    alone = fast["alone"]
    print(f"{'a start of ' + COMMAND:<24}{'ms':>8}{'added':>8}{'ratio':>8}   {ROUNDS} of each")
    for name, value in fast.items():
        print(f"{name:<24}{value:>8.2f}{value - alone:>8.2f}{value / alone:>7.1f}x")
    added = fast["real agent"] - alone
    holds = added < LIMIT_MS
    print(
        f"{'holds ' if holds else 'MISSED'}  {added:.2f} ms added, limit {LIMIT_MS:.0f}; CMK's own took {CMK_MS:.0f}"
    )
    return holds


def main() -> int:
    """Measure, and return 0 if the limit holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--inside", nargs=3, metavar=("FAKE", "REAL", "RESULT"), help="what the container runs"
    )
    args = parser.parse_args()
    if args.inside:
        inside(*args.inside)
        return 0
    return 0 if report(run()) else 1


if __name__ == "__main__":
    sys.exit(main())
