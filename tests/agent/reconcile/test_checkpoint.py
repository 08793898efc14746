"""The checkpoint file: atomic writes, detection of damage, versions, and a lock for one agent at a time."""

from __future__ import annotations

import hashlib
import json
import os
import tracemalloc
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.reconcile.checkpoint import (
    AlreadyRunning,
    NeedsNewer,
    Saved,
    StateDir,
    Unusable,
    as_kept,
    read,
    unknown_needs,
    write,
)
from pinning.contract import NUMAMemory
from pinning.dra.claims import ClaimGrant, ClaimPart, DeviceClaim
from pinning.machine.cpuset import CPUSet
from pinning.machine.near import Device
from pinning.machine.topology import Topology
from pinning.planning.invariants import problems
from pinning.planning.ledger import Ledger
from pinning.planning.node_sets import node_sets
from pinning.planning.observed import Owner
from tests.agent.checkpoints import written
from tests.agent.fakes import FakeNode
from tests.pinning.budgets import EXCLUSIVE, budgeted
from tests.pinning.machines import FLAT, WITHOUT_SMT, machine, machine_of_cores
from tests.pinning.world import Wish, World
from tests.tables import table


def saved(topology: Topology = FLAT, boot: str = "boot-1") -> Saved:
    """Return a checkpoint with two assigned containers."""
    world = World(topology)
    world.add("a", [Wish("2", policy="exclusive")])
    world.add("b", [Wish("1", policy="share")])
    world.plan()
    return Saved("machine-1", boot, topology, topology.online, world.ledger)


def settled(folder: StateDir) -> None:
    """Save a checkpoint and flush it."""
    folder.save(saved())
    folder.settle()


def test_checkpoint_is_read_as_it_was_written() -> None:
    """A checkpoint that is saved and loaded equals the original."""
    assert read(written(saved()), "machine-1") == saved()


def test_devices_are_read_as_they_were_written() -> None:
    """Devices are saved inside the ledger, where earlier versions ignore them."""
    devices = {Owner("a", "c0"): (Device("nvidia.com/gpu", CPUSet([1])),), Owner("b", "c0"): ()}
    with_devices = replace(saved(), devices=devices)
    content = written(with_devices)
    assert read(content, "machine-1").devices == devices
    assert "devices" in json.loads(content)["ledger"]


def test_checkpoint_of_an_earlier_agent_is_read() -> None:
    """A checkpoint of an earlier version is read, and writing it again gives the same bytes."""
    content = Path("tests/data/checkpoints/before-the-move.json").read_bytes()
    before = read(content, "machine-1")
    assert [(held.name, str(held.cpus), str(held.idle)) for held in before.ledger] == [
        ("default/web/init", "2,10", ""),
        ("default/web/main", "2", "10"),
        ("vms/virt-launcher-x/compute", "3,11", ""),
        ("default/log/log", "4", ""),
    ]
    assert written(before) == content


@table(
    "name, limit",
    {
        "plain": ("a", 2**30),
        "escaped": ('"\\\n\x00\x1f/', 0),
        "DEL": ("\x7f", 0),
        "not ASCII": ("\u00e9\u2028\U0001f600", 0),
        "lone surrogate": ("\ud800", 0),
        "more than 64 bits": ("a", 2**64),
    },
)
def test_any_text_and_number_is_read_as_it_was_written(name: str, limit: int) -> None:
    """Characters that JSON may escape and large numbers have the text from which readers compute the checksum."""
    before = saved()
    held = next(iter(before.ledger))
    claim = replace(held.claim, resource=name, numa_memory=NUMAMemory.BIND, memory_limit=limit)
    ledger = before.ledger.change(replace(held, pod=name, claim=claim))
    odd = replace(before, machine_id=name, ledger=ledger, needs=frozenset({"claims"}))
    assert read(written(odd), name) == odd


def test_ledger_is_written_item_by_item() -> None:
    """A save needs as much memory for 800 claims as for 100: threads keep what they needed, and any of them may save."""
    few, many = map(needed, (100, 800))
    assert many < few + 2**14


def needed(claims: int) -> int:
    """Return the bytes of memory that writing this many claims takes for a moment."""
    ledger = Ledger()
    for number in range(claims):
        part = ClaimPart("cpu", "cpudevnuma000", f"share-{number}", 1)
        claim = DeviceClaim(f"uid-{number}", "default", f"claim-{number}", frozenset({"pod"}), (part,))
        ledger = ledger.grant(ClaimGrant(claim, (CPUSet([number]),)))
    large = replace(saved(), ledger=ledger)
    with Path(os.devnull).open("wb") as file:
        tracemalloc.start()
        write(large, file)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return most


