"""The node's configuration file, which `corepin agent` and `corepin plan` read in the same way."""

from __future__ import annotations

from pathlib import Path

import pytest

from corepin.cli import main
from corepin.errors import CommandFailed
from corepin.node_file import read_node_file
from pinning.machine.cpuset import CPUSet
from pinning.planning.node_config import DEFAULT

POD = '{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": []}}'


def test_file_is_read(tmp_path: Path) -> None:
    """The node's file is YAML; an empty file means all defaults."""
    path = tmp_path / "config.yaml"
    path.write_text('reserved: "0,4"\nquota: unset\n')
    assert read_node_file(str(path)).reserved == CPUSet.parse("0,4")
    for empty in ("", "---\n", "# nothing\n", "{}"):
        path.write_text(empty)
        assert read_node_file(str(path)) == DEFAULT


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("reserve: 0", "did you mean reserved", id="unknown key"),
        pytest.param('reserved: "0"\nquota: keep\nreserved: "1"\n', ":3: .*reserved", id="key given twice"),
        pytest.param("quota: keep\n---\nquota: unset\n", ":3: .*one document", id="two documents"),
        pytest.param("a: [", ":1: ", id="no YAML"),
        pytest.param("[" * 100_000, ":1: ", id="deep"),
        pytest.param("- 1", "not a mapping", id="no mapping"),
    ],
)
def test_an_invalid_file_is_refused(
    tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An invalid file is refused with file, place and error, alike by agent and plan."""
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(CommandFailed, match=f"config.yaml.*{message}") as failure:
        read_node_file(str(path))

    pod = tmp_path / "pod.json"
    pod.write_text(POD)
    config = ("--config", str(path))
    assert main(["agent", "--node", "n1", *config]) == 2
    assert main(["plan", "-f", str(pod), "--topology", "/", *config]) == 2
    for line in capsys.readouterr().err.splitlines():
        assert line.partition(": ")[2] == str(failure.value)
