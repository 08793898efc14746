"""`python -m bench.largest`: CPU time and memory of the webhook for the largest reviews of an API server.

The largest stored pod has 1.5 MiB, etcd's limit, of which each `<` is six bytes on the wire; an update
has it twice. Crafted bodies of the tests, up to the body limit, are measured too. Rounds are interleaved, and
figures are medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.webhook.clients import CA, client, tls_flags
from tests.webhook.hostile_bodies import POD, bodies, review
from tests.webhook.mounted import Mounted, pair
from tests.webhook.serving import Server, serving

STORED_BYTES: Final = 3 * 2**19  # default of etcd's --max-request-bytes
MOST_MS: Final = 100.0
MOST_MB: Final = 225.0
NANOSECONDS: Final = 1e9


def largest_pod(mark: str) -> str:
    """Return the JSON of the largest pod that can be stored; `mark` varies its claim."""
    given = {
        "metadata": {"name": "p", "annotations": {"qos.gocrane.io/cpu-manager": mark}},
        "spec": {"containers": [{"name": "main", "args": [""]}]},
    }
    room = STORED_BYTES - len(json.dumps(given))
    given["spec"] = {"containers": [{"name": "main", "args": ["<" * room]}]}
    return json.dumps(given).replace("<", "\\u003c")


def cpu_seconds(server: Server) -> float:
    """Return the CPU time of all threads of a server."""
    tasks = Path(f"/proc/{server.process.pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / NANOSECONDS


def measure(rounds: int, *, aimed: bool) -> bool:
    """Print the cost of each body; return whether the largest pod is within the limits."""
    body = review(POD, largest_pod("exclusive"), largest_pod("none"))
    named = [("largest pod, UPDATE", body.replace(b'"operation":', b'"name":"p","operation":', 1))]
    named += [(name, body) for name, body in bodies() if aimed]
    spent: dict[str, list[float]] = {name: [] for name, _ in named}
    peaks: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        tls = tls_flags(Mounted(Path(folder) / "tls", pair(CA)))
        with serving(*tls) as server, client(server) as http:
            http.post("/validate", content=named[0][1])
            for _ in range(rounds):
                for name, body in named:
                    server.forget_peak()
                    before = cpu_seconds(server)
                    answer = http.post("/validate?timeout=2s", content=body)
                    spent[name].append((cpu_seconds(server) - before) * 1000)
                    answer.raise_for_status()
                    peaks[name] = max(peaks.get(name, 0), server.peak_megabytes())
    for name, body in named:
        figures = f"{statistics.median(spent[name]):6.1f} ms of CPU (most {max(spent[name]):.1f})"
        print(f"{figures}, {peaks[name]:4.0f} MB resident, {len(body) / 2**20:4.1f} MiB  {name}")
    first = named[0][0]
    return statistics.median(spent[first]) <= MOST_MS and peaks[first] < MOST_MB


def main() -> int:
    """Run the command; return 0 if the limits hold."""
    parser = argparse.ArgumentParser(prog="python -m bench.largest", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--aimed", action="store_true", help="measure the tests' aimed bodies too")
    args = parser.parse_args()
    return 0 if measure(args.rounds, aimed=args.aimed) else 1


if __name__ == "__main__":
    sys.exit(main())
