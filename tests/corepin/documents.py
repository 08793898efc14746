"""Documents that the tests of the offline commands feed to the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from corepin.cli import main

CORES = "cmk.intel.com/exclusive-cores"
POD = f"""\
apiVersion: v1
kind: Pod
metadata:
  namespace: team
  name: fast
spec:
  containers:
  - name: app
    image: registry.example/app
    resources:
      limits: {{{CORES}: 2}}
"""
BAD_POD = """\
kind: Pod
apiVersion: v1
metadata:
  generateName: slow-
  annotations: {qos.gocrane.io/cpu-manager: exlusive, smt-policy.corepin.io/pod: never}
spec:
  containers: [{name: app}]
"""
DEPLOYMENT = f"""\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec:
  template:
    metadata:
      annotations: {{numa-policy.corepin.io/pod: single}}
    spec:
      containers:
      - name: app
        resources: {{requests: {{{CORES}: 1}}, limits: {{{CORES}: 1}}}}
"""
CONFIG_MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {z: '1', a: x}\n"


def written(directory: Path, *documents: str) -> str:
    """Return the path of a new file with the documents."""
    path = directory / "documents.yaml"
    path.write_text("---\n".join(documents), encoding="utf-8")
    return str(path)


def verdicts(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, object]]]:
    """Run `corepin validate -o json` and return its exit code and its lines."""
    code = main(["validate", "-o", "json", *arguments])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]
