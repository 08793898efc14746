"""The operator guide: its commands succeed, and its tables are complete."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from pinning.planning.node_config import KEYS, POOL_KEYS, QUIET_KEYS
from tests.environments.server.catalog import KUBERNETES
from tests.environments.server.start import start_servers
from tests.manifests.guide import GUIDE, blocks, section, shell
from tests.manifests.installed import HERE
from tests.manifests.rendered import INSTALLS, manifest, text_of
from webhook.config.settings import Settings

SECONDS = 60.0


def cells(title: str) -> list[str]:
    """Return the words in the first column of the tables of a section."""
    rows = re.findall(r"^\| (`.*?) \|", section(title), re.MULTILINE)
    return [word for row in rows for word in re.findall(r"`(.*?)`", row)]


@pytest.mark.server
@pytest.mark.parametrize("version", list(KUBERNETES))
def test_commands_work(version: str, tmp_path: Path) -> None:
    """Every `sh` block of the guide succeeds, in order, on a fresh API server."""
    commands = blocks("sh", GUIDE.replace(section("Helm"), ""))
    assert len(commands) >= 8
    with start_servers(version) as api:
        api.kubectl("create", "-f", str(HERE / "crds.yaml"))
        here = shell(api, tmp_path)
        for block in commands:
            here.run(block)
        left = api.kubectl("get", "deployments,daemonsets,validatingadmissionpolicies", "-A").stdout
        assert left == ""


@pytest.mark.server
def test_the_folder_of_your_own(tmp_path: Path) -> None:
    """The guide's example kustomization renders with its component and image."""
    (folder,) = [block for block in blocks("yaml") if "kind: Kustomization" in block]
    (tmp_path / "my-corepin").mkdir()
    (tmp_path / "my-corepin/kustomization.yaml").write_text(folder)
    (tmp_path / "manifests").symlink_to(Path("manifests").absolute())
    rendered = text_of(tmp_path / "my-corepin")
    assert rendered.count("image: registry.example/corepin:0.1.0") == 3
    assert rendered.count("failurePolicy: Fail\n") == 3 + 6  # 3 webhooks and 6 policies


def test_every_component_is_documented() -> None:
    """The table of components has every overlay."""
    assert set(INSTALLS) - {"base"} <= set(cells("Install"))


@pytest.mark.server
def test_failure_policies_are_as_documented() -> None:
    """The table of failure policies agrees with the manifests."""
    for column, overlay in enumerate(("base", "hardened")):
        rows = re.findall(
            r"^\| `(\S+?)` \| (\w+) \| (\w+)", section("When the webhook does not answer"), re.MULTILINE
        )
        kinds = [f"{kind}WebhookConfiguration" for kind in ("Mutating", "Validating")]
        entries = [entry for kind in kinds for entry in manifest(overlay, kind, "zz-corepin")["webhooks"]]
        assert [(row[0], row[1 + column]) for row in rows] == [
            (it["name"], it["failurePolicy"]) for it in entries
        ]


def test_every_configuration_key_is_documented() -> None:
    """The guide's tables have every configuration key, and no other."""
    webhook = {str(name) for name in Settings.__struct_encode_fields__}
    assert set(cells("Configuration of the webhook")) == webhook
    parts = {"pools": POOL_KEYS, "quiet": QUIET_KEYS}
    agent = {*KEYS, *(f"{part}.{key}" for part, keys in parts.items() for key in keys)}
    assert set(cells("Configuration of the agents")) == agent


def test_the_reset_patch_runs_until_it_is_stopped(tmp_path: Path) -> None:
    """The reset patch calls `corepin ... --reset`, reports when it is done, and runs until SIGTERM."""
    (tmp_path / "corepin").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/called\n')
    (tmp_path / "corepin").chmod(0o755)
    spec = yaml.safe_load(Path("manifests/reset.yaml").read_text())["spec"]["template"]["spec"]
    _, flag, script = spec["containers"][0]["command"]
    script = script.replace("/run/corepin", str(tmp_path))
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    process = subprocess.Popen([sys.executable, flag, script, "agent"], env=env)
    try:
        deadline = time.monotonic() + SECONDS
        while not (tmp_path / "reset").exists():
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        assert (tmp_path / "called").read_text() == "agent --reset\n"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
