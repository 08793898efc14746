"""`kubectl corepin`: the command as a plugin of kubectl."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from corepin.cli import PLUGIN_VERBS, kubectl
from corepin.plugin.doctor import SELECTOR
from pinning.contract import STATUS_POOLS, STATUS_TOPOLOGY
from tests.agent.states import EXCLUSIVE, bound, state_of
from tests.corepin.nodes import Serve

AGENTS = "/api/v1/nodes?labelSelector=cmk.intel.com/cmk-node=true&limit=6"


def named(*names: str) -> dict[str, Any]:
    """Return a list of objects that have names."""
    return {"items": [{"metadata": {"name": name, "namespace": "corepin-agent"}} for name in names]}


def published() -> dict[str, Any]:
    """Return a node with the annotations of its agent."""
    from agent.config import NodeOptions
    from agent.report.desired_node import pools_text, topology_text

    state = state_of(bound("web", annotations=EXCLUSIVE))
    notes = {STATUS_TOPOLOGY: topology_text(state), STATUS_POOLS: pools_text(state, (), NodeOptions())}
    return {"metadata": {"name": "n1", "annotations": notes}, "status": {}}


@pytest.mark.parametrize("verb", ["", *(name.rpartition(".")[2] for name in PLUGIN_VERBS)])
def test_help_names_the_plugin(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    """Help texts begin with `kubectl corepin`."""
    with pytest.raises(SystemExit):
        kubectl([verb, "--help"] if verb else ["--help"])

    assert capsys.readouterr().out.startswith(f"usage: kubectl corepin {verb}".rstrip())


def test_map_draws_the_only_node(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    """`map` draws the only node that has an agent."""
    serve({AGENTS: named("n1"), "/api/v1/nodes/n1": published()})
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
    serve: Serve,
    capsys: pytest.CaptureFixture[str],
    verb: str,
    nodes: tuple[str, ...],
    message: str,
) -> None:
    """Without a node, and with several, the error names the remedy."""
    serve({AGENTS: named(*nodes)})
    assert kubectl([verb]) == 2

    error = capsys.readouterr().err
    assert error.startswith(f"kubectl corepin {verb}: ")
    assert message in error


def pods_on(node: str, namespace: str = "corepin-agent") -> str:
    """Return the path of the request for a node's agent."""
    selectors = f"labelSelector={SELECTOR}&fieldSelector=spec.nodeName={node},status.phase=Running"
    return f"/api/v1/namespaces/{namespace}/pods?{selectors}"


def controlled(name: str, *, uid: str = "u1", owner: str = "corepin-agent", **more: Any) -> dict[str, Any]:
    """Return a pod whose owner reference names a DaemonSet."""
    reference = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": owner, "uid": uid, "controller": True}
    return {"metadata": {"name": name, "namespace": "corepin-agent", "ownerReferences": [reference | more]}}


AGENT_SET = "/apis/apps/v1/namespaces/corepin-agent/daemonsets/corepin-agent"
IS_THERE = {AGENT_SET: {"metadata": {"name": "corepin-agent", "uid": "u1"}}}


