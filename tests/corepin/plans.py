"""Files with a machine, pods and their controllers, as `corepin plan` reads them, and its output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from _pytest.capture import CaptureResult

from corepin.cli import main
from tests.corepin.documents import written
from webhook.rules.workloads import TEMPLATES

TEMPLATE = (
    "template: {metadata: {name: t, uid: u, creationTimestamp: 2020-01-01T00:00:00Z, annotations: "
    "{qos.gocrane.io/cpu-manager: exclusive}}, spec: {containers: [{name: main, resources: {limits: {cpu: 2}}}]}}"
)
DEDICATED = "template: {spec: {domain: {memory: {guest: 1Gi}, cpu: {cores: 3, dedicatedCpuPlacement: true}}}}"

GPU_POD = """\
apiVersion: v1
kind: Pod
metadata: {{name: {name}, annotations: {{qos.gocrane.io/cpu-manager: exclusive}}}}
spec:
  initContainers:
  - {{name: load, resources: {{limits: {{cpu: 1, nvidia.com/gpu: 1}}}}}}
  containers:
  - {{name: main, resources: {{limits: {{cpu: 2, nvidia.com/gpu: {gpus}}}}}}}
"""


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
    policies = ", ".join(f"{keys[key]}: {word}" for key, word in annotations.items())
    return (
        f"apiVersion: v1\nkind: Pod\nmetadata: {{{name}, annotations: {{{policies}}}, {more}}}\n"
        f"spec: {{containers: [{{name: main, resources: {{limits: {{cpu: {cpu}}}}}}}]}}\n"
    )


def workload(kind: str, more: str = "", name: str = "web", metadata: str = "", spec: str = TEMPLATE) -> str:
    """Return a workload; `more` goes into its specification."""
    group = next((group for group, known in TEMPLATES if known == kind), "")
    version = {"": "v1", "apps": "apps/v1", "batch": "batch/v1"}[group]
    if kind == "CronJob":
        spec = f"jobTemplate: {{spec: {{{spec}}}}}"
    text = ", ".join(filter(None, (spec, more)))
    return f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: {name}, {metadata}}}\nspec: {{{text}}}\n"


def virtual(kind: str, more: str = "", spec: str = DEDICATED, metadata: str = "") -> str:
    """Return an object of KubeVirt's."""
    group = "pool.kubevirt.io/v1beta1" if kind == "VirtualMachinePool" else "kubevirt.io/v1"
    text = ", ".join(filter(None, (spec, more)))
    return f"apiVersion: {group}\nkind: {kind}\nmetadata: {{name: desk, {metadata}}}\nspec: {{{text}}}\n"


@dataclass(frozen=True)
class Planning:
    """`corepin plan` on the machine, with files in a folder."""

    directory: Path
    capsys: pytest.CaptureFixture[str]

    def run(self, *documents: str, flags: Sequence[str] = (), code: int = 0) -> CaptureResult[str]:
        """Return the output of a plan of the documents, if any, which ends with this exit code."""
        source = ("-f", written(self.directory, *documents)) if documents else ()
        assert main(["plan", *source, "--topology", machine(self.directory), *flags]) == code
        return self.capsys.readouterr()

    def lines(self, *documents: str, flags: Sequence[str] = ()) -> list[Any]:
        """Return the JSON lines."""
        return [
            json.loads(line) for line in self.run(*documents, flags=("-o", "json", *flags)).out.splitlines()
        ]

    def words(self, *documents: str, flags: Sequence[str] = ()) -> str:
        """Return the text with single blanks."""
        return " ".join(self.run(*documents, flags=flags).out.split())

    def failure(self, *documents: str, flags: Sequence[str] = ()) -> str:
        """Return the one line of an error."""
        out, error = self.run(*documents, flags=flags, code=2)
        assert out == ""
        assert error.startswith("corepin plan: ")
        assert error.count("\n") == 1
        return error

    def events(self, *documents: str) -> tuple[list[Any], str]:
        """Return the assignments after each event, by pod, and the text on standard error."""
        out, notes = self.run(*documents, flags=("-o", "json"))
        return [
            {
                "pod": event["pod"].removeprefix("default/"),
                "cpus": {name.split("/")[1]: it["cpus"] for name, it in event["assignments"].items()},
            }
            for event in map(json.loads, out.splitlines())
        ], notes

    def file(self, text: str) -> str:
        """Return the path of a new file."""
        path = self.directory / "given.yaml"
        path.write_text(text)
        return str(path)
