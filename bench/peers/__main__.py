"""`python -m bench.peers` (as root): cost of a pod for corepin, balloons and dra-driver-cpu, in turns.

Each plugin gets the same pods on one containerd: five that keep running, pods without claims, and owners of one
CPU, which the five leave and get back. dra-driver-cpu is built from its module. balloons cannot be built, because
a module inside of it is not published, so `--balloons` names its program; otherwise it is skipped.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from functools import partial
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.go_peer import DRA_DRIVER, program
from bench.peers.plugins import balloons, corepin, dra_driver
from bench.peers.rounds import ROWS, measure
from tests.environments.node.containerd import start_containerd

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from bench.peers.plugins import Plugin
    from bench.peers.rounds import Figures
OURS: Final = "corepin"


def started(names: argparse.Namespace) -> Mapping[str, Callable[..., AbstractContextManager[Plugin]]]:
    """Return the start function of each plugin."""
    found: dict[str, Callable[..., AbstractContextManager[Plugin]]] = {OURS: corepin}
    if names.balloons:
        found["balloons"] = partial(balloons, names.balloons)
    found[DRA_DRIVER.label] = partial(dra_driver, program(DRA_DRIVER))
    return found


def table(taken: Mapping[str, list[Figures]]) -> list[str]:
    """Return the lines: the median of all rounds, and the ratio of ours to theirs."""
    lines = [f"{'':<52}" + "".join(f"{name:>24}" for name in taken)]
    for title, pick in ROWS:
        values = {name: sorted(map(pick, rounds))[len(rounds) // 2] for name, rounds in taken.items()}
        cells = [_cell(values[OURS], value, name) for name, value in values.items()]
        lines.append(f"{title:<52}" + "".join(f"{cell:>24}" for cell in cells))
    return lines


def _cell(ours: float, theirs: float, name: str) -> str:
    """Return a value with the ratio of ours to it; "-" if not measured."""
    if isnan(theirs):
        return "-"
    return f"{theirs:.2f}" + (f" ({ours / theirs:.2f} x)" if name != OURS and theirs > 0 and ours > 0 else "")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of each plugin, in turns; default: 3")
    parser.add_argument("--pods", type=int, default=20, help="of each kind in a round; default: 20")
    parser.add_argument("--idle", type=float, default=30.0, help="seconds; default: 30")
    parser.add_argument(
        "--balloons", type=Path, metavar="PROGRAM", help="the built plugin; default: left out"
    )
    args = parser.parse_args()
    before = os.getloadavg()[0]
    plugins = started(args)
    taken: dict[str, list[Figures]] = {name: [] for name in plugins}
    with tempfile.TemporaryDirectory(prefix="peers-") as name:
        folder = Path(name)
        (folder / "containerd").mkdir()
        with start_containerd("2.4", folder / "containerd") as containerd:
            for number in range(args.rounds):
                for title, start in plugins.items():
                    place = folder / f"{len(taken[title])}-{[*plugins].index(title)}"
                    place.mkdir()
                    with start(containerd, place) as plugin:
                        taken[title].append(measure(plugin, containerd, place.name, args.pods, args.idle))
                    containerd.remove_pods()
                    time.sleep(1)
                    sys.stderr.write(f"round {number + 1}, {title}: {taken[title][-1]}\n")
    for line in table(taken):
        print(line)
    print(f"load of the machine {before:.1f} before, {os.getloadavg()[0]:.1f} after, {os.cpu_count()} CPUs")


if __name__ == "__main__":
    main()
