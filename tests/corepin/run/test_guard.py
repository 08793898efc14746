"""`corepin guard`: its flags, and how it detects that the agent only observes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.group_start import GroupMemory
from corepin import cli
from corepin.run.guard import exempt, observes


@pytest.mark.parametrize(
    ("flags", "variables", "found"),
    [
        pytest.param((), {}, {"kube-system"}, id="default"),
        pytest.param(("--namespace", "ours"), {}, {"kube-system", "ours"}, id="its own"),
        pytest.param((), {"COREPIN_NAMESPACE": "ours", "COREPIN_EXEMPT": "a, b"}, {"a", "b", "ours"}, id="variables"),
        pytest.param(("--exempt", "a,b", "--exempt", "c"), {}, {"a", "b", "c"}, id="listed and repeated"),
    ],
)  # fmt: skip
def test_namespaces_that_always_start(
    flags: tuple[str, ...], variables: dict[str, str], found: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard exempts pods in its own namespace and in the namespaces of --exempt."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert exempt(cli.build_parser().parse_args(["guard", *flags])) == found


@pytest.mark.parametrize(
    ("kubelet", "config", "expected"),
    [
        pytest.param("none", "smtPolicy: require", False, id="allocating"),
        pytest.param("none", None, False, id="no configuration"),
        pytest.param("none", "observe: true", True, id="told to observe"),
        pytest.param("static", "", True, id="the kubelet allocates"),
        pytest.param(None, "", False, id="no state of the kubelet"),
        pytest.param("none", "observe: yes please", False, id="damaged"),
    ],
)
def test_it_observes_when_the_agent_does(
    kubelet: str | None, config: str | None, *, expected: bool, tmp_path: Path
) -> None:
    """The guard only observes if the agent would, by its configuration or the kubelet's state; otherwise it guards."""
    state, file = tmp_path / "cpu_manager_state", tmp_path / "config.yaml"
    if kubelet:
        state.write_text(json.dumps({"policyName": kubelet}))
    if config is not None:
        file.write_text(config)
    assert observes(file, state, tmp_path) is expected


def test_it_observes_where_the_group_of_the_node_does(tmp_path: Path) -> None:
    """The guard reads the node's group from the agent's directory and uses the group's file; a missing one is ignored."""
    file, memory = tmp_path / "config.yaml", GroupMemory(tmp_path, "n1")
    file.write_text("observe: true")
    (tmp_path / "config.big.yaml").write_text("observe: false")
    (tmp_path / "config.seen.yaml").write_text("observe: true")
    for group, expected in (("", True), ("big", False), ("seen", True), ("gone", False), ("/", False)):
        memory.keep(group)
        assert observes(file, tmp_path / "none", tmp_path) is expected


def test_a_wrong_address_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong address is one line with flag, value and example."""
    assert cli.main(["guard", "--health-listen", "here"]) == 2
    assert (
        "--health-listen: 'here' is not HOST:PORT: write for example :8083, or off" in capsys.readouterr().err
    )
