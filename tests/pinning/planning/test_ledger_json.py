"""The ledger as JSON: the values that are saved and read again, and the inputs that are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pinning.contract import (
    CoreType,
    CPUPolicy,
    DevicePolicy,
    NoisePolicy,
    NUMAMemory,
    NUMAPolicy,
    QuotaPolicy,
    SMTPolicy,
)
from pinning.errors import BadContract
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.near import Device
from pinning.planning.ledger import Ledger
from pinning.planning.ledger_json import (
    devices_from_list,
    devices_to_list,
    ledger_from_dict,
    ledger_to_dict,
)
from pinning.planning.observed import Owner
from pinning.pods.claims import Claim, Origin
from pinning.pods.resources import Role
from tests.pinning.entries import entry
from tests.tables import table


def saved() -> dict[str, Any]:
    """Return a checkpoint with one entry that uses every field."""
    claim = Claim(
        "c",
        Role.MAIN,
        Origin.CMK,
        CPUPolicy.EXCLUSIVE,
        1,
        "cmk.intel.com/exclusive-cores",
        SMTPolicy.ISOLATE,
        NUMAPolicy.SINGLE,
        NUMAMemory.BIND,
        memory_limit=2**30,
    )
    return ledger_to_dict(Ledger().assign(replace(entry("a", "1", "5"), claim=claim, mems=CPUSet.parse("0"))))


def test_a_checkpoint_says_the_same_after_reading() -> None:
    """A ledger equals itself after it was saved and read, whatever changes it has had."""
    again = ledger_from_dict(saved())
    assert ledger_to_dict(again) == saved()
    assert again == Ledger().assign(entry("z", "2")).assign(next(iter(again))).release(Owner("z", "c"))


def test_a_checkpoint_of_before_memory_is_read() -> None:
    """A checkpoint of a version without memory binding is read, with no memory bound."""
    older = saved()
    (assignment,) = older["assignments"]
    del assignment["mems"], assignment["claim"]["numaMemory"], assignment["claim"]["memoryLimit"]

    (read,) = ledger_from_dict(older)

    assert (read.mems, read.claim.numa_memory, read.claim.memory_limit) == (EMPTY, None, 0)


@table(
    "facts, key",
    {
        "the right to the shared set": ({"shared_cpus": True}, "sharedCPUs"),
        **{f"device policy {word}": ({"devices": word}, "devicePolicy") for word in DevicePolicy},
        **{f"noise policy {word}": ({"noise": word}, "noisePolicy") for word in NoisePolicy},
        "noise policy and CRI-O's": ({"noise": NoisePolicy.NONE, "crio_disables_interrupts": True}, "noise"),
        "CRI-O's word about interrupts": ({"crio_disables_interrupts": True}, "crioDisablesInterrupts"),
        "quota policy": ({"quota": QuotaPolicy.KEEP}, "quota"),
        "CRI-O's word about the quota": ({"crio_disables_quota": True}, "crioDisablesQuota"),
        "which interrupts stay": ({"irq": ("devices", "eth0-*")}, "irqPolicy"),
    },
)
def test_a_checkpoint_keeps(facts: dict[str, Any], key: str) -> None:
    """A fact of a claim is saved in the checkpoint; in an older one, and for a claim without it, it is absent."""
    (assignment,) = ledger_from_dict(saved())
    ledger = Ledger().assign(replace(assignment, claim=replace(assignment.claim, **facts)))

    assert ledger_from_dict(ledger_to_dict(ledger)) == ledger
    assert key not in str(saved())
    assert not any(getattr(assignment.claim, name) for name in facts)


def test_a_checkpoint_keeps_core_types() -> None:
    """The core types of claim and assignment are saved; in an older checkpoint, and for `any`, they are absent."""
    (assignment,) = ledger_from_dict(saved())
    claim = replace(assignment.claim, core_type=CoreType.EFFICIENT)
    typed = Ledger().assign(replace(assignment, claim=claim, core_type=CoreType.EFFICIENT))

    assert ledger_from_dict(ledger_to_dict(typed)) == typed
    assert "coreType" not in str(saved())
    assert (assignment.core_type, assignment.claim.core_type) == (CoreType.ANY, None)


def test_a_checkpoint_keeps_the_nodes_beside_devices() -> None:
    """The NUMA nodes of an assignment's devices are saved in the checkpoint; in an older one they are absent."""
    beside = Ledger().assign(replace(entry("a", "1"), homes=CPUSet([1, 3])))
    assert ledger_from_dict(ledger_to_dict(beside)) == beside
    assert "homes" not in str(saved())


