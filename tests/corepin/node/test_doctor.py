"""`corepin doctor`: exit codes, texts and JSON, with and without agent and cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.serve.state_json import to_json
from corepin.cli import main
from tests.agent.states import EXCLUSIVE, bound, state_of
from tests.corepin.nodes import Serve, agent_socket, kubeconfig, node_objects
from tests.machines import materialise

STATE = to_json(state_of(bound("web", annotations=EXCLUSIVE)))


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the command on a machine with one socket and no Kubernetes, in cgroups that can be written."""
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")
    monkeypatch.setenv("COLUMNS", "80")
    materialise("xeon-d-1541", tmp_path)
    (tmp_path / "cpuset").mkdir()
    for name in ("cpuset.cpus", "cgroup.procs"):
        (tmp_path / "cpuset" / name).write_text("0\n")
    where = ("--sysfs-root", str(tmp_path), "--cgroup-root", str(tmp_path), "--seconds", "0")
    return [
        "doctor",
        *where,
        "--runtime-endpoint",
        str(tmp_path / "none"),
        "--kubelet-state",
        str(tmp_path / "state"),
    ]


def test_machine_without_anything(
    doctor: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without agent and cluster no check fails, and the output says what is missing and how to get it."""
    assert main([*doctor, "--socket", str(tmp_path / "s")]) == 0

    shown = capsys.readouterr().out
    assert "ok    cgroups: version 1, writable" in shown
    assert "?     agent: it does not answer" in shown
    assert "-> start `corepin agent`" in shown
    assert shown.splitlines()[-1].startswith("0 to fix, ")
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_finding_is_exit_code_1(
    doctor: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A finding, here the kubelet's static policy, is exit code 1."""
    (tmp_path / "state").write_text('{"policyName": "static"}')

    assert main([*doctor, "--socket", str(tmp_path / "s")]) == 1
    assert "FIX   kubelet: its static policy allocates CPUs" in capsys.readouterr().out


def test_json_has_every_check(doctor: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON has subject, verdict and texts of every check."""
    main([*doctor, "--socket", str(tmp_path / "s"), "-o", "json"])
    checks = json.loads(capsys.readouterr().out)["checks"]

    assert {"subject": "cgroups", "verdict": "ok", "told": "version 1, writable", "remedy": ""} in checks


def test_agent_and_cluster_are_compared(
    doctor: list[str], serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Doctor compares the node's allocatable CPUs in the cluster with the agent's."""
    serve(node_objects({}, cpu="7500m"))
    with agent_socket(tmp_path / "s", STATE) as path:
        assert main([*doctor, "--socket", path, "--node", "n1"]) == 1

    shown = " ".join(capsys.readouterr().out.split())
    assert "FIX kubelet's CPUs: the scheduler may place 7500m, corepin can allocate 6000m" in shown
    assert 'reservedSystemCPUs: "0,4"' in shown


@pytest.mark.parametrize("cpu", [None, "many"])
def test_node_that_says_no_cpus_is_not_compared(
    doctor: list[str], serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str], cpu: str | None
) -> None:
    """A kubelet that has not reported yet, or an amount that cannot be read, is not known, and not 0."""
    serve(node_objects({}, **({"cpu": cpu} if cpu else {})))
    with agent_socket(tmp_path / "s", STATE) as path:
        main([*doctor, "--socket", path, "--node", "n1"])

    shown = " ".join(capsys.readouterr().out.split())
    assert "? kubelet's CPUs: not compared with corepin's (" in shown
    assert ("node n1 has no status.allocatable.cpu" in shown) is (cpu is None)


def test_numa_scheduling_is_looked_at_where_the_agent_is_to_publish(
    serve: Serve, doctor: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing NodeResourceTopology is found where the agent should publish it, and ignored elsewhere."""
    labels = {"app.kubernetes.io/managed-by": "corepin"}
    numa = {"name": "corepin.io/numa-cpus", "allocatable": "6", "available": "2"}
    zones = [{"name": "node-0", "resources": [numa, {"name": "cpu"}]}]
    command = [*doctor, "--socket", str(tmp_path / "s"), "--node", "n1"]
    for topology, status, sentence in (
        ({"metadata": {"labels": labels}, "zones": zones}, 0, "may place 2 of 6 CPUs of node-0"),
        (None, 1, "FIX NUMA scheduling: this node has no NodeResourceTopology"),
        ({"metadata": {}}, 1, "another program publishes"),
    ):
        serve(node_objects({}, topology=topology, cpu="6"))
        assert main([*command, "--node-topology", "on"]) == status
        assert sentence in _words(capsys)
    kubeconfig(tmp_path, 1)  # out of reach
    assert main([*command, "--node-topology", "on"]) == 0
    assert "NUMA scheduling: not known" in capsys.readouterr().out
    assert main(command) == 0
    assert "NUMA scheduling" not in capsys.readouterr().out


def test_cpus_beside_devices_are_looked_at_where_the_agent_is_to_publish_them(
    serve: Serve, doctor: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--near-cpus on` adds the check, which needs the node's name and an API server; by default there is no check."""
    command = [*doctor, "--socket", str(tmp_path / "s")]
    for more in ([], ["--node", "n1"]):
        assert main([*command, *more, "--near-cpus", "on"]) == 0
        assert "CPUs near devices: the published resources of the node are not known" in _words(capsys)
    serve(node_objects({}, cpu="6"))
    assert main([*command, "--node", "n1", "--near-cpus", "on"]) == 0
    assert "CPUs near devices: none are counted: no device plugin" in _words(capsys)
    assert main([*command, "--node", "n1"]) == 0
    assert "CPUs near devices" not in _words(capsys)


def _words(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        pytest.param(["--node-topology", "yes"], "--node-topology: 'yes'", id="neither on nor off"),
        pytest.param(["--seconds", "soon"], "--seconds: 'soon'", id="no number"),
        pytest.param(["--seconds", "-1"], "--seconds: '-1'", id="negative"),
        pytest.param(["--noise", "nan"], "--noise: 'nan'", id="noise without a number"),
    ],
)
def test_what_cannot_be_done_is_exit_code_2(
    doctor: list[str], capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    """Wrong flags are one line with exit code 2."""
    assert main([*doctor, *flags]) == 2
    assert message in capsys.readouterr().err


def test_agent_of_another_version(
    doctor: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The state of an agent of another version is refused with the reason."""
    with agent_socket(tmp_path / "s", b"{}\n") as path:
        assert main([*doctor, "--socket", path]) == 2

    assert "another version of corepin" in capsys.readouterr().err
