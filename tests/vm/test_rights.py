"""Discovery of a machine's threads with exactly the capabilities that the manifests give the agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.environments.vm.guests import Guest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.environments.vm.machines import Machine

    Start = Callable[[Guest], Machine]

MANIFESTS = Path("manifests")
BASE, PROBE = MANIFESTS / "base/agent.yaml", MANIFESTS / "components/vm-probe/agent.yaml"


def capabilities(file: Path) -> list[str]:
    """Return the capabilities of the agent's container in a manifest."""
    (document,) = yaml.safe_load_all(file.read_text())
    (container,) = document["spec"]["template"]["spec"]["containers"]
    given: list[str] = container["securityContext"]["capabilities"]["add"]
    return given


def look(machine: Machine, file: Path) -> Any:
    """Return the discovery of a root process with a manifest's capabilities."""
    kept = ",".join(["-all", *(f"+{name.lower()}" for name in capabilities(file))])
    command = ["setpriv", f"--bounding-set={kept}", "--no-new-privs", sys.executable, "-m", "tests.vm.look"]
    done = subprocess.run([*command, str(machine.pid)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_named_threads_need_no_right_to_look_into_processes(start: Start) -> None:
    """SYS_NICE is enough to identify and move named vCPU threads, such as KubeVirt's."""
    machine = start(Guest(2))
    found = look(machine, BASE)
    assert (found["toldBy"], found["reason"]) == ("names", "")
    assert found["vcpus"] == list(machine.truth().vcpus)
    assert [os.sched_getaffinity(tid) for tid in found["vcpus"]] == [{0}, {0}]


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        pytest.param(BASE, "may not be read (component vm-probe)", id="base"),
        pytest.param(PROBE, "it has no KVM vCPU open", id="vm-probe"),
    ],
)
def test_probe_needs_its_component(start: Start, file: Path, reason: str) -> None:
    """If only the probe could identify vCPUs, the reason names the component that grants its capability."""
    found = look(start(Guest(2, is_named=False)), file)
    assert (found["toldBy"], found["vcpus"]) == ("", [])
    assert reason in found["reason"]
