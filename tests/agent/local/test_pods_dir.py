"""A folder of manifests as the source of pods: edited, half written, removed, doubled."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from agent.local.finished_pods import FILE, read_finished
from agent.local.manifest import uid_for
from agent.local.manifest_files import SETTLE_SECONDS
from agent.local.pods_dir import PodsDir

SECONDS = 60.0


def manifest(name: str, policy: str = "exclusive") -> str:
    """Return the text of a pod."""
    return (
        "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: app}]}\n"
        f"metadata: {{name: {name}, annotations: {{policy: {policy}}}}}\n"
    )


def write(path: Path, text: str, age_seconds: float = 60.0) -> None:
    """Write a file as if it was written some time ago."""
    path.write_text(text)
    then = path.stat().st_mtime - age_seconds
    os.utime(path, (then, then))


def names(source: PodsDir) -> list[str]:
    """Return the names of the pods that the source shows."""
    return sorted(str((pod["metadata"] or {})["name"]) for pod in source.pods().values())


def policy(source: PodsDir, name: str) -> str:
    """Return the annotation of a pod."""
    pod = source.pods()[uid_for(f"default/{name}")]
    return ((pod["metadata"] or {})["annotations"] or {})["policy"]


@pytest.fixture
def source(tmp_path: Path) -> PodsDir:
    """Return the source of a folder with two pods, looked at once."""
    write(tmp_path / "a.yaml", manifest("a"))
    write(tmp_path / "b.json", manifest("b"))
    source = PodsDir(tmp_path)
    assert source.look()
    return source


def test_every_manifest_is_a_pod(source: PodsDir) -> None:
    """All pods are shown at once, and only then the source is complete."""
    assert names(source) == ["a", "b"]
    assert source.complete
    assert not source.look(), "nothing changed"


def test_what_did_not_change_is_the_same_object(source: PodsDir, tmp_path: Path) -> None:
    """The agent reads a pod again only when it is another object."""
    before = dict(source.pods())
    write(tmp_path / "a.yaml", manifest("a", "share"), 30)

    assert source.look()
    same = [uid for uid, pod in source.pods().items() if pod is before[uid]]
    assert same == [uid_for("default/b")]
    assert policy(source, "a") == "share"


def test_edit_makes_nobody_younger(source: PodsDir, tmp_path: Path) -> None:
    """The time of creation is that of the first sight."""
    uid = uid_for("default/a")
    before = (source.pods()[uid]["metadata"] or {})["creationTimestamp"]
    write(tmp_path / "a.yaml", manifest("a", "share"), 10)
    source.look()

    assert (source.pods()[uid]["metadata"] or {})["creationTimestamp"] == before


def test_half_written_file_changes_nothing(
    source: PodsDir, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A broken file keeps its pod as it was, is told once, and counts again when it is mended."""
    write(tmp_path / "a.yaml", manifest("a", "share")[:-15], 30)

    assert not source.look()
    assert not source.look()
    assert policy(source, "a") == "exclusive"
    assert "is no YAML" in source.problems["a.yaml"]
    assert [record.message for record in caplog.records] == ["manifest not used"]

    write(tmp_path / "a.yaml", manifest("a", "share"), 20)
    assert source.look()
    assert policy(source, "a") == "share"
    assert source.problems == {}


def test_file_that_is_being_written_is_left_alone(source: PodsDir, tmp_path: Path) -> None:
    """A file changed just now is read when its writer closed it, or when it has been quiet for a while."""
    now = (tmp_path / "a.yaml").stat().st_mtime
    clock = [now + 60]
    source = PodsDir(tmp_path, now=lambda: clock[0])
    source.look()
    write(tmp_path / "a.yaml", manifest("a", "share"), 0)
    clock[0] = (tmp_path / "a.yaml").stat().st_mtime + SETTLE_SECONDS / 2

    assert not source.look()
    assert source.look(closed={"a.yaml"})

    write(tmp_path / "a.yaml", manifest("a", "none"), 0)
    clock[0] += 60
    assert source.look()
    assert policy(source, "a") == "none"


def test_removed_file_is_a_pod_gone(source: PodsDir, tmp_path: Path) -> None:
    """A pod goes with its file."""
    (tmp_path / "a.yaml").unlink()

    assert source.look()
    assert names(source) == ["b"]


@pytest.mark.parametrize("name", [".a.yaml.swp", ".#c.yaml", "c.yaml~", "#c.yaml#", "c.txt", ".c.yaml"])
def test_files_of_editors_are_no_manifests(source: PodsDir, tmp_path: Path, name: str) -> None:
    """What editors put beside is not read."""
    write(tmp_path / name, manifest("c"))

    assert not source.look()
    assert source.problems == {}


def test_of_two_files_with_one_pod_the_first_counts(source: PodsDir, tmp_path: Path) -> None:
    """The second by name is told, and takes its place when the first goes."""
    write(tmp_path / "z.yaml", manifest("a", "share"))

    assert not source.look()
    assert source.problems == {"z.yaml": "pod default/a is in a.yaml already, which counts: remove one"}
    (tmp_path / "a.yaml").unlink()
    assert source.look()
    assert policy(source, "a") == "share"
    assert source.problems == {}


