"""CPU quotas of exclusive containers, and original kernel values that are saved until they are restored."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from agent.errors import AgentError, Gone, Refused
from agent.reconcile.reconciler import QUOTAS
from agent.reconcile.restorable import Restorable, RestorableValue
from pinning.planning.node_config import NodeConfig, Quota
from pinning.planning.quota import Bandwidth
from tests.agent.fakes import FakeNode
from tests.agent.reconcile.scenes import PLAIN, TWO, run_later
from tests.pinning.budgets import EXCLUSIVE, budgeted
from tests.pinning.world import Wish

LIMIT_1, LIMIT_2 = Bandwidth(100000, 100000), Bandwidth(200000, 100000)


def began(node: FakeNode, quota: Quota | None = None) -> list[str]:
    """Start pod a with only exclusive containers and pod m with a plain one too; return their cgroups."""
    if quota:
        node.restart(NodeConfig(quota=quota))
    node.add("a", TWO)
    node.add("m", TWO, PLAIN)
    cgroups = [node.cgroup(number) for number in (node.start("a"), node.start("m"), node.start("m", "c1"))]
    node.cgroups.quotas = dict.fromkeys([*cgroups, "/kubepods/a", "/kubepods/m"], LIMIT_2)
    return cgroups


@pytest.mark.parametrize("quota", [None, Quota.AUTO, Quota.UNSET])
def test_quota_is_unset_for_exclusive_containers(node: FakeNode, quota: Quota | None) -> None:
    """The quota of an exclusive container is unset, and its pod's quota if all containers of the pod are exclusive."""
    cgroups = began(node, quota)
    node.run()
    assert node.cgroups.quotas.keys() == {"/kubepods/m", cgroups[2]}

    node.cgroups.quotas["/kubepods/a"] = Bandwidth(300000, 100000)
    run_later(node, 1.0)
    assert "/kubepods/a" not in node.cgroups.quotas


def test_quota_is_kept_on_request(node: FakeNode) -> None:
    """With `quota: keep` quotas stay, and none is saved."""
    began(node, Quota.KEEP)
    before = dict(node.cgroups.quotas)
    node.run()
    assert node.cgroups.quotas == before
    assert not (node.folder / QUOTAS).exists()


@pytest.mark.parametrize(("quota", "is_kept"), [(Quota.AUTO, True), (Quota.UNSET, False)])
def test_a_limit_below_the_owned_cpus_stays_under_auto(node: FakeNode, quota: Quota, is_kept: bool) -> None:
    """Under `auto` a CPU limit below the owned CPUs stays, for container and pod; under `unset` it is removed."""
    node.restart(NodeConfig(quota=quota))
    node.add("c", Wish(cores=1))
    cgroup = node.cgroup(node.start("c"))
    node.cgroups.quotas = dict.fromkeys((cgroup, "/kubepods/c"), Bandwidth(100000, 100000))
    node.run()
    assert bool(node.cgroups.quotas) is is_kept


@pytest.mark.parametrize("keeps_quiet", [False, True])
def test_quota_of_a_quiet_container_is_unset(node: FakeNode, keeps_quiet: bool) -> None:
    """The quota of a quiet container is unset if the node keeps CPUs quiet, and restored when the annotation is removed."""
    node.restart(NodeConfig(), keeps_quiet=keeps_quiet)
    node.add("c", Wish(cores=1, noise="quiet"))
    cgroup = node.cgroup(node.start("c"))
    before = dict.fromkeys((cgroup, "/kubepods/c"), Bandwidth(100000, 100000))
    node.cgroups.quotas = dict(before)
    node.run()
    assert node.cgroups.quotas == ({} if keeps_quiet else before)
    node.add("c", Wish(cores=1))
    node.run()
    assert node.cgroups.quotas == before


def test_unset_quota_is_restored(node: FakeNode) -> None:
    """Quota and period are restored when a container is no longer exclusive, or by `quota: keep`."""
    cgroups = began(node)
    before = dict(node.cgroups.quotas)
    node.run()
    node.add("a", PLAIN)
    node.run()
    assert {cgroups[0], "/kubepods/a"} <= node.cgroups.quotas.keys()

    node.restart(NodeConfig(quota=Quota.KEEP))
    node.run()
    assert node.cgroups.quotas == before
    assert not (node.folder / QUOTAS).exists()


