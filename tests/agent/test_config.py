"""The agent's command-line choices, errors for impossible ones, and the modules loaded before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from agent.config import AgentConfig, ApiFlags
from agent.kubelet.policy import read_kubelet_policy
from pinning.contract import KubeletPolicy
from pinning.errors import BadContract
from pinning.planning.node_config import NodeConfig


@pytest.mark.parametrize(
    ("node", "runtime", "message"),
    [
        pytest.param("", "cri", "--node", id="no node"),
        pytest.param("n", "docker", "--runtime: 'docker'", id="unknown runtime"),
        pytest.param("n", "local", "--pods-dir", id="local without pods"),
    ],
)
def test_impossible_choices_are_refused(tmp_path: Path, node: str, runtime: str, message: str) -> None:
    """The error names the flag to change."""
    with pytest.raises(BadContract, match=message):
        AgentConfig(node, tmp_path, runtime)


@pytest.mark.parametrize(
    ("irq", "config", "found"),
    [
        pytest.param(Path("/irq"), NodeConfig(quiet_workqueues=True), True, id="component and a part"),
        pytest.param(Path("/irq"), NodeConfig(), False, id="component alone, which counts"),
        pytest.param(None, NodeConfig(quiet_interrupts=True), False, id="no component"),
    ],
)
def test_cpus_are_kept_quiet_with_component_and_configuration(
    tmp_path: Path, irq: Path | None, config: NodeConfig, found: bool
) -> None:
    """CPUs are kept quiet only with both the component and the configuration."""
    assert AgentConfig("n", tmp_path, config=config, irq=irq).keeps_quiet is found


def test_kubelet_url_needs_a_token(tmp_path: Path) -> None:
    """A kubelet URL beside a folder of pods needs an API token, because there is no service account."""
    with pytest.raises(BadContract, match="--api-token"):
        AgentConfig("n", tmp_path, pods_dir=tmp_path, kubelet_url="https://n:10250")
    api = ApiFlags("https://api")
    assert AgentConfig("n", tmp_path, pods_dir=tmp_path, kubelet_url="https://n:10250", api=api).kubelet_url


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        pytest.param('{"policyName":"static","checksum":1}', KubeletPolicy.STATIC, id="static"),
        pytest.param('{"policyName":"none"}', KubeletPolicy.NONE, id="none"),
        pytest.param('{"policyName":"other"}', KubeletPolicy.UNKNOWN, id="another word"),
        pytest.param("[]", KubeletPolicy.UNKNOWN, id="no object"),
        pytest.param("{", KubeletPolicy.UNKNOWN, id="damaged"),
        pytest.param(None, KubeletPolicy.UNKNOWN, id="absent"),
    ],
)
def test_policy_of_the_kubelet_is_read(tmp_path: Path, text: str | None, policy: KubeletPolicy) -> None:
    """Any content of the kubelet's file gives a policy and never an error."""
    path = tmp_path / "cpu_manager_state"
    if text is not None:
        path.write_text(text)
    assert read_kubelet_policy(path) is policy


@pytest.mark.parametrize(
    "url", ["", "host:6443", "https://", "ftp://host", "https://host:70000", "https://[::1"]
)
def test_other_api_servers_are_refused(url: str) -> None:
    """The error names the flag and an example."""
    with pytest.raises(BadContract, match=r"--api-server: .*https://HOST:6443"):
        ApiFlags(url)


PROGRAM: Final = "import sys, agent.main; print(*sys.modules)"
# Rooms that the configuration chooses, and modules that only errors or the start of a command need.
LATER: Final = (
    *("agent.cri", "agent.dra", "agent.local", "agent.nri", "agent.vm", "agent.wrappers"),
    *("difflib", "kubeyaml", "pinning.pods.types", "yaml"),
)


def test_main_module_loads_no_room_that_the_configuration_chooses() -> None:
    """The agent's main module imports no implementation of an interface, and nothing that only errors need."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "agent.reconcile.reconciler" in loaded
    assert [it for it in loaded if any(f"{it}.".startswith(f"{room}.") for room in LATER)] == []
