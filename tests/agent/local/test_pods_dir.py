"""A folder of manifests as the source of pods, with edits, partial writes and duplicates."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from agent.local.finished_pods import FILE, read_finished
from agent.local.manifest import SIZE_LIMIT, BadManifest, name_of, read_manifest, uid_for
from agent.local.manifest_files import SETTLE_SECONDS
from agent.local.pods_dir import PodsDir
from agent.local.spec import PATH, SLEEP, Ended, PodRun, due, final_phase, read_run
from tests.environments.waiting import background
from tests.pods import container, pod

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


CREATED = "2026-01-01T00:00:00Z"
POD = b"""
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: app, resources: {limits: {cpu: 2}}}]
"""


def test_pod_is_completed() -> None:
    """Namespace, uid and creation time are filled in."""
    (pod,) = read_manifest(POD, CREATED)

    assert pod["metadata"] == {
        "name": "web",
        "namespace": "default",
        "creationTimestamp": CREATED,
        "uid": uid_for("default/web"),
    }
    assert pod["spec"] == {"containers": [{"name": "app", "resources": {"limits": {"cpu": 2}}}]}
    assert name_of(pod) == "default/web"


def test_uid_depends_on_the_name_only() -> None:
    """A pod has the same uid on every machine and after every edit."""
    (edited,) = read_manifest(POD.replace(b"cpu: 2", b"cpu: 3"), "2027-01-01T00:00:00Z")

    assert (
        (edited["metadata"] or {})["uid"] == uid_for("default/web") == "9000b529-421e-5885-a39e-c2afc0e53c58"
    )


def test_fields_of_the_manifest_are_kept() -> None:
    """A uid, a namespace and an unquoted time in the manifest are kept."""
    stated = b"metadata: {name: web, namespace: team, uid: abc-1, creationTimestamp: 2020-02-03T04:05:06Z}"
    (pod,) = read_manifest(POD.replace(b"metadata: {name: web}", stated), CREATED)

    assert pod["metadata"] == {
        "name": "web",
        "namespace": "team",
        "uid": "abc-1",
        "creationTimestamp": "2020-02-03T04:05:06Z",
    }


def test_json_and_several_documents() -> None:
    """JSON is read, and a file may have several pods."""
    content = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a"},
        "spec": {"containers": [{"name": "c"}]},
    }

    assert [name_of(pod) for pod in read_manifest(json.dumps(content).encode(), CREATED)] == ["default/a"]
    assert [
        name_of(pod)
        for pod in read_manifest(POD + b"\n---\n" + POD.replace(b"web", b"db") + b"---\n", CREATED)
    ] == [
        "default/web",
        "default/db",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "no document", id="empty"),
        pytest.param(b"{", "is not YAML", id="half written"),
        pytest.param(b"\xff", "is not YAML", id="no text"),
        pytest.param(b"kind: Deployment", "is not a pod", id="another kind"),
        pytest.param(b"- 1", "is not a pod", id="a list"),
        pytest.param(POD.replace(b"{name: web}", b"[]"), "is not a valid pod", id="wrong shape"),
        pytest.param(POD.replace(b"name: web", b"name: ../web"), "metadata.name is '../web'", id="a path"),
        pytest.param(POD.replace(b"name: web", b"generateName: web-"), "metadata.name is None", id="no name"),
        pytest.param(POD.replace(b"name: web", b"name: web, uid: a/b"), "metadata.uid", id="uid with a path"),
        pytest.param(
            POD.replace(b"name: web", b"name: web, namespace: A"), "metadata.namespace", id="namespace"
        ),
        pytest.param(POD.replace(b"name: app", b"name: .."), "name of a container", id="container's name"),
        pytest.param(POD.replace(b"[{name", b"[{name: app}, {name"), "two containers", id="two of one name"),
        pytest.param(b"apiVersion: v1\nkind: Pod\nmetadata: {name: a}", "no container", id="no container"),
        pytest.param(b" " * (SIZE_LIMIT + 1), "larger than 3 MB", id="too large"),
        pytest.param(b"[" * 1_000_000, "nested more than 200 deep", id="lists too deep"),
        pytest.param(b"{a: " * 300_000, "nested more than 200 deep", id="mappings too deep"),
    ],
)
def test_invalid_manifests_are_refused(content: bytes, message: str) -> None:
    """Each error has its own message, and names that could be paths are refused."""
    with pytest.raises(BadManifest, match=message.replace("[", r"\[").replace("..", r"\.\.")):
        read_manifest(content, CREATED)


OK, BAD, UNKNOWN = Ended(0), Ended(1), Ended(None)


def run_of(policy: str | None = None, **containers: Any) -> PodRun:
    """Return a pod with init containers i and j, a sidecar s between them, and main containers a and b."""
    first = [container("i"), container("s", restartPolicy="Always"), container("j")]
    return read_run(pod(container("a"), container("b"), init=first, restartPolicy=policy, **containers))


@pytest.mark.parametrize(
    ("live", "ended", "starts"),
    [
        pytest.param("", {}, "i", id="first init container"),
        pytest.param("i", {}, "", id="while it runs"),
        pytest.param("", {"i": BAD}, "i", id="it failed"),
        pytest.param("", {"i": UNKNOWN}, "i", id="nobody knows how it ended"),
        pytest.param("", {"i": OK}, "s", id="then the sidecar"),
        pytest.param("s", {"i": OK}, "j", id="which need not end"),
        pytest.param("sj", {"i": OK}, "", id="second init container"),
        pytest.param("s", {"i": OK, "j": OK}, "ab", id="then all others"),
        pytest.param("sa", {"i": OK, "j": OK, "b": BAD}, "b", id="one ended"),
        pytest.param("ab", {"i": OK, "j": OK, "s": OK}, "s", id="the sidecar ended"),
    ],
)
def test_containers_start_in_order(live: str, ended: dict[str, Ended], starts: str) -> None:
    """Init containers run in order, sidecars run beside them, and all restart by default."""
    assert "".join(spec.name for spec in due(run_of(), frozenset(live), ended)) == starts


@pytest.mark.parametrize(
    ("policy", "ended", "starts", "phase"),
    [
        pytest.param("Always", {"a": OK, "b": OK}, "ab", None, id="always"),
        pytest.param("OnFailure", {"a": OK, "b": BAD}, "b", None, id="on failure, one failed"),
        pytest.param("OnFailure", {"a": OK, "b": OK}, "", "Succeeded", id="on failure, none failed"),
        pytest.param("Never", {"a": OK, "b": BAD}, "", "Failed", id="never, one failed"),
        pytest.param("Never", {"a": OK, "b": OK}, "", "Succeeded", id="never, none failed"),
        pytest.param("Never", {"a": OK}, "b", None, id="never, one has not begun"),
    ],
)
def test_pod_phase_follows_restart_policy_and_exit_codes(
    policy: str, ended: dict[str, Ended], starts: str, phase: str | None
) -> None:
    """The restart policy decides which containers restart, and the exit codes the phase."""
    all_ended = {"i": OK, "j": OK, **ended}

    assert "".join(spec.name for spec in due(run_of(policy), frozenset("s"), all_ended)) == starts
    assert final_phase(run_of(policy), frozenset("s"), all_ended) == phase


def test_failed_init_container_of_a_pod_that_never_restarts() -> None:
    """With `Never` a failed init container fails the pod, and no container starts."""
    assert final_phase(run_of("Never"), frozenset(), {"i": BAD}) == "Failed"
    assert list(due(run_of("Never"), frozenset(), {"i": BAD})) == []
    assert final_phase(run_of("OnFailure"), frozenset(), {"i": BAD}) is None


def test_command_and_environment() -> None:
    """Arguments follow the command, variables are expanded, and a container without a command sleeps."""
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)2"}, {"name": "C", "valueFrom": {}}]
    run = read_run(
        pod(container("a", command=["run", "$(B)"], args=["$(NOT)"], env=env), container("b", args=["x"]))
    )

    assert run.containers[0].command == ("run", "12", "$(NOT)")
    assert run.containers[0].environment == {"PATH": PATH, "A": "1", "B": "12", "C": ""}
    assert run.containers[1].command == SLEEP


def test_grace_period() -> None:
    """The grace period is 30 seconds unless the manifest says otherwise, zero included."""
    assert read_run(pod()).grace_seconds == 30
    assert read_run(pod(terminationGracePeriodSeconds=0)).grace_seconds == 0


def test_invalid_command_is_refused() -> None:
    """A command that is not a list is refused with its field."""
    with pytest.raises(BadManifest, match=r"pod default/demo cannot be started: .*command"):
        read_run(pod(container("a", command="sleep 1")))