def test_reset_restores_quotas(node: FakeNode) -> None:
    """Reset restores the quotas, and fails with the reason if the kernel refuses."""
    began(node)
    before = dict(node.cgroups.quotas)
    node.run()
    node.cgroups.quota_errors["/kubepods/a"] = Refused("EINVAL")
    with pytest.raises(AgentError, match="quota"):
        node.runner.run(node.agent.reset())
    node.cgroups.quota_errors.clear()
    node.runner.run(node.agent.reset())
    assert node.cgroups.quotas == before


def test_container_without_a_quota_gets_none(node: FakeNode) -> None:
    """A container without a quota gets none, and a quota file of another boot restores nothing."""
    cgroups = began(node)
    node.cgroups.quotas = {cgroups[1]: LIMIT_2}
    node.run()
    content = '{"version": 1, "bootID": "another", "originals": {"/kubepods/a": "1 1"}}'
    (node.folder / QUOTAS).write_text(content)
    node.settings = replace(node.settings, config=NodeConfig(quota=Quota.KEEP))
    node.new_agent()
    node.run()
    assert node.cgroups.quotas == {}


@pytest.mark.parametrize("damage", [slice(0, 40), slice(0, 0), None])
def test_unusable_quota_file_is_kept(node: FakeNode, damage: slice | None) -> None:
    """If the quota file is unusable, no further quota is unset and a reset fails; once it is usable, quotas are restored."""
    cgroups = began(node)
    before = dict(node.cgroups.quotas)
    node.run()
    file = node.folder / QUOTAS
    good = file.read_text()
    bad = good[damage] if damage else good.replace('"200000 100000"', '"200000"')
    file.write_text(bad)
    node.new_agent()
    node.cgroups.quotas[cgroups[0]] = before[cgroups[0]]
    run_later(node, 1.0)
    assert cgroups[0] in node.cgroups.quotas
    with pytest.raises(AgentError, match="quota"):
        node.runner.run(node.agent.reset())
    assert file.read_text() == bad
    file.write_text(good)
    node.runner.run(node.agent.reset())
    assert node.cgroups.quotas == before


def test_cgroups_that_end_are_forgotten(node: FakeNode) -> None:
    """When a cgroup is deleted, its saved quota is dropped; a refused write is retried."""
    cgroups = began(node)
    node.cgroups.quota_errors[cgroups[1]] = Refused("EBUSY")
    node.run()
    node.cgroups.quota_errors = {cgroups[0]: Gone(cgroups[0]), "/kubepods/a": Gone("/kubepods/a")}
    node.remove(cgroups[0].rpartition("/")[2])
    run_later(node, 1.0)
    assert cgroups[1] not in node.cgroups.quotas
    assert cgroups[0] not in (node.folder / QUOTAS).read_text()


def test_quota_whose_original_cannot_be_saved_stays(node: FakeNode) -> None:
    """If the original quota cannot be saved the quota stays, and the pass continues."""
    began(node)
    before = dict(node.cgroups.quotas)
    (node.folder / QUOTAS).with_suffix(".new").mkdir()
    node.run()

    assert node.cgroups.quotas == before


def test_a_pod_keeps_its_quota_or_has_it_unset_while_it_runs(node: FakeNode) -> None:
    """The pod's annotation `keep` restores quota and period while it runs, and `unset` removes them."""
    cgroups = began(node)
    low = {cgroups[0]: Bandwidth(50000, 100000), "/kubepods/a": Bandwidth(60000, 100000)}
    node.cgroups.quotas |= low
    for word, quotas in (("unset", {}), ("keep", low), ("unset", {})):
        node.add("a", replace(TWO, quota=word))
        node.run()
        assert {
            cgroup: node.cgroups.quotas[cgroup] for cgroup in low if cgroup in node.cgroups.quotas
        } == quotas


@pytest.mark.parametrize("word", [Quota.AUTO, Quota.UNSET])
def test_a_container_in_the_pool_of_its_pod_keeps_its_quota(node: FakeNode, word: Quota) -> None:
    """A slice has no quota and a container in the pool keeps its own; the pod's quota is unset once all have slices."""
    node.restart(NodeConfig(quota=word))
    node.documents["a"] = budgeted("a", 3, {"slice": 1, "pooled": None})
    owner, pooled = (node.cgroup(node.start("a", name)) for name in ("slice", "pooled"))
    node.cgroups.quotas = {owner: LIMIT_1, pooled: LIMIT_2, "/kubepods/a": Bandwidth(300000, 100000)}
    node.run()
    assert node.cgroups.quotas == {pooled: LIMIT_2, "/kubepods/a": Bandwidth(300000, 100000)}

    node.documents["a"] = budgeted(
        "a",
        3,
        {"slice": 1, "pooled": 2},
        annotations={**EXCLUSIVE, "cpu-manager.corepin.io/container.pooled": "exclusive"},
    )
    run_later(node, 1.0)
    assert not node.cgroups.quotas


