"""Resident memory of an agent with 110 pods and their ResourceClaims: `python -m bench.claims.memory`.

Each number of claims is measured in a separate process, which loads all libraries of the agent, prepares the claims over
the driver's real sockets, runs a container of each pod and reports its own memory. The fake runtime, cgroups and API
server, and the kubelet's side of the sockets, are in that process and count too.

Ten more claims cost more here than in `python -m bench.claims`, which counts only Python objects, because the allocator
keeps the temporary memory of larger passes.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import subprocess
import sys

from bench.agent import LIBRARIES, resident_mb
from bench.claims.__main__ import CLAIMS, PODS, new_node, prepared

LIMIT = 60.0  # MB
NUMBERS = (0, PODS, CLAIMS)


def serve(claims: int) -> None:
    """Print the memory of this process with this many claims."""
    for name in LIBRARIES:
        importlib.import_module(name)
    with new_node(claims) as node:
        node.node.runner.run(prepared(node, at_once=False))
        for pod in range(PODS):
            node.node.start(f"pod-{pod}")
        held = len(node.node.run(2).ledger.claims)
        if held != claims:
            raise RuntimeError(f"{held} of {claims} claims hold CPUs")
        gc.collect()
        print(resident_mb(os.getpid()))


def measured(claims: int) -> float:
    """Return the memory of a new process with this many claims."""
    command = [sys.executable, "-m", "bench.claims.memory", "--claims", str(claims)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> int:
    """Print the figures; return 1 if one is above its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--claims", type=int, help="of the process that is measured")
    if (claims := parser.parse_args().claims) is not None:
        serve(claims)
        return 0
    found = {number: measured(number) for number in NUMBERS}
    for number, resident in found.items():
        print(f"{PODS} pods, {number} claims (MB)   {resident:.1f}   limit {LIMIT:.0f}")
    ten = (found[CLAIMS] - found[PODS]) / (CLAIMS - PODS) * 10
    print(f"ten more claims (MB)   {ten:.3f}")
    return int(max(found.values()) > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
