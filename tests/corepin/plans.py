"""A machine and pods in files, as `corepin plan` reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def machine(directory: Path, **wrong: Any) -> str:
    """Return a file of lscpu's: 2 sockets x 4 cores x 2 threads, core N has CPUs N and N + 8."""
    rows = [
        {"cpu": cpu, "node": cpu % 8 // 4, "socket": cpu % 8 // 4, "core": cpu % 8, "online": True, **wrong}
        for cpu in range(16)
    ]
    path = directory / "lscpu.json"
    path.write_text(json.dumps({"cpus": rows}))
    return str(path)


def pod(name: str, cpu: str = "2", more: str = "", **annotations: str) -> str:
    """Return a pod with one container `main`; `more` goes into its metadata."""
    keys = {"policy": "qos.gocrane.io/cpu-manager", "smt": "smt-policy.corepin.io/pod"}
    told = ", ".join(f"{keys[key]}: {word}" for key, word in annotations.items())
    return (
        f"apiVersion: v1\nkind: Pod\nmetadata: {{{name}, annotations: {{{told}}}, {more}}}\n"
        f"spec: {{containers: [{{name: main, resources: {{limits: {{cpu: {cpu}}}}}}}]}}\n"
    )
