"""`python -m bench.webhook`: corepin's webhook compared with others, under the same load over TLS.

Server and load have one CPU each. Rounds are interleaved; figures are medians of the rounds, and ratios are
medians of the rounds' ratios. CPU time per review hardly depends on the load of the machine; the
other figures do.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from bench import contenders, load, report
from bench.answers import WrongAnswer, ask, ask_once, changed_pod, client, trusting
from bench.contenders import ALONE, BARE, CMK, FASTAPI, GO, OURS, STRANGERS, Contender, Pair
from bench.go_peer import CONTROLLER_RUNTIME, program
from bench.sample import review
from tests.environments.server.build import BuildFailed, GoMissing
from tests.environments.server.daemon import DaemonFailed, running

if TYPE_CHECKING:
    from collections.abc import Sequence

WARM_UP_SECONDS = 1
WHAT = {
    OURS: "the `corepin webhook` process, logs (to a file) and metrics on",
    ALONE: "the same process, asked about pods of which no two are alike",
    BARE: "an ASGI function that reads the body and answers a constant",
    FASTAPI: "a FastAPI app whose `add_route` handler does the same; both on corepin's uvicorn, loop, parser, TLS",
    GO: f"Go: {CONTROLLER_RUNTIME.label} decodes, changes, and diffs the pod; GOMAXPROCS=1, no line per review",
    CMK: "Intel's webhook, the same mutations",
}


class Arena:
    """The running webhooks."""

    def __init__(self, folder: Path, stack: ExitStack, cpus: Sequence[int]) -> None:
        self._folder = folder
        self._stack = stack
        self._server_cpu, self._client_cpu = cpus
        self.pair: Pair = contenders.issue(folder)
        self.body = folder / "review.json"
        self.body.write_bytes(review())
        self._client = stack.enter_context(client(self.pair.ca))
        self._processes: dict[str, int] = {}

    def start(self, contender: Contender) -> bytes:
        """Start a webhook and return its answer to the review."""
        settings = [f"{name}={value}" for name, value in contender.environment.items()]
        command = ["taskset", "-c", str(self._server_cpu), "env", *settings, *contender.command]
        log_file = self._folder / contender.log_name
        daemon = self._stack.enter_context(running(contender.name, command, log_file))
        daemon.wait_until(lambda: self._answers(contender))
        self._processes[contender.name] = daemon.process.pid
        return ask(self._client, contender.url, self.body.read_bytes())

    def _answers(self, contender: Contender) -> bool:
        try:
            ask(self._client, contender.url, self.body.read_bytes())
        except httpx.TransportError:
            return False
        return True

    def measure(self, contender: Contender, seconds: int) -> load.Sample:
        """Put load on a webhook and return its figures."""
        pid, url, cpu = self._processes[contender.name], contender.url, self._client_cpu
        if contender.keeps_connections:
            return load.put(pid, url, self.body, pods=contender.pods, seconds=seconds, cpu=cpu)
        body = self.body.read_bytes()
        context = trusting(self.pair.ca)
        return load.put_one_by_one(pid, url, lambda: ask_once(url, body, context), seconds=seconds, cpu=cpu)

    def ask_strangers(self, contender: Contender) -> Contender:
        """Return a contender with the same process, and reviews of unrelated pods."""
        self._processes[ALONE] = self._processes[contender.name]
        return replace(contender, name=ALONE, pods=STRANGERS)


def start_all(arena: Arena, folder: Path, cmk: Path | None) -> list[Contender]:
    """Start every available webhook, and compare each answer with ours."""
    ours = contenders.ours(arena.pair)
    answer = arena.start(ours)
    constant = folder / "answer.json"
    constant.write_bytes(answer)
    others = [*contenders.constants(arena.pair, constant), *_deciding(arena.pair, folder, cmk)]
    body = arena.body.read_bytes()
    wanted = changed_pod(body, answer)
    for other in others:
        if changed_pod(body, arena.start(other)) != wanted:
            raise WrongAnswer(f"{other.name} makes other changes than corepin")
    return [ours, arena.ask_strangers(ours), *others]


def _deciding(pair: Pair, folder: Path, cmk: Path | None) -> list[Contender]:
    found = []
    try:
        found.append(contenders.go(pair, program(CONTROLLER_RUNTIME)))
    except (GoMissing, BuildFailed) as problem:
        print(f"without {GO}: {problem}")
    if cmk is None:
        print(f"without {CMK}: name a checkout of it by --cmk DIR")
    else:
        found.append(contenders.cmk(pair, cmk, folder))
    return found


def measure_all(
    arena: Arena, servers: Sequence[Contender], rounds: int, seconds: int
) -> dict[str, list[load.Sample]]:
    """Return the samples of every webhook, taken in turns."""
    samples: dict[str, list[load.Sample]] = {server.name: [] for server in servers}
    for server in servers:
        arena.measure(server, WARM_UP_SECONDS)
    for number in range(1, rounds + 1):
        for server in servers:
            samples[server.name].append(arena.measure(server, seconds))
        figures = "  ".join(f"{name} {found[-1].cpu_us:.0f}" for name, found in samples.items())
        print(f"round {number} of {rounds}, CPU us/review:  {figures}", flush=True)
    return samples


def run(args: argparse.Namespace, cpus: Sequence[int]) -> bool:
    """Measure and print; return whether the targets hold."""
    with tempfile.TemporaryDirectory(prefix="corepin-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        arena = Arena(folder, stack, cpus)
        servers = start_all(arena, folder, args.cmk)
        size = len(arena.body.read_bytes())
        print(
            f"a review of {size} bytes that claims cores; {load.CONNECTIONS} connections, keep-alive, ECDSA P-256"
        )
        print(f"server on CPU {cpus[0]}, wrk on CPU {cpus[1]}, load average {os.getloadavg()[0]:.1f}")
        print("every answer was checked: all make the same changes to the pod\n")
        rounds = measure_all(arena, servers, args.rounds, args.seconds)
    print()
    for server in servers:
        print(f"{server.name:<20}{WHAT[server.name]}")
    print(f"\nmedian of {args.rounds} rounds of {args.seconds} s")
    print("\n".join(report.table(rounds)))
    verdicts = list(report.verdicts(rounds))
    print("\n" + "\n".join(sentence for _, sentence in verdicts))
    return all(holds for holds, _ in verdicts)


def main() -> int:
    """Run the command; 0 when the targets hold, 1 when not, 2 when it could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.webhook", description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=5, help="how often each webhook is measured (default: 5)"
    )
    parser.add_argument("--seconds", type=int, default=5, help="how long at a time (default: 5)")
    parser.add_argument(
        "--cmk", type=Path, metavar="DIR", help="measure CMK's webhook from this checkout too"
    )
    args = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))[:2]
    try:
        load.require_tools(cpus)
        return 0 if run(args, cpus) else 1
    except (load.LoadFailed, WrongAnswer, DaemonFailed) as problem:
        print(f"not measured: {problem}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