def test_devices_say_the_same_after_reading() -> None:
    """Devices are saved as a count for each resource and NUMA node, also for containers without devices."""
    gpu, nic = Device("nvidia.com/gpu", CPUSet([1])), Device("example.com/nic", EMPTY, "0000:41:00.0")
    devices = {Owner("a", "c"): (nic, gpu, gpu), Owner("a", "d"): ()}
    written = devices_to_list(devices)
    assert devices_from_list(written) == devices
    assert written[0]["devices"][1] == {"resource": "nvidia.com/gpu", "nodes": "1", "count": 2}
    assert written[0]["devices"][0]["pciAddress"] == "0000:41:00.0"  # earlier agents ignore this field


@table(
    "damaged",
    {
        "no list": 3,
        "no devices": [{"podUID": "a", "container": "c"}],
        "a number for a text": [{"podUID": 1, "container": "c", "devices": []}],
        "bad nodes": [
            {"podUID": "a", "container": "c", "devices": [{"resource": "g", "nodes": "x", "count": 1}]}
        ],
    },
)
def test_damaged_devices_are_refused(damaged: object) -> None:
    """Devices that cannot be parsed are an error, like a damaged ledger."""
    with pytest.raises(BadContract, match="damaged"):
        devices_from_list(damaged)


@table(
    "damage, message",
    {
        "nothing": (lambda _: None, "not of version 1"),
        "another version": (lambda checkpoint: {**checkpoint, "version": 2}, "not of version 1"),
        "no assignments": (lambda checkpoint: {"version": 1}, "damaged .*assignments"),
        "no mapping": (lambda checkpoint: {"version": 1, "assignments": [3]}, "damaged"),
        "bad list": (lambda checkpoint: damaged(checkpoint, cpus="x"), "damaged .*neither N"),
        "a number for a list": (lambda checkpoint: damaged(checkpoint, cpus=3), "damaged"),
        "no CPUs": (lambda checkpoint: damaged(checkpoint, cpus=""), "damaged .*must have CPUs"),
        "unknown policy": (lambda checkpoint: damaged(checkpoint, policy="x"), "damaged"),
        "a number for a text": (lambda checkpoint: damaged(checkpoint, pod=3), "damaged .3 is not a string"),
        "a truth value": (
            lambda checkpoint: damaged(checkpoint, place=True),
            "damaged .True is not a whole number",
        ),
        "a text": (lambda checkpoint: damaged(checkpoint, place="0"), "damaged .'0' is not a whole number"),
        "twice": (
            lambda checkpoint: {**checkpoint, "assignments": checkpoint["assignments"] * 2},
            "damaged .*holds CPUs already",
        ),
    },
)
def test_a_damaged_checkpoint_is_refused(damage: Any, message: str) -> None:
    """Any damage of a checkpoint raises the same error with the same remedy."""
    with pytest.raises(BadContract, match=message) as refused:
        ledger_from_dict(damage(saved()))
    assert "rebuild it from the runtime" in str(refused.value)


def damaged(checkpoint: dict[str, Any], **wrong: Any) -> dict[str, Any]:
    """Return a checkpoint in which one entry has other values."""
    return {**checkpoint, "assignments": [{**checkpoint["assignments"][0], **wrong}]}