@given(at=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_checkpoint_with_a_flipped_bit_is_refused(at: int, bit: int) -> None:
    """A checkpoint with one flipped bit is refused, or has the same values as the original."""
    content = bytearray(written(saved()))
    content[at % len(content)] ^= 1 << bit
    with suppress(Unusable):
        assert read(bytes(content), "machine-1") == saved()


@given(length=st.integers(0, 10**6))
def test_truncated_checkpoint_is_refused(length: int) -> None:
    """A truncated checkpoint is refused, unless only the last line break is missing."""
    content = written(saved())
    short = content[: length % (len(content) - 1)]
    with pytest.raises(Unusable):
        read(short, "machine-1")


@given(
    content=st.binary(max_size=200)
    | st.builds(
        lambda value: json.dumps(value).encode(),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        ),
    )
)
def test_any_other_file_is_refused(content: bytes) -> None:
    """Any other content is refused with `Unusable`, never with a crash."""
    with pytest.raises(Unusable):
        read(content, "machine-1")


def test_deep_nesting_is_refused() -> None:
    """A file nested deeply enough to exhaust the parser is refused as damaged."""
    with pytest.raises(Unusable, match="damaged"):
        read(b"[" * 100000, "machine-1")


def test_checkpoint_of_another_machine_is_refused() -> None:
    """The error for the checkpoint of a cloned disk names both machine ids."""
    with pytest.raises(Unusable, match=r"machine-1.*machine-2"):
        read(written(saved()), "machine-2")


def test_checkpoint_of_an_older_version_is_refused() -> None:
    """The error names the version found and the version that this agent writes."""
    older = json.dumps({**json.loads(written(saved())), "version": 0}).encode()
    with pytest.raises(Unusable, match=r"version 0.*writes version 1"):
        read(older, "machine-1")


def newer(at: str = "top", **members: object) -> bytes:
    """Return a checkpoint with fields that only a later version has."""
    body = json.loads(written(saved()))
    del body["version"], body["checksum"]
    (body if at == "top" else body["ledger"]).update(members)
    text = json.dumps(body, separators=(",", ":"), sort_keys=True)
    checksum = hashlib.sha256(text.encode()).hexdigest()
    return f'{{"version":1,"checksum":"{checksum}",{text[1:]}'.encode()


@pytest.mark.parametrize("at", ["top", "ledger"])
def test_members_of_a_later_version_are_passed_over(at: str) -> None:
    """Unknown fields are ignored when a checkpoint is loaded, and are covered by the checksum."""
    content = newer(at, devices={"gpu-0": ["uid", 3]}, needs=[]) if at == "top" else newer(at, pools=[None])

    assert read(content, "machine-1") == saved()
    with pytest.raises(Unusable, match="checksum"):
        read(content.replace(b"gpu-0", b"gpu-1").replace(b"pools", b"poolz"), "machine-1")


def test_needs_are_written_only_if_not_empty() -> None:
    """`needs` is written only if it is not empty, because earlier agents refuse a file with this field."""
    needing = replace(saved(), needs=frozenset({"pools", "devices"}))

    assert "needs" not in json.loads(written(saved()))
    assert json.loads(written(needing))["needs"] == ["devices", "pools"]


def test_a_checkpoint_that_needs_a_later_version_is_kept(tmp_path: Path) -> None:
    """If `needs` names an unknown feature, the checkpoint is refused with a short error, and the file is kept."""
    folder = StateDir(tmp_path)
    path = tmp_path / "checkpoint.json"
    folder.save(replace(saved(), needs=frozenset({"pools"})))
    before = path.read_bytes()
    assert unknown_needs(path) == {"pools"}
    for _ in range(2):
        with pytest.raises(
            NeedsNewer, match=r"needs pools, which this version .* start the version that wrote"
        ):
            folder.load("machine-1")
    assert path.read_bytes() == before
    folder.save(saved())
    path.write_bytes(b"torn")
    with pytest.raises(NeedsNewer):
        folder.load("machine-1")
    assert path.read_bytes() == b"torn"
    assert unknown_needs(path) == unknown_needs(tmp_path / "none") == frozenset()
    path.write_bytes(newer(needs=["x" * 10**6 + str(number) for number in range(20)]))
    with pytest.raises(NeedsNewer) as found:
        folder.load("machine-1")
    assert len(str(found.value)) < 1000
    folder.close()


def test_another_machines_needs_do_not_count(tmp_path: Path) -> None:
    """A checkpoint of another machine is refused because of the machine id, whatever its `needs` contain."""
    with pytest.raises(Unusable, match="another machine"):
        read(newer(needs=["pools"]), "machine-2")


@pytest.mark.parametrize("needs", ["pools", None, {"pools": 1}, [1], [["pools"]], "x" * 10**6])
def test_malformed_needs_are_refused(needs: object) -> None:
    """A malformed `needs` member is refused with a truncated error message."""
    with pytest.raises(Unusable, match="not a list of words") as found:
        read(newer(needs=needs), "machine-1")
    assert len(str(found.value)) < 200


def test_new_node_has_no_checkpoint(tmp_path: Path) -> None:
    """Loading from an empty state folder returns None."""
    folder = StateDir(tmp_path / "new")
    assert folder.load("machine-1") is None
    folder.close()


