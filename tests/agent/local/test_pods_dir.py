"""A folder of manifests as the source of pods, with edits, partial writes and duplicates."""

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
from tests.environments.waiting import background

SECONDS = 60.0


def manifest(name: str, policy: str = "exclusive") -> str:
    """Return the manifest of a pod."""
    return (
        "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: app}]}\n"
        f"metadata: {{name: {name}, annotations: {{policy: {policy}}}}}\n"
    )


def write(path: Path, text: str, age_seconds: float = 60.0) -> None:
    """Write a file with a modification time in the past."""
    path.write_text(text)
    then = path.stat().st_mtime - age_seconds
    os.utime(path, (then, then))


def names(source: PodsDir) -> list[str]:
    """Return the names of the source's pods."""
    return sorted(str((pod["metadata"] or {})["name"]) for pod in source.pods().values())


def policy(source: PodsDir, name: str) -> str:
    """Return the annotation of a pod."""
    pod = source.pods()[uid_for(f"default/{name}")]
    return ((pod["metadata"] or {})["annotations"] or {})["policy"]


@pytest.fixture
def source(tmp_path: Path) -> PodsDir:
    """Return the source of a folder with two pods, after its first look."""
    write(tmp_path / "a.yaml", manifest("a"))
    write(tmp_path / "b.json", manifest("b"))
    source = PodsDir(tmp_path)
    assert source.look()
    return source


def test_every_manifest_is_a_pod(source: PodsDir) -> None:
    """All pods are shown together, and then the source is complete."""
    assert names(source) == ["a", "b"]
    assert source.complete
    assert not source.look(), "nothing changed"


def test_unchanged_pod_is_the_same_object(source: PodsDir, tmp_path: Path) -> None:
    """An unchanged pod keeps its object, so that the agent does not read it again."""
    before = dict(source.pods())
    write(tmp_path / "a.yaml", manifest("a", "share"), 30)

    assert source.look()
    same = [uid for uid, pod in source.pods().items() if pod is before[uid]]
    assert same == [uid_for("default/b")]
    assert policy(source, "a") == "share"


def test_edit_keeps_the_creation_time(source: PodsDir, tmp_path: Path) -> None:
    """The creation time is the time of the first listing."""
    uid = uid_for("default/a")
    before = (source.pods()[uid]["metadata"] or {})["creationTimestamp"]
    write(tmp_path / "a.yaml", manifest("a", "share"), 10)
    source.look()

    assert (source.pods()[uid]["metadata"] or {})["creationTimestamp"] == before


