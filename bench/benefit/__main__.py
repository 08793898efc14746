"""`python -m bench.benefit` (as root): benefit of an exclusive CPU for an application with busy neighbours.

The same application runs in turns without a policy and with `exclusive`, beside four busy neighbours: it has
a 1 kHz timer, whose lateness counts, and sends a thousand requests a second to a small server in the same
container. The agent is the real one with real cgroups (runtime local). Other load on the machine is not kept
off, and is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bench import percentile
from demo.agent import LocalAgent

NEIGHBOURS: Final = 4
PERCENTILES: Final = (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999))
POLICIES: Final = ("none", "exclusive")
KINDS: Final = {"timer": "lateness of a 1 kHz timer", "requests": "answer of a small server"}
BUSY: Final = ["/bin/sh", "-c", "while :; do :; done"]


def pod(name: str, command: list[str], policy: str, cpu: str) -> dict[str, Any]:
    """Return a pod of one container."""
    container = {"name": "app", "image": "none", "command": command, "resources": {"limits": {"cpu": cpu}}}
    metadata = {"name": name, "annotations": {"qos.gocrane.io/cpu-manager": policy}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


def measure(rounds: int, seconds: float) -> dict[str, dict[str, list[float]]]:
    """Return all measured times, by policy and kind."""
    taken: dict[str, dict[str, list[float]]] = {policy: {kind: [] for kind in KINDS} for policy in POLICIES}
    with tempfile.TemporaryDirectory(prefix="benefit-") as name:
        agent = LocalAgent(Path(name))
        with agent.running():
            for number in range(NEIGHBOURS):
                agent.put(pod(f"busy-{number}", BUSY, "none", "500m"))
            for number in range(rounds):
                for policy in POLICIES if number % 2 == 0 else POLICIES[::-1]:
                    found = measure_once(agent, Path(name), f"{policy}-{number}", policy, seconds)
                    for kind, times in found.items():
                        taken[policy][kind] += times
    return taken


def measure_once(
    agent: LocalAgent, folder: Path, name: str, policy: str, seconds: float
) -> dict[str, list[float]]:
    """Run the application once and return its times; raise RuntimeError if its CPUs do not fit its policy."""
    result = folder / f"{name}.json"
    program = str(Path(__file__).with_name("probe.py"))
    agent.put(pod(name, [sys.executable, program, str(result), str(seconds)], policy, "1"))
    agent.until(f"{name} runs", lambda: agent.seen(name) is not None)
    time.sleep(0.5)
    seen = agent.seen(name)
    if seen is None or (policy == "exclusive") != (not set("-,") & set(seen.cpus)):
        raise RuntimeError(f"{name} runs on {seen}")
    time.sleep(2 * seconds + 1)  # without polls, which would disturb the measurement
    agent.until(f"{name} is measured", result.exists)
    (folder / "pods" / f"{name}.yaml").unlink()
    agent.until(f"{name} ends", lambda: agent.seen(name) is None)
    found: dict[str, list[float]] = json.loads(result.read_text())
    return found


def table(taken: dict[str, dict[str, list[float]]]) -> list[str]:
    """Return the lines of the table, in milliseconds, with the ratios."""
    lines = [f"{'ms':<28}{'':<12}" + "".join(f"{name:>9}" for name, _ in PERCENTILES) + f"{'times':>8}"]
    for kind, title in KINDS.items():
        for policy in POLICIES:
            times = taken[policy][kind]
            shown = "".join(f"{percentile(times, share) * 1e3:>9.3f}" for _, share in PERCENTILES)
            lines.append(f"{title:<28}{policy:<12}{shown}{len(times):>8}")
        ratios = "".join(
            f"{percentile(taken['none'][kind], share) / percentile(taken['exclusive'][kind], share):>8.1f}x"
            for _, share in PERCENTILES
        )
        lines.append(f"{title:<28}{'ratio':<12}{ratios}")
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.benefit", description=__doc__)
    parser.add_argument("--rounds", type=int, default=4, help="of each policy, in turns; default: 4")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each kind in each round; default: 5")
    args = parser.parse_args()
    before = os.getloadavg()[0]
    for line in table(measure(args.rounds, args.seconds)):
        print(line)
    print(f"load of the machine {before:.1f} before, {os.getloadavg()[0]:.1f} after, {os.cpu_count()} CPUs")


if __name__ == "__main__":
    main()