def test_damaged_checkpoint_is_kept_under_another_name(tmp_path: Path) -> None:
    """A damaged file is refused once and kept as `checkpoint.json.damaged`."""
    folder = StateDir(tmp_path)
    settled(folder)
    assert folder.load("machine-1") == saved()
    (tmp_path / "checkpoint.json").write_bytes(b"{")
    with pytest.raises(Unusable):
        folder.load("machine-1")
    assert folder.load("machine-1") is None
    assert (tmp_path / "checkpoint.json.damaged").read_bytes() == b"{"
    folder.close()


def test_half_written_file_beside_is_ignored(tmp_path: Path) -> None:
    """A partly written `checkpoint.new` is ignored, and the older checkpoint is loaded."""
    folder = StateDir(tmp_path)
    settled(folder)
    (tmp_path / "checkpoint.new").write_bytes(b"{")
    assert folder.load("machine-1") == saved()
    folder.close()


def test_checkpoint_is_loaded_before_it_was_flushed(tmp_path: Path) -> None:
    """A saved checkpoint is loaded even if the agent died before it flushed the file."""
    folder = StateDir(tmp_path)
    settled(folder)
    folder.save(saved(WITHOUT_SMT))
    assert folder.load("machine-1") == saved(WITHOUT_SMT)
    folder.settle()
    assert folder.load("machine-1") == saved(WITHOUT_SMT)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.json", "lock"]
    folder.close()


@pytest.mark.parametrize("saves", [1, 2])
def test_power_cut_before_the_flush_leaves_the_one_before(tmp_path: Path, saves: int) -> None:
    """If a power failure destroys a checkpoint that was not flushed, the last flushed one is loaded."""
    folder = StateDir(tmp_path)
    settled(folder)
    for _ in range(saves):
        folder.save(saved(WITHOUT_SMT))
    (tmp_path / "checkpoint.json").write_bytes(b"")
    assert folder.load("machine-1") == saved()
    folder.close()


def test_remove_deletes_saved_and_flushed_checkpoints(tmp_path: Path) -> None:
    """`remove` deletes saved and flushed checkpoints."""
    folder = StateDir(tmp_path)
    settled(folder)
    folder.save(saved())
    folder.remove()
    assert folder.load("machine-1") is None
    folder.close()


def test_second_agent_is_kept_out(tmp_path: Path) -> None:
    """A second agent is refused with the pid of the first, and can start once the first has exited."""
    first = StateDir(tmp_path)
    with pytest.raises(AlreadyRunning, match=r"pid \d+.*stop it"):
        StateDir(tmp_path)
    first.close()
    StateDir(tmp_path).close()


def test_ledger_of_the_same_boot_is_kept_as_it_is() -> None:
    """Within one boot the ledger is kept unchanged, even if some of its CPUs are offline."""
    now = FLAT.with_online(CPUSet.parse("0"))
    assert as_kept(saved(), "boot-1", now) == saved().ledger


def test_after_a_reboot_the_same_cores_are_kept() -> None:
    """After a reboot with the same topology all containers keep their CPUs."""
    assert as_kept(saved(), "boot-2", FLAT) == saved().ledger


def test_after_a_reboot_with_another_topology_the_ledger_is_dropped() -> None:
    """After a reboot with another topology, such as SMT switched off, the ledger is dropped."""
    assert as_kept(saved(), "boot-2", WITHOUT_SMT) == Ledger()


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(WITHOUT_SMT, id="SMT switched off"),
        pytest.param(machine_of_cores("0,4", "1-2", "5-6", "3,7"), id="siblings numbered anew"),
    ],
)
def test_after_a_reboot_pools_on_changed_cores_are_dropped(tmp_path: Path, now: Topology) -> None:
    """After a reboot with another topology, pools of pods get CPUs anew: whole cores that exist."""
    whole = {**EXCLUSIVE, "smt-policy.corepin.io/pod": "require"}
    node = FakeNode(tmp_path, FLAT)
    for uid in ("a", "b"):
        node.documents[uid] = budgeted(uid, 2, {"main": None, "log": None}, annotations=whole)
    node.run()
    node.machine.boot, node.topology = "boot-2", now
    node.new_agent()
    node.run()
    after = node.agent.reconciler.checkpoint.saved
    assert after
    assert after.ledger.pools
    assert problems(after.ledger, node_sets(now, now.online, node.config)) == ()
    node.close()


def test_after_a_reboot_containers_on_other_numa_nodes_are_dropped() -> None:
    """After a change of the firmware's NUMA nodes a `single` container would keep CPUs that now lie on two of them."""
    halves = machine(4, 2, lambda core: (0, core // 2, 0))
    assert {held.owner.pod_uid for held in saved().ledger} == {"a", "b"}  # on cores 1 and 2
    assert {held.owner.pod_uid for held in as_kept(saved(), "boot-2", halves)} == {"a"}
