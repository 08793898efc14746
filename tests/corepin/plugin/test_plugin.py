"""`kubectl corepin`: the command as a plugin of kubectl."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from corepin.cli import PLUGIN_VERBS, kubectl
from corepin.plugin.doctor import SELECTOR
from pinning.contract import STATUS_POOLS, STATUS_TOPOLOGY
from tests.agent.states import EXCLUSIVE, bound, state_of
from tests.corepin.nodes import api_objects

AGENTS = "/api/v1/nodes?labelSelector=cmk.intel.com/cmk-node=true&limit=6"


def named(*names: str) -> dict[str, Any]:
    """Return a list of objects that have names."""
    return {"items": [{"metadata": {"name": name, "namespace": "corepin-agent"}} for name in names]}


def published() -> dict[str, Any]:
    """Return a node as its agent published it."""
    from agent.config import NodeOptions
    from agent.report.desired_node import pools_text, topology_text

    state = state_of(bound("web", annotations=EXCLUSIVE))
    notes = {STATUS_TOPOLOGY: topology_text(state), STATUS_POOLS: pools_text(state, (), NodeOptions())}
    return {"metadata": {"name": "n1", "annotations": notes}, "status": {}}


@pytest.mark.parametrize("verb", ["", *(name.rpartition(".")[2] for name in PLUGIN_VERBS)])
def test_help_names_the_plugin(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    """Every help text begins with what its user has typed."""
    with pytest.raises(SystemExit):
        kubectl([verb, "--help"] if verb else ["--help"])

    assert capsys.readouterr().out.startswith(f"usage: kubectl corepin {verb}".rstrip())


def test_map_draws_the_only_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --node the one node that has an agent is drawn."""
    with api_objects(tmp_path, {AGENTS: named("n1"), "/api/v1/nodes/n1": published()}) as config:
        monkeypatch.setenv("KUBECONFIG", str(config))
        assert kubectl(["map"]) == 0

    assert capsys.readouterr().out.startswith("node n1, as it was published\n")


@pytest.mark.parametrize("verb", ["map", "doctor"])
@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        pytest.param((), "no corepin agent reports from this cluster", id="none"),
        pytest.param(("n1", "n2"), "several nodes have agents (n1, n2): name one with --node", id="two"),
        pytest.param(tuple("abcdef"), "(a, b, c, d, e, ...)", id="many"),
    ],
)
def test_which_node_has_to_be_clear(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    verb: str,
    nodes: tuple[str, ...],
    message: str,
) -> None:
    """No node, and more than one, are told with the remedy."""
    with api_objects(tmp_path, {AGENTS: named(*nodes)}) as config:
        monkeypatch.setenv("KUBECONFIG", str(config))
        assert kubectl([verb]) == 2

    error = capsys.readouterr().err
    assert error.startswith(f"kubectl corepin {verb}: ")
    assert message in error


def pods_on(node: str) -> str:
    """Return where the agent of a node is asked for."""
    return f"/api/v1/pods?labelSelector={SELECTOR}&fieldSelector=spec.nodeName={node},status.phase=Running"


def test_doctor_runs_where_the_agent_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The plugin executes `corepin doctor` in the pod of the node's agent, and its exit code is ours."""
    program = tmp_path / "kubectl"
    program.write_text('#!/bin/sh\necho "$@"\nexit 1\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with api_objects(tmp_path, {pods_on("n1"): named("agent-x"), pods_on("n2"): named()}) as config:
        monkeypatch.setenv("KUBECONFIG", str(config))
        assert kubectl(["doctor", "--node", "n1", "--context", "x", "-o", "json"]) == 1
        assert kubectl(["doctor", "--node", "n2"]) == 2
        monkeypatch.setenv("PATH", "/nonexistent")
        assert kubectl(["doctor", "--node", "n1"]) == 2

    out, error = capfd.readouterr()
    there = (
        "exec --namespace corepin-agent agent-x --container agent -- corepin doctor --seconds 1 --output json"
    )
    assert out == f"--context x {there}\n"
    assert "no corepin agent runs on node n2" in error
    assert "kubectl is not on the PATH" in error
