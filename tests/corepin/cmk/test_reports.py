"""`corepin cmk describe`, `node-report` and `reconcile`: from the agent's socket, and from what it wrote."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.report.cmk_node import cmk_node
from agent.report.desired_node import topology_text
from agent.serve.state_json import to_json
from corepin.cli import main
from corepin.cmk.view import view_of_objects
from pinning.cmk.pools import ExitSource, Reclaimed, Task, cmk_pools, cmk_yaml
from pinning.cmk.reports import describe, node_report, reconcile_report
from pinning.machine.cpuset import CPUSet
from tests.agent.states import bound, state_of
from tests.corepin.nodes import agent_socket
from tests.pods import CORES, container

NOBODY = "--socket=/nonexistent"
WRAPPED = Task(48624, "default/a/main", "exclusive", CPUSet([1, 5]))
DIED = Reclaimed(7, "default/b/main", "exclusive", "2,6", ExitSource.RUNTIME)
STATE = replace(
    state_of(bound("a", container("main", {CORES: 2}))),
    tasks=(WRAPPED,),
    reclaimed=(DIED,),
    reclaims_dropped=9,
)
POOLS = cmk_pools(cmk_node(STATE))
REPORTS = {
    "describe": describe(POOLS),
    "node-report": node_report(POOLS, STATE.topology),
    "reconcile": reconcile_report(STATE.reclaimed, 9),
}


@pytest.mark.parametrize("action", REPORTS)
def test_what_the_agent_knows_is_shown(
    action: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands print the agent's state as JSON with an indent of two, process ids as numbers."""
    with agent_socket(tmp_path / "s", to_json(STATE)) as path:
        assert main(["cmk", action, "--socket", path]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == REPORTS[action]
    assert shown.out.startswith('{\n  "')
    assert shown.err == ""


def test_what_the_agent_wrote_says_the_same() -> None:
    """ConfigMap, annotation and last report give the same as the agent's socket."""
    lists = reconcile_report(STATE.reclaimed, 9)
    view = view_of_objects(
        "n", topology_text(STATE), {"data": {"config": cmk_yaml(POOLS)}}, {"spec": {"report": lists}}
    )
    assert describe(view.pools) == REPORTS["describe"]
    assert node_report(view.pools, view.topology) == REPORTS["node-report"]
    assert reconcile_report(view.reclaimed, view.dropped) == lists


@pytest.mark.parametrize(
    ("written", "topology"),
    [
        ({"data": {"config": "- a: ]"}}, "{}"),
        ({"data": {}}, "{}"),
        ({"data": {"config": "a: 1"}}, "not json"),
    ],
)
def test_damaged_objects_are_one_line(written: dict[str, Any], topology: str) -> None:
    """A damaged object is one line with node and remedy, without a traceback."""
    with pytest.raises(
        Exception, match="node n: the data of its agent is from another version of corepin, or"
    ):
        view_of_objects("n", topology, written, {})


def test_an_agent_of_another_version_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An agent of another version on the socket is one line."""
    with agent_socket(tmp_path / "s", b'{"version": 0}\n') as path:
        assert main(["cmk", "describe", "--socket", path]) == 2
    assert "by another version of corepin" in capsys.readouterr().err


def test_interval_shows_it_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an interval the report is printed again until Ctrl-C, which is no failure."""
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("corepin.cmk.reports.time.sleep", sleep)
    with agent_socket(tmp_path / "s", to_json(STATE)) as path:
        assert main(["cmk", "reconcile", "--interval=500ms", "--socket", path]) == 0
    assert slept == [0.5] * 3
    assert capsys.readouterr().out.count("reclaimedCpuLists") == 3


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("reconcile", "--interval=soon", NOBODY), "--interval: 'soon' is not a duration up to 24h"),
        (("node-report", "--namespace=A B", NOBODY), "--namespace: 'A B' is not a valid Kubernetes name"),
        (("describe", "--node=../pods", NOBODY), "--node: '../pods' is not a valid Kubernetes name"),
        (("discover", "--node=../pods"), "--node: '../pods' is not a valid Kubernetes name"),
    ],
)
def test_flags_that_cannot_be_read_are_refused(
    flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unusable flags are refused before any connection is made."""
    assert main(["cmk", *flags]) == 2
    assert message in capsys.readouterr().err


def test_cmks_configuration_directory_is_accepted_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    """CMK's flag --conf-dir has no effect but a warning; without an agent the error says to start one."""
    assert main(["cmk", "describe", "--conf-dir=/etc/cmk", "--socket=/nonexistent"]) == 2
    told = capsys.readouterr().err
    assert "--conf-dir has no effect: the agent of the node stores the data of that directory" in told
    assert "/nonexistent: No such file or directory: start `corepin agent` here" in told
