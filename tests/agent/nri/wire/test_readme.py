"""The protocol's README: its example works, and its numbers are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agent.nri.wire import Client, Event, Limits, client
from tests.agent.nri.fake_runtime import FakeRuntime, Refused, container, pod
from tests.docs.blocks import blocks

FOLDER = Path("agent/nri/wire")
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")


def test_example_plugin_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example adjusts, rejects and prints as the page says, on another socket."""
    monkeypatch.chdir(tmp_path)
    (source,) = blocks(PAGE, "python")
    names: dict[str, object] = {}
    with FakeRuntime(Path("nri.sock")) as runtime:
        exec(source.replace("/var/run/nri/nri.sock", "nri.sock"), names)  # noqa: S102 our own page
        plugin = runtime.plugin()
        marked = pod("a", annotations={"example.org/two-cpus": "true"})
        adjusted = plugin.create(marked, container("c", "a")).adjust
        others = plugin.create(pod("b"), container("c", "b"))
        with pytest.raises(Refused, match="a container without a pod"):
            plugin.create(pod(""), container("c", ""))
        plugin.event(Event.START_CONTAINER, marked, container("c", "a"))
        running = names["client"]
        assert isinstance(running, Client)
        running.stop()

    assert plugin.name == "50-two-cpus"
    assert adjusted.linux.resources.cpu.cpus == "0-1"
    assert [(variable.key, variable.value) for variable in adjusted.env] == [("MY_CPUS", "0-1")]
    assert not others.HasField("adjust")
    said = capsys.readouterr().out
    assert "containerd waits 2000 ms for an answer" in said
    assert "event 6: a c" in said


def test_deadlines_on_the_page_are_those_of_the_code() -> None:
    """The page has the deadline of each step and the delays between retries, as in the code."""
    found = re.search(
        r"registration\s+(\d+) s, .* (\d+) s, .* (\d+) s, .* (\d+) s, .* (\d+) s", PAGE.replace("\n", " ")
    )

    assert found is not None
    assert tuple(map(float, found.groups())) == Limits()
    assert (client.FIRST_WAIT, client.LONGEST_WAIT) == (0.1, 2.0)


def test_every_module_is_listed_on_the_page() -> None:
    """The table lists the files of the folder, except the shared ones."""
    found = set(re.findall(r"`([\w.]+\.(?:py|proto))`", PAGE))

    assert found == {path.name for path in FOLDER.glob("*.p[yr]*") if not path.match("*_pb2.py*")} - {
        "__init__.py",
        "buffer.py",
    }
