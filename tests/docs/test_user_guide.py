"""The user guide: its examples are admitted and planned as described, and its commands succeed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from corepin.cli import main
from pinning.dra.groups import Offer, slice_devices
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.topology import Topology
from tests.docs.blocks import blocks, chapter
from tests.machines import lscpu_text
from tests.manifests.guide import shell
from tests.pinning.machines import HYBRID

if TYPE_CHECKING:
    from tests.environments.server.apiserver import ApiServer

PAGE = Path("docs/user-guide.md").read_text(encoding="utf-8")
EXAMPLES = {yaml.safe_load(text)["metadata"]["name"]: text for text in blocks(PAGE, "yaml")}


def write(folder: Path) -> None:
    """Save every example under the file name in the guide's commands."""
    for name, text in EXAMPLES.items():
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_admitted(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every example of the guide is admitted, with the warnings that the guide mentions."""
    write(tmp_path)
    assert main(["validate", "-f", str(tmp_path / f"{name}.yaml")]) == 0
    warned = {line.split(": ")[1] for line in capsys.readouterr().out.splitlines() if "warning" in line}
    expected = {
        "web": {"metadata.annotations[qos.gocrane.io/cpu-manager]"},
        "forwarder": {"spec.volumes"},
        "poller": {"metadata.annotations[shared-cpus.corepin.io/container.poller]"},
    }
    assert warned == expected.get(name, set())


@pytest.mark.parametrize(
    ("name", "policy", "running", "idle"),
    [
        pytest.param("web", "prefer", 2, 0, id="exclusive"),
        pytest.param("latency", "isolate", 4, 4, id="isolate"),
        pytest.param("near", "prefer", 2, 0, id="one-numa-node"),
        pytest.param("forwarder", "require", 4, 0, id="two-cores"),
    ],
)
def test_pods_get_what_the_guide_says(
    name: str, policy: str, running: int, idle: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a machine with two threads per core the plan gives each pod the guide's numbers of running and idle CPUs."""
    write(tmp_path)
    machine = tmp_path / "machine.json"
    machine.write_text(lscpu_text("xeon-d-1541"))
    assert main(["plan", "-f", str(tmp_path / f"{name}.yaml"), "--topology", str(machine), "-o", "json"]) == 0
    line = json.loads(capsys.readouterr().out)
    (assignment,) = line["assignments"].values()
    assert line["refused"] == []
    assert (
        assignment["smtPolicy"],
        len(CPUSet.parse(assignment["cpus"])),
        len(CPUSet.parse(assignment["idle"])),
    ) == (
        policy,
        running,
        idle,
    )


@pytest.mark.server
def test_commands_work(api: ApiServer, tmp_path: Path) -> None:
    """Every `sh` block succeeds, in the order of the guide, with the examples saved under their names."""
    write(tmp_path)
    here = shell(api, tmp_path)
    for command in blocks(PAGE, "sh"):
        here.run(command)
    stored: Any = api.get("pod", "web")
    assert "qos.gocrane.io/cpu-manager" not in stored["metadata"]["annotations"]


def test_attributes_of_claims_are_documented() -> None:
    """The guide lists every device attribute for selectors, here of a machine with several core types."""
    cores = tuple(replace(core, core_type=f"type {len(core.cpus)}") for core in HYBRID.cores)
    mixed = Topology(cores, HYBRID.online)
    devices = slice_devices(Offer(mixed, mixed.online, EMPTY, EMPTY, mixed.online))
    names = {name for device in devices for name in device["attributes"]}
    assert len(names) == 8
    assert names <= set(re.findall(r"`([\w.]+/\w+)`", chapter(PAGE, "CPUs as ResourceClaims")))


def test_every_user_has_a_chapter() -> None:
    """Every chapter in the guide's first table has an example, or states why it has none."""
    for title in ("CPUs of your own", "Whole cores and idle siblings", "NUMA nodes"):
        assert blocks(chapter(PAGE, title), "yaml")
    for title in ("Cores as with Intel CMK", "Virtual machines of KubeVirt", "Kata containers"):
        assert blocks(chapter(PAGE, title), "yaml")