@pytest.mark.parametrize(
    ("word", "wish"),
    [
        (Quota.UNSET, TWO),
        (Quota.KEEP, replace(TWO, quota="unset")),
        (Quota.KEEP, replace(TWO, noise="quiet")),
    ],
    ids=("node", "pod", "quiet"),
)
def test_quota_of_a_kata_container_is_never_unset(node: FakeNode, word: Quota, wish: Wish) -> None:
    """The quotas of a container in a virtual machine and of its pod are kept under every policy."""
    node.restart(NodeConfig(quota=word), keeps_quiet=True)
    machine = node.kata.boot("k")
    for uid in ("k", "r"):
        node.add(uid, wish)
    inside, outside = (node.cgroup(node.start(uid)) for uid in ("k", "r"))
    kept = dict.fromkeys((inside, "/kubepods/k"), LIMIT_2)
    node.cgroups.quotas = {**kept, **dict.fromkeys((outside, "/kubepods/r"), LIMIT_2)}
    node.run()
    assert len(machine.cpus()) == 2
    assert node.cgroups.quotas == kept


def test_helpers_leave_a_quota_that_its_pod_keeps(node: FakeNode) -> None:
    """The quota of a container that also uses the shared set is unset, unless its pod has `quota-policy: keep`."""
    for uid, word in (("free", None), ("kept", "keep")):
        node.add(uid, replace(TWO, shared="true", quota=word))
        node.cgroups.quotas[node.cgroup(node.start(uid))] = LIMIT_2
    node.run()
    run_later(node, 1.0)
    assert [cgroup.split("/")[2] for cgroup in node.cgroups.quotas] == ["kept"]


@pytest.mark.parametrize(("runtime", "is_kept"), [("containerd 2.4.2", False), ("cri-o 1.36.0", True)])
def test_crios_annotation_is_left_to_crio(node: FakeNode, runtime: str, is_kept: bool) -> None:
    """Under CRI-O the agent ignores CRI-O's annotation `cpu-quota`; under other runtimes it unsets the quota."""
    node.restart(NodeConfig(quota=Quota.KEEP))
    node.runtime.name = runtime
    node.add("a", TWO)
    node.documents["a"]["metadata"]["annotations"]["cpu-quota.crio.io"] = "disable"
    node.cgroups.quotas[node.cgroup(node.start("a"))] = LIMIT_2
    node.run()
    assert bool(node.cgroups.quotas) is is_kept


BOOT = "4f2c"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of the saved originals."""
    return tmp_path / "quotas.json"


def test_originals_are_saved_until_forgotten(path: Path) -> None:
    """`remember` returns after the originals are on disk; the file is deleted with the last original."""
    saved = Restorable(path, BOOT)
    saved.remember({"/a": "100000 100000", "/b": "50000 100000"})
    saved.forget(["/a", "/never"])

    assert dict(Restorable(path, BOOT).originals) == {"/b": "50000 100000"}
    saved.forget(["/b"])
    assert not path.exists()


def test_originals_of_another_boot_are_dropped(path: Path) -> None:
    """Originals of another boot are dropped, because a reboot resets kernel values."""
    Restorable(path, BOOT).remember({"/a": "1 2"})
    assert not Restorable(path, "other").originals


def later(boot: str = BOOT) -> bytes:
    """Return a file of a later version."""
    return json.dumps({"version": 2, "bootID": boot, "originals": {"/a": "1"}}).encode()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(b"", "is damaged", id="empty"),
        pytest.param(b"\xff\xfe", "is damaged", id="no text"),
        pytest.param(b"[" * 100_000, "is damaged", id="nested"),
        pytest.param(b"[]", "is damaged", id="a list"),
        pytest.param(b'{"version": 1, "bootID": "4f2c", "orig', "is damaged", id="cut"),
        pytest.param(b'{"version": 1, "bootID": "4f2c", "originals": [1]}', "is damaged", id="no object"),
        pytest.param(b'{"version": 1, "bootID": "4f2c", "originals": {"/a": 1}}', "is damaged", id="no text"),
        pytest.param(
            b'{"version": 1, "bootID": "4f2c", "originals": {"/a": "bad"}}', "is damaged", id="record"
        ),
        pytest.param(later(), "has version 2, and this corepin reads version 1", id="later"),
    ],
)
def test_file_that_cannot_be_used_is_kept(
    path: Path, text: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An unusable file has the only copy of the originals, so it is kept; the error is logged once, with the remedy."""
    path.write_bytes(text)
    saved = checked(path)
    assert reason in saved.problem
    for change in (saved.reread, lambda: saved.remember({"/b": "1 2"})):
        with pytest.raises(Refused, match="restart the node"):
            change()
    saved.forget(["/a"])
    assert (path.read_bytes(), dict(saved.originals)) == (text, {})
    assert [it.message for it in caplog.records] == ["saved kernel values cannot be used"]