def test_invalid_file_keeps_its_pod(
    source: PodsDir, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A broken file keeps its earlier pod, is logged once, and is read again when repaired."""
    write(tmp_path / "a.yaml", manifest("a", "share")[:-15], 30)

    assert not source.look()
    assert not source.look()
    assert policy(source, "a") == "exclusive"
    assert "is not YAML" in source.problems["a.yaml"]
    assert [record.message for record in caplog.records] == ["manifest not used"]

    write(tmp_path / "a.yaml", manifest("a", "share"), 20)
    assert source.look()
    assert policy(source, "a") == "share"
    assert source.problems == {}


def test_file_is_read_after_its_writer_is_done(source: PodsDir, tmp_path: Path) -> None:
    """A file that was just changed is read when it is closed, or unchanged for a while."""
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


def test_removed_file_removes_the_pod(source: PodsDir, tmp_path: Path) -> None:
    """A pod is removed with its file."""
    (tmp_path / "a.yaml").unlink()

    assert source.look()
    assert names(source) == ["b"]


@pytest.mark.parametrize("name", [".a.yaml.swp", ".#c.yaml", "c.yaml~", "#c.yaml#", "c.txt", ".c.yaml"])
def test_editor_files_are_ignored(source: PodsDir, tmp_path: Path, name: str) -> None:
    """Backup and swap files of editors are not read."""
    write(tmp_path / name, manifest("c"))

    assert not source.look()
    assert source.problems == {}


def test_first_of_two_files_with_the_same_pod_counts(source: PodsDir, tmp_path: Path) -> None:
    """The second file by name is reported, and counts once the first is removed."""
    write(tmp_path / "z.yaml", manifest("a", "share"))

    assert not source.look()
    assert source.problems == {
        "z.yaml": "pod default/a is in a.yaml already, and that one is used: remove one"
    }
    (tmp_path / "a.yaml").unlink()
    assert source.look()
    assert policy(source, "a") == "share"
    assert source.problems == {}


def test_finished_pod_shows_its_phase(source: PodsDir, tmp_path: Path) -> None:
    """The phase is kept over an edit, and dropped with the manifest."""
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


def test_missing_folder_keeps_the_pods(source: PodsDir, tmp_path: Path) -> None:
    """Without the folder the pods stay, and the source is not complete."""
    tmp_path.rename(tmp_path.with_name("away"))

    assert source.look()
    assert not source.complete
    assert names(source) == ["a", "b"]
    assert "make the folder" in source.problems[""]


async def test_changes_are_reported_at_once(tmp_path: Path) -> None:
    """Writing, replacing and removing a file are reported by inotify, a rename as one change."""
    first, beside = tmp_path / "a.yaml", tmp_path / ".a.yaml.new"
    beside.write_text(manifest("a", "none"))
    edits: list[tuple[Callable[[], object], list[str]]] = [
        (lambda: first.write_text(manifest("a")), ["a exclusive"]),
        (lambda: first.write_text(manifest("a", "share")), ["a share"]),
        (lambda: beside.rename(first), ["a none"]),
        (first.unlink, []),
    ]
    source, changed = PodsDir(tmp_path), asyncio.Event()
    async with background(source.watch(changed.set)):
        await asyncio.wait_for(changed.wait(), SECONDS)
        for act, shown in edits:
            changed.clear()
            act()
            await asyncio.wait_for(changed.wait(), SECONDS)
            assert [f"{name} {policy(source, name)}" for name in names(source)] == shown


async def test_one_change_causes_one_read(tmp_path: Path) -> None:
    """The folder is not read again for the event that caused the read."""
    looks: list[object] = []

    class Counting(PodsDir):
        def look(self, closed: Collection[str] = ()) -> bool:
            looks.append(closed)
            return super().look(closed)

    source, changed = Counting(tmp_path), asyncio.Event()
    async with background(source.watch(changed.set)):
        await asyncio.wait_for(changed.wait(), SECONDS)
        looks.clear()
        changed.clear()
        write(tmp_path / "a.yaml", manifest("a"))
        await asyncio.wait_for(changed.wait(), SECONDS)
        for _ in range(10):
            await asyncio.sleep(0)
    assert looks == [frozenset({"a.yaml"})]


def test_pod_is_found_by_its_name(source: PodsDir) -> None:
    """A pod is found by namespace and name, or None is returned."""
    found = asyncio.run(source.look_up("default", "a"))

    assert found is source.pods()[uid_for("default/a")]
    assert asyncio.run(source.look_up("other", "a")) is None


def test_finished_pods_stay_finished(source: PodsDir, tmp_path: Path) -> None:
    """A new source has the phase again, until the folder was read without the pod."""
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
def test_damaged_file_of_finished_pods_is_ignored(tmp_path: Path, text: str) -> None:
    """A damaged file counts as empty, so that its pods run again."""
    memory = tmp_path / FILE
    memory.write_text(text)
    assert read_finished(memory) == {}


def test_unwritable_file_of_finished_pods_is_logged(
    source: PodsDir, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The agent continues, and shows the phase until it ends."""
    source = PodsDir(tmp_path, tmp_path / "nowhere" / FILE)
    source.look()
    source.finish(uid_for("default/a"), "Failed")
    assert source.pods()[uid_for("default/a")].get("status") == {"phase": "Failed"}
    assert caplog.messages == ["finished pods are not remembered"]


def test_broken_links_are_ignored(tmp_path: Path) -> None:
    """A broken or circular link does not hide the other pods."""
    write(tmp_path / "a.yaml", manifest("a"))
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "nothing.yaml").symlink_to("nowhere")
    source = PodsDir(tmp_path)
    source.look()
    assert (names(source), source.complete, source.problems) == (["a"], True, {})
