"""`corepin plan --devices`: a file says which devices pods get."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from corepin.cli import main
from tests.corepin.documents import written
from tests.corepin.plans import GPU_POD, machine, pod


def test_a_file_says_which_devices_a_pod_gets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pod gets the devices that the file names; impossible devices are a warning, and unknown pods are noted."""
    given = tmp_path / "given.yaml"
    given.write_text(
        "{default/a: {main: {nvidia.com/gpu: [1]}}, default/b: {main: {nvidia.com/gpu: [-1]}},"
        " default/c: {main: {nvidia.com/gpu: [0+1]}}, default/d: {main: {nvidia.com/gpu: [0, 0]}}, x/y: {}}"
    )
    pods = [GPU_POD.format(name=name, gpus=1) for name in "abcd"]
    words = ["plan", "-f", written(tmp_path, *pods), "--topology", machine(tmp_path)]
    words += ["--device", "nvidia.com/gpu=0,0,0,1", "--devices", str(given)]

    assert main([*words, "-o", "json"]) == 0
    *_, last = map(json.loads, capsys.readouterr().out.splitlines())
    found = last["assignments"]["default/a/main"]
    assert (found["numaNodes"], found["devices"][0]["nodes"]) == ([1], [1])

    assert main(words) == 0
    shown = capsys.readouterr()
    assert "--devices names pods that no document defines: x/y" in shown.err
    assert "--devices gives container main 2 nvidia.com/gpu, and it asks for 1" in " ".join(shown.out.split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "has 0 documents instead of one", id="empty"),
        pytest.param("- a", "\"['a']\" is not a mapping of names: write for example", id="a list"),
        pytest.param("a/b: {c: {d/e: 1}}", "a/b: c: d/e: '1' is not a list", id="a number"),
        pytest.param("a/b: {c: {d/e: [x]}}", "a/b: c: d/e: 'x' is not a NUMA node", id="a word"),
        pytest.param("a/b: {c: }", "a/b: c: 'None' is not a mapping of names", id="nothing"),
    ],
)
def test_a_wrong_file_of_devices_is_refused(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong file of devices is refused with file, place and error."""
    given = tmp_path / "given.yaml"
    given.write_text(text)
    words = ["plan", "-f", written(tmp_path, pod("name: a")), "--topology", machine(tmp_path)]
    assert main([*words, "--devices", str(given)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        pytest.param("0+1", "a nvidia.com/gpu on NUMA node 0-1, and none is free", id="another place"),
        pytest.param("-1", "a nvidia.com/gpu without a NUMA node, and none is free", id="no place"),
    ],
)
def test_a_device_that_the_machine_lacks_is_a_warning(
    nodes: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pod with a device that the machine lacks is planned without devices."""
    given = tmp_path / "given.yaml"
    given.write_text(f"default/a: {{main: {{nvidia.com/gpu: [{nodes}]}}}}")
    words = [
        "plan",
        "-f",
        written(tmp_path, GPU_POD.format(name="a", gpus=1)),
        "--topology",
        machine(tmp_path),
    ]
    assert main([*words, "--device", "nvidia.com/gpu=0,1", "--devices", str(given)]) == 0
    assert text in " ".join(capsys.readouterr().out.split())