def checked(path: Path) -> Restorable:
    """Return originals whose values must be two numbers."""

    def check(_: str, text: str) -> None:
        list(map(int, text.split()))

    saved = Restorable(path, BOOT)
    saved.require(check)
    return saved


def test_unreadable_file_is_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that could not be read is read again, because a disk error may be temporary."""
    Restorable(path, BOOT).remember({"/a": "1 2"})
    with monkeypatch.context() as broken:

        def fail(_: Path) -> bytes:
            raise OSError(5, "Input/output error")

        broken.setattr(Path, "read_bytes", fail)
        saved = checked(path)
        with pytest.raises(Refused, match=r"quotas\.json: Input/output error: let the agent read it"):
            saved.remember({"/a": "3 4"})
    saved.reread()
    assert (dict(saved.originals), saved.problem) == ({"/a": "1 2"}, "")


@pytest.mark.parametrize("text", [later("other"), later("other")[:40]])
def test_unusable_file_of_another_boot_is_dropped(path: Path, text: bytes) -> None:
    """An unusable file of another boot is dropped, because the kernel has reset its values."""
    path.write_bytes(text)
    saved = checked(path)
    assert saved.problem == ""
    saved.remember({"/a": "1 2"})
    assert dict(Restorable(path, BOOT).originals) == {"/a": "1 2"}


@pytest.mark.parametrize("text", [b"", b"\0" * 512, b'{"version": 1, "boo'])
def test_file_that_a_power_failure_emptied_is_dropped(path: Path, text: bytes) -> None:
    """An empty file, as after a power failure, is dropped, because its values are from before this boot."""
    path.write_bytes(text)
    assert checked(path).problem
    os.utime(path, (0, 0))
    saved = checked(path)
    assert (saved.problem, dict(saved.originals)) == ("", {})
    saved.remember({"/a": "1 2"})
    assert dict(Restorable(path, BOOT).originals) == {"/a": "1 2"}


def test_file_that_cannot_be_written_is_refused(path: Path) -> None:
    """A failed write raises an error that names the file, and nothing counts as saved."""
    saved = Restorable(path, BOOT)
    path.with_suffix(".new").mkdir()

    with pytest.raises(Refused, match=r"quotas\.json: Is a directory"):
        saved.remember({"/a": "1 2"})
    assert not saved.originals


def value(path: Path) -> RestorableValue[int]:
    """Return the record of a number, as an agent loads it at its start."""
    return RestorableValue(Restorable(path, BOOT), "count", int, str)


def test_record_is_taken_over_until_it_is_dropped(path: Path) -> None:
    """The next agent loads a record until it is dropped."""
    first = value(path)
    assert (first.value, first.is_left) == (None, False)
    first.save(0)
    second = value(path)
    assert (second.value, second.is_left) == (0, True)
    second.save(None)
    assert (value(path).value, second.is_left, path.exists()) == (None, False, False)


def test_record_that_cannot_be_read_may_be_left(path: Path) -> None:
    """If a record cannot be read, the agent assumes one to restore and reads it later; if none was saved, it does not."""
    path.write_bytes(b'{"version": 1, "bootID": "4f2c", "originals": {"count": "many"}}')
    record = value(path)
    for attempt in (record.read, lambda: record.save(1)):
        with pytest.raises(Refused, match="is damaged"):
            attempt()
    assert (record.value, record.is_left) == (None, True)

    path.unlink()
    Restorable(path, BOOT).remember({"count": "2"})
    record.read()
    assert (record.value, record.is_left) == (2, True)
