"""Escaping of untrusted text in the output of commands, from the cluster, the node and files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from corepin.cli import kubectl, main
from corepin.documents import write_out
from drawing.picture import Holder, Picture, draw
from kubeyaml.writer import write_yaml
from pinning.contract import STATUS_POOLS, STATUS_TOPOLOGY
from pinning.machine.cpuset import CPUSet
from tests.agent.states import EXCLUSIVE, bound, state_of
from tests.corepin.nodes import Serve, agent_socket
from tests.dashboard.documents import grid
from tests.pods import container

NASTY = "a\x1b]52;c;eA==\x07\x9b2J\u202eb\u200bc\x1b[8m"
FORGED = "\nnode n1, as it was published"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def assert_harmless(text: str, *, colour: bool = False) -> None:
    """Assert that a text has no control or invisible characters, apart from our colours if `colour` is set."""
    lines = (COLOUR.sub("", text) if colour else text).split("\n")
    assert [line for line in lines if not line.isprintable()] == []
    assert "2J" in text


def annotated() -> dict[str, Any]:
    """Return a node whose published pools have an owner with control characters in its name."""
    from agent.config import NodeOptions
    from agent.report.desired_node import pools_text, topology_text

    state = state_of(bound("web", annotations=EXCLUSIVE))
    pools = json.loads(pools_text(state, (), NodeOptions()))
    (owner,) = pools["owners"].values()
    pools["owners"] = {f"team/{NASTY}{FORGED}/main": owner}
    notes = {STATUS_TOPOLOGY: topology_text(state), STATUS_POOLS: json.dumps(pools)}
    return {"metadata": {"name": "n1", "annotations": notes}, "status": {}}


@pytest.mark.parametrize("output", ["text", "json"])
def test_names_in_published_pools_are_harmless_on_the_map(
    serve: Serve, capsys: pytest.CaptureFixture[str], output: str
) -> None:
    """`map` prints names of published pools escaped, each on its own line, also as JSON."""
    serve({"/api/v1/nodes/n1": annotated()})
    assert kubectl(["map", "--node", "n1", "-o", output]) == 0

    out = capsys.readouterr().out
    assert_harmless(out)
    assert sum(line.startswith("node n1") for line in out.split("\n")) == (output == "text")
    if output == "json":
        assert f"team/{NASTY}{FORGED}/main" in json.loads(out)["pools"]["owners"]


def test_state_of_the_local_socket_is_harmless(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`map` prints the socket's answer escaped, broken UTF-8 included."""
    said = json.dumps({"node": NASTY}, ensure_ascii=False).encode() + b"\xff"
    with agent_socket(tmp_path / "socket", said, said.rstrip(b"\xff")) as path:
        assert main(["map", "--socket", path]) == 2
        assert main(["map", "--socket", path, "-o", "json"]) == 0

    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"node": NASTY}
    assert_harmless(shown.out)
    assert shown.err.count("\n") == 1


def test_only_colours_of_ours_are_drawn() -> None:
    """In a coloured picture an owner's name adds no escape sequence and no line break."""
    picture = Picture(grid(1, 1, 1, 2), (Holder(f"team/{NASTY}{FORGED}", CPUSet([1])),))
    assert_harmless(draw(picture, 80, colour=True), colour=True)
    assert "\x1b[8m" not in draw(picture, 80, colour=True)
    assert max(map(len, draw(picture, 60, colour=False).split("\n"))) <= 60


def pod() -> dict[str, Any]:
    """Return a pod with control characters in its node name, phase and container statuses."""
    return {
        "metadata": {"name": "web", "namespace": "default", "uid": "u"},
        "spec": {"nodeName": f"n1{NASTY}{FORGED}", "containers": [container("main")]},
        "status": {"phase": f"Running{NASTY}", "containerStatuses": [_waiting()]},
    }


def _waiting() -> dict[str, Any]:
    return {"name": "main", "state": {"waiting": {"reason": NASTY, "message": f"{NASTY}{FORGED}"}}}


def _with_raw_byte(body: bytes) -> bytes:
    fields = b'"managedFields":[{"fieldsV1":{"f:\xff":{}}}],'
    return body.replace(b'"metadata": {', b'"metadata": {' + fields, 1)


