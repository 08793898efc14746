"""NRI features of each runtime by version, equal in code and operator guide."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agent.nri.versions import SUPPORT, has_validators, names_process, parsed
from agent.nri.wire import Client, Event, Limits, client
from agent.nri.wire.handlers import WORKER_EVENTS, may_be_unknown
from tests.agent.nri.fake_runtime import FakeRuntime, Refused, container, pod
from tests.docs.blocks import blocks

GUIDE = Path(__file__).parents[3] / "docs/operator-guide.md"


def rows(text: str) -> list[tuple[str, str, str]]:
    """Return runtime, guard and helpers of each row of the table of versions."""
    table = text.partition("| runtime | NRI of its release |")[2].partition("\n\n")[0]
    lines = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return [(line[0], line[3], line[4]) for line in lines]


def versions(cell: str) -> list[str]:
    """Return runtime and version for each version in a cell such as "CRI-O 1.34, 1.35"."""
    title = cell.split()[0]
    return [f"{title.lower()} {found}.0" for found in re.findall(r"\d+\.\d+", cell)]


@pytest.mark.parametrize(
    ("runtime", "validators", "pid"),
    [
        ("containerd 1.6.20", False, True),
        ("containerd v2.1.9", False, True),
        ("containerd v2.2.0", True, True),
        ("cri-o 1.33.5", False, False),
        ("cri-o 1.34.0", True, False),
        ("cri-o 1.36.0-dev", True, True),
        ("CRI-O v2.0", True, True),
        ("containerd unknown", None, True),
        ("cri-o unknown", None, False),
        ("docker 28.0", None, True),
        ("", None, True),
    ],
)
def test_support_by_version(runtime: str, validators: bool | None, pid: bool) -> None:
    """Validators and named processes are supported from a known version on; for an unknown version support is unknown."""
    assert (has_validators(runtime), names_process(runtime)) == (validators, pid)


def test_numbers_of_any_length_are_parsed() -> None:
    """A version with ten thousand digits counts as unknown and is not an error."""
    assert parsed(f"cri-o 1.{'9' * 10_000}") == ("cri-o", ())


def test_client_tries_the_validators_where_they_are_certain() -> None:
    """A closed connection counts as a refused event mask, unless this release of containerd has validators."""
    major, minor = SUPPORT["containerd"].validators
    assert not may_be_unknown(WORKER_EVENTS, f"containerd v{major}.{minor}.0")
    assert may_be_unknown(WORKER_EVENTS, f"containerd v{major}.{minor - 1}.9")


def test_table_of_the_operator_guide() -> None:
    """Every row of the guide's table agrees with the code, and each version with a new feature has a row."""
    found = rows(GUIDE.read_text())
    seen = {version: (guard, helpers) for cell, guard, helpers in found for version in versions(cell)}
    for version, (guard, helpers) in seen.items():
        assert guard.startswith("yes") is bool(has_validators(version)), version
        assert ("from their start" in helpers) is (names_process(version) and "no NRI" not in helpers), (
            version
        )
    first = {
        f"{it.title.lower()} {'.'.join(map(str, each))}.0"
        for it in SUPPORT.values()
        for each in (it.nri, it.nri_default, it.validators, it.pid)
        if each
    }
    assert first <= seen.keys()


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