def test_finished_pod_shows_its_phase(source: PodsDir, tmp_path: Path) -> None:
    """A phase stays over an edit, and goes with the manifest."""
    source.finish(uid_for("default/a"), "Succeeded")
    write(tmp_path / "a.yaml", manifest("a", "share"), 30)
    source.look()
    shown = source.pods()[uid_for("default/a")]

    assert shown["status"] == {"phase": "Succeeded"}
    assert not source.look()
    assert source.pods()[uid_for("default/a")] is shown
    (tmp_path / "a.yaml").unlink()
    source.look()
    write(tmp_path / "a.yaml", manifest("a"))
    source.look()
    assert "status" not in source.pods()[uid_for("default/a")]


def test_folder_that_is_away_takes_nobody_away(source: PodsDir, tmp_path: Path) -> None:
    """Without the folder the pods stay, and the source says that it does not know."""
    tmp_path.rename(tmp_path.with_name("away"))

    assert source.look()
    assert not source.complete
    assert names(source) == ["a", "b"]
    assert "make the folder" in source.problems[""]


def test_changes_are_told_at_once(tmp_path: Path) -> None:
    """Writing, replacing and removing a file is told by the kernel; a rename over the file is one change."""
    first, beside = tmp_path / "a.yaml", tmp_path / ".a.yaml.new"
    beside.write_text(manifest("a", "none"))
    edits: list[tuple[Callable[[], object], list[str]]] = [
        (lambda: first.write_text(manifest("a")), ["a exclusive"]),
        (lambda: first.write_text(manifest("a", "share")), ["a share"]),
        (lambda: beside.rename(first), ["a none"]),
        (first.unlink, []),
    ]

    async def edit() -> None:
        source, changed = PodsDir(tmp_path), asyncio.Event()
        watching = asyncio.create_task(source.watch(changed.set))
        await asyncio.wait_for(changed.wait(), SECONDS)
        for act, shown in edits:
            changed.clear()
            act()
            await asyncio.wait_for(changed.wait(), SECONDS)
            assert [f"{name} {policy(source, name)}" for name in names(source)] == shown
        watching.cancel()
        await asyncio.wait([watching])

    asyncio.run(edit())


def test_one_change_makes_one_look(tmp_path: Path) -> None:
    """The folder is not read a second time for the event that made it be read."""
    looks: list[object] = []

    class Counting(PodsDir):
        def look(self, closed: Collection[str] = ()) -> bool:
            looks.append(closed)
            return super().look(closed)

    async def edit() -> None:
        source, changed = Counting(tmp_path), asyncio.Event()
        watching = asyncio.create_task(source.watch(changed.set))
        await asyncio.wait_for(changed.wait(), SECONDS)
        looks.clear()
        changed.clear()
        write(tmp_path / "a.yaml", manifest("a"))
        await asyncio.wait_for(changed.wait(), SECONDS)
        for _ in range(10):
            await asyncio.sleep(0)
        watching.cancel()
        await asyncio.wait([watching])

    asyncio.run(edit())
    assert looks == [frozenset({"a.yaml"})]


def test_pod_is_found_by_its_name(source: PodsDir) -> None:
    """As the files have it, or not at all."""
    found = asyncio.run(source.look_up("default", "a"))

    assert found is source.pods()[uid_for("default/a")]
    assert asyncio.run(source.look_up("other", "a")) is None


def test_finished_pods_stay_so(source: PodsDir, tmp_path: Path) -> None:
    """A source that is made anew shows the phase again, until it saw the folder without the pod."""
    memory = tmp_path / "state" / FILE
    memory.parent.mkdir()
    uid = uid_for("default/a")

    def again() -> PodsDir:
        source = PodsDir(tmp_path, memory)
        source.look()
        return source

    again().finish(uid, "Succeeded")
    assert again().pods()[uid].get("status") == {"phase": "Succeeded"}
    (tmp_path / "a.yaml").rename(tmp_path / "a.away")
    again()
    (tmp_path / "a.away").rename(tmp_path / "a.yaml")
    assert not again().pods()[uid].get("status")


@pytest.mark.parametrize("text", ["", "[", "[]", "1", '{"a": "Running", "b": []}', '"' + "[" * 100_000])
def test_damaged_memory_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    """Nobody has to delete it; it is told, and the pods run again."""
    memory = tmp_path / FILE
    memory.write_text(text)
    assert read_finished(memory) == {}


def test_memory_that_cannot_be_written_is_told(
    source: PodsDir, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The agent goes on, and the phase is shown as long as it lives."""
    source = PodsDir(tmp_path, tmp_path / "nowhere" / FILE)
    source.look()
    source.finish(uid_for("default/a"), "Failed")
    assert source.pods()[uid_for("default/a")].get("status") == {"phase": "Failed"}
    assert caplog.messages == ["finished pods are not remembered"]


def test_links_to_no_file_are_no_manifests(tmp_path: Path) -> None:
    """A link to itself or to nothing keeps nobody from seeing the other pods."""
    write(tmp_path / "a.yaml", manifest("a"))
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "nothing.yaml").symlink_to("nowhere")
    source = PodsDir(tmp_path)
    source.look()
    assert (names(source), source.complete, source.problems) == (["a"], True, {})