def kubectl_that(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a fake kubectl first on the PATH."""
    program = folder / "kubectl"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_doctor_runs_where_the_agent_is(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The plugin executes `corepin doctor` in the agent's pod on the node, and returns its exit code."""
    kubectl_that(tmp_path, monkeypatch, 'echo "$@"; exit 1')
    pods = {"items": [*named("strange")["items"], controlled("agent-x")]}
    serve({pods_on("n1"): pods, pods_on("n2"): named(), **IS_THERE})
    assert kubectl(["doctor", "--node", "n1", "--context", "x", "--noise", "10", "-o", "json"]) == 1
    assert kubectl(["doctor", "--node", "n2"]) == 2
    monkeypatch.setenv("PATH", "/nonexistent")
    assert kubectl(["doctor", "--node", "n1"]) == 2

    out, error = capfd.readouterr()
    there = "exec --namespace corepin-agent agent-x --container agent -- corepin doctor"
    assert out == f"--context x {there} --seconds 1 --noise 10 --output json\n"
    assert "no corepin agent on node n2 in namespace corepin-agent (no such pod runs)" in error
    assert "kubectl is not on the PATH" in error


def test_doctor_executes_in_no_pod_that_ends(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """`doctor` skips a terminating agent pod, which has the phase Running until it exits."""
    kubectl_that(tmp_path, monkeypatch, 'echo "$4"')
    ending = controlled("agent-old")
    ending["metadata"]["deletionTimestamp"] = "2026-11-28T07:00:00Z"
    both, alone = {"items": [ending, controlled("agent-new")]}, {"items": [ending]}
    serve({pods_on("n1"): both, pods_on("n2"): alone, **IS_THERE})
    assert kubectl(["doctor", "--node", "n1"]) == 0
    assert kubectl(["doctor", "--node", "n2"]) == 2
    out, error = capfd.readouterr()
    assert out == "agent-new\n"
    assert "(pod agent-old is ending): repeat the command when the next one runs" in error


@pytest.mark.parametrize(
    ("script", "code"),
    [
        pytest.param("echo 0 to fix; exit 0", 0, id="nothing to fix"),
        pytest.param("echo 1 to fix; exit 1", 1, id="something to fix"),
        pytest.param("echo no socket >&2; exit 2", 2, id="the doctor could not look"),
        pytest.param("echo Error from server: forbidden >&2; exit 1", 2, id="kubectl failed"),
        pytest.param("echo no such command >&2; exit 126", 2, id="no such command in the image"),
        pytest.param("echo ok agent; exit 137", 2, id="killed"),
    ],
)
def test_exit_code_of_a_doctor_that_could_not_look(
    serve: Serve,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    script: str,
    code: int,
) -> None:
    """Exit code 1 of kubectl means findings only if doctor has printed its summary; otherwise the plugin returns 2."""
    kubectl_that(tmp_path, monkeypatch, script)
    serve({pods_on("n1"): {"items": [controlled("agent-x")]}, **IS_THERE})
    assert kubectl(["doctor", "--node", "n1"]) == code

    assert ("has not finished" in capfd.readouterr().err) is (code == 2 and "exit 2" not in script)


@pytest.mark.parametrize(
    ("pod", "objects"),
    [
        pytest.param(named("bare")["items"][0], {}, id="no controller"),
        pytest.param(controlled("x", kind="ReplicaSet"), {}, id="another kind"),
        pytest.param(controlled("x", controller=False), {}, id="no controlling reference"),
        pytest.param(controlled("x", apiVersion="tenant.io/v1"), {}, id="another API group"),
        pytest.param(controlled("x", owner="unknown"), {}, id="no such DaemonSet"),
        pytest.param(controlled("x", uid="u2"), {}, id="an older DaemonSet of the name"),
    ],
)
def test_doctor_executes_in_no_pod_of_anything_else(
    serve: Serve,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    pod: dict[str, Any],
    objects: dict[str, Any],
) -> None:
    """`doctor` executes only in a pod that a DaemonSet controls: labels and owner references can be forged."""
    kubectl_that(tmp_path, monkeypatch, "echo executed")
    serve({pods_on("n1"): {"items": [pod]}, **IS_THERE, **objects})
    assert kubectl(["doctor", "--node", "n1"]) == 2

    out, error = capfd.readouterr()
    assert out == ""
    assert "none of the pods with its labels is controlled by a DaemonSet there" in error


def test_doctor_looks_in_the_namespace_it_is_given(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """An installation in another namespace is reached by --namespace, and pods elsewhere are not asked for."""
    kubectl_that(tmp_path, monkeypatch, 'echo "$@"')
    objects = {
        pods_on("n1", "ours"): {"items": [controlled("agent-y")]},
        AGENT_SET.replace("corepin-agent", "ours", 1): IS_THERE[AGENT_SET],
    }
    serve(objects)
    assert kubectl(["doctor", "--node", "n1", "-n", "ours"]) == 0

    assert capfd.readouterr().out.startswith("exec --namespace ours agent-y ")


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        pytest.param("text", "\\x1b]52;c;x\\x07\\x9b2J\\u202e\ufffd\n", id="text"),
        pytest.param("json", "\\u001b]52;c;x\\u0007\\u009b2J\\u202e\ufffd\n", id="JSON"),
    ],
)
def test_what_the_pod_prints_is_harmless(
    serve: Serve,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    output: str,
    shown: str,
) -> None:
    """Control characters in the pod's output do not reach the terminal."""
    said = r"\033]52;c;x\007\302\2332J\342\200\256\377\n"
    kubectl_that(tmp_path, monkeypatch, f"printf '{said}'; printf '{said}' >&2")
    serve({pods_on("n1"): {"items": [controlled("agent-x")]}, **IS_THERE})
    assert kubectl(["doctor", "--node", "n1", "-o", output]) == 0

    out, error = capfd.readouterr()
    assert out == shown
    assert error == "\\x1b]52;c;x\\x07\\x9b2J\\u202e\ufffd\n"