def _with_brackets(body: bytes) -> bytes:
    fields = b'"managedFields":[{"fieldsV1":' + b'{"f:a":' * 5000 + b"1" + b"}" * 5000 + b"}],"
    return body.replace(b'"metadata": {', b'"metadata": {' + fields, 1)


@pytest.mark.parametrize("output", ["text", "json"])
@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(bytes, id="as it is"),
        pytest.param(_with_raw_byte, id="a byte 0xff"),
        pytest.param(_with_brackets, id="5000 brackets"),
    ],
)
def test_timeline_of_a_pod_is_complete_and_harmless(
    serve: Serve,
    capsys: pytest.CaptureFixture[str],
    sent: Callable[[bytes], bytes],
    output: str,
) -> None:
    """`why` prints title, entries and waits escaped, and unreadable `managedFields` do not stop it."""
    folder = "/api/v1/namespaces/default"
    event = {"metadata": {"name": "e"}, "type": "Warning", "reason": NASTY, "message": f"{NASTY}{FORGED}"}
    objects = {
        f"{folder}/pods/web": sent(json.dumps(pod()).encode()),
        f"{folder}/events?fieldSelector=involvedObject.uid=u": sent(json.dumps({"items": [event]}).encode()),
    }
    serve(objects)
    assert kubectl(["why", "default/web", "-o", output]) == 0

    out = capsys.readouterr().out
    assert_harmless(out)
    assert not any(line.startswith("node n1") for line in out.split("\n"))


@pytest.mark.parametrize("sent", [_with_raw_byte, _with_brackets])
def test_map_of_such_a_node_is_harmless(
    serve: Serve,
    capsys: pytest.CaptureFixture[str],
    sent: Callable[[bytes], bytes],
) -> None:
    """`map` draws a node with such texts, and prints them escaped."""
    serve({"/api/v1/nodes/n1": sent(json.dumps(annotated()).encode())})
    assert kubectl(["map", "--node", "n1"]) == 0

    assert_harmless(capsys.readouterr().out)


def test_failure_is_one_harmless_line(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    """An error that contains names is printed escaped."""
    names = {"items": [{"metadata": {"name": f"{NASTY}{FORGED}{at}"}} for at in range(2)]}
    path = "/api/v1/nodes?labelSelector=cmk.intel.com/cmk-node=true&limit=6"
    serve({path: names})
    assert kubectl(["map"]) == 2

    error = capsys.readouterr().err
    assert_harmless(error)
    assert error.count("\n") == 1


def manifest(folder: Path) -> Path:
    """Write a pod with such a text in an annotation, in a name, and in a script of several lines."""
    notes = {"note": NASTY, "script": f"one\n{NASTY}\u202e\ntwo"}
    content = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"web{NASTY}", "namespace": "default", "annotations": notes},
        "spec": {"containers": [{"name": "main", "image": "x"}]},
    }
    file = folder / "pod.json"
    file.write_text(json.dumps(content))
    return file


def test_injected_document_is_harmless_and_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`inject` prints escaped YAML with the content of the file."""
    file = manifest(tmp_path)
    assert main(["inject", "-f", str(file)]) == 0

    out = capsys.readouterr().out
    assert_harmless(out)
    assert yaml.safe_load(out)["metadata"] == json.loads(file.read_text())["metadata"]


@pytest.mark.parametrize("output", ["text", "json"])
def test_verdict_is_harmless(tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str) -> None:
    """`validate` prints a pod's name escaped."""
    assert main(["validate", "-f", str(manifest(tmp_path)), "-o", output]) in {0, 1}

    assert_harmless(capsys.readouterr().out)


def test_any_text_survives_yaml_that_was_made_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    """Text is escaped as in YAML, in keys, in values and in multi-line strings."""
    content = {"k\u202eey": "v\u3164", "lines": "a\n\u2066b\n", "ü": "ü\U000e0041", "tab\t": "\x9b"}
    write_out(write_yaml([content]))

    assert yaml.safe_load(capsys.readouterr().out) == content
