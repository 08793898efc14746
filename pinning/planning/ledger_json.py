"""JSON form of the ledger, for the checkpoint and for readers of the agent's state.

Member names must not change, because checkpoints of earlier agents are read with this module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, cast

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
from pinning.dra.claims import ClaimGrant, ClaimPart, DeviceClaim
from pinning.errors import BadContract, PinningError
from pinning.machine.cpuset import CPUSet
from pinning.machine.near import Device
from pinning.planning.ledger import POOL_INDEX, Assignment, Ledger
from pinning.planning.observed import Owner
from pinning.pods.budget import PodPool, PoolUser
from pinning.pods.claims import Claim, Origin
from pinning.pods.resources import Role

VERSION: Final = 1


def ledger_to_dict(ledger: Ledger) -> dict[str, Any]:
    """Return the ledger as values that JSON can encode."""
    return {
        name: list(value) if isinstance(value, Iterator) else value
        for name, value in ledger_members(ledger).items()
    }


def ledger_members(ledger: Ledger) -> dict[str, Any]:
    """Return the same as `ledger_to_dict`, with iterators in place of lists, so that items are in memory one at a time.

    Pools of pods are not among the assignments, because earlier agents cannot read them.
    """
    saved: dict[str, Any] = {"version": VERSION, "assignments": map(_assignment_to_dict, ledger)}
    if ledger.claims:
        saved["claims"] = (grant_to_dict(ledger.claims[uid]) for uid in sorted(ledger.claims))
    if ledger.pools:
        saved["podPools"] = (_pool_to_dict(ledger.pools[uid]) for uid in sorted(ledger.pools))
    return saved


def ledger_from_dict(saved: object) -> Ledger:
    """Return the ledger that `ledger_to_dict` encoded.

    Raise BadContract if it is damaged, has another version or breaks an invariant.
    """
    if not isinstance(saved, Mapping) or saved.get("version") != VERSION:
        raise BadContract(f"the checkpoint is not of version {VERSION}: rebuild it from the runtime")
    ledger = Ledger()
    try:
        for grant in saved.get("claims", []):
            ledger = ledger.grant(grant_from_dict(grant))
        for assignment in saved["assignments"]:
            ledger = ledger.assign(_assignment_from_dict(assignment))
        for pool in saved.get("podPools", ()):
            ledger = ledger.assign(_pool_from_dict(pool))
    except (KeyError, TypeError, ValueError, AttributeError, PinningError) as problem:
        raise BadContract(f"the checkpoint is damaged ({problem}): rebuild it from the runtime") from problem
    return ledger


def devices_to_list(devices: Mapping[Owner, tuple[Device, ...]]) -> list[dict[str, Any]]:
    """Return the devices of containers as values that JSON can encode; a container without devices too."""
    return [
        {
            "podUID": owner.pod_uid,
            "container": owner.container,
            "devices": [_device_to_dict(device, count) for device, count in Counter(devices[owner]).items()],
        }
        for owner in sorted(devices)
    ]


def devices_from_list(saved: object) -> dict[Owner, tuple[Device, ...]]:
    """Return the devices that `devices_to_list` encoded; raise BadContract if they are damaged."""
    try:
        return {
            Owner(_text(it["podUID"]), _text(it["container"])): tuple(
                device for kind in it["devices"] for device in _equal_devices(kind)
            )
            for it in cast("list[Any]", saved)
        }
    except (KeyError, TypeError, ValueError, AttributeError, PinningError) as problem:
        raise BadContract(f"the checkpoint is damaged ({problem}): rebuild it from the runtime") from problem


def _equal_devices(saved: Mapping[str, Any]) -> tuple[Device, ...]:
    device = Device(
        _text(saved["resource"]), CPUSet.parse(saved["nodes"]), _text(saved.get("pciAddress", ""))
    )
    return (device,) * _whole(saved["count"])


def _device_to_dict(device: Device, count: int) -> dict[str, Any]:
    """Return the record of equal devices; earlier agents ignore its address."""
    saved = {"resource": device.resource, "nodes": str(device.nodes), "count": count}
    return {**saved, "pciAddress": device.address} if device.address else saved


def _assignment_to_dict(assignment: Assignment) -> dict[str, Any]:
    saved: dict[str, Any] = {
        "podUID": assignment.owner.pod_uid,
        "container": assignment.owner.container,
        "namespace": assignment.namespace,
        "pod": assignment.pod,
        "place": assignment.start_index,
        "policy": str(assignment.policy),
        "smtPolicy": str(assignment.smt),
        "numaPolicy": str(assignment.numa),
        "cpus": str(assignment.cpus),
        "idle": str(assignment.idle),
        "claim": _claim_to_dict(assignment.claim),
    }
    if assignment.mems:
        saved["mems"] = str(assignment.mems)
    if assignment.homes:
        saved["homes"] = str(assignment.homes)
    if assignment.core_type is not CoreType.ANY:
        saved["coreType"] = str(assignment.core_type)
    if assignment.device_claims:
        saved["deviceClaims"] = list(assignment.device_claims)
    return saved


def _pool_to_dict(pool: Assignment) -> dict[str, Any]:
    purpose = pool.claim.pool or PodPool(0)
    users = [
        {
            "container": user.container,
            "place": user.start_index,
            "role": str(user.role),
            **({"bare": True} if user.is_bare else {}),
        }
        for user in purpose.users
    ]
    saved = {**_assignment_to_dict(pool), "budget": purpose.budget, "containers": users}
    return {**saved, "irqDevices": list(purpose.irq_devices)} if purpose.irq_devices else saved


def _pool_from_dict(saved: Mapping[str, Any]) -> Assignment:
    users = (
        PoolUser(
            _text(user["container"]), _whole(user["place"]), Role(user["role"]), user.get("bare") is True
        )
        for user in saved["containers"]
    )
    part = _assignment_from_dict(saved)
    irq_devices = tuple(_text(name) for name in saved.get("irqDevices", ()))
    purpose = PodPool(_whole(saved["budget"]), tuple(users), irq_devices=irq_devices)
    return replace(
        part,
        owner=part.owner._replace(container=""),
        start_index=POOL_INDEX,
        claim=replace(part.claim, container="", origin=Origin.POOL, pool=purpose),
    )


def _claim_to_dict(claim: Claim) -> dict[str, Any]:
    saved: dict[str, Any] = {
        "role": str(claim.role),
        "origin": str(claim.origin),
        "policy": str(claim.policy),
        "count": claim.count,
        "resource": claim.resource,
        "smtPolicy": claim.smt and str(claim.smt),
        "numaPolicy": claim.numa and str(claim.numa),
    }
    if claim.core_type:
        saved["coreType"] = str(claim.core_type)
    if claim.numa_memory:
        saved |= {"numaMemory": str(claim.numa_memory), "memoryLimit": claim.memory_limit}
    if claim.quota:
        saved["quotaPolicy"] = str(claim.quota)
    if claim.crio_disables_quota:
        saved["crioDisablesQuota"] = True
    if claim.devices:
        saved["devicePolicy"] = str(claim.devices)
    if claim.noise:
        saved["noisePolicy"] = str(claim.noise)
    if claim.irq:
        saved["irqPolicy"] = list(claim.irq)
    if claim.crio_disables_interrupts:
        saved["crioDisablesInterrupts"] = True
    if claim.shared_cpus:
        saved["sharedCPUs"] = True
    return saved


def _assignment_from_dict(saved: Mapping[str, Any]) -> Assignment:
    return Assignment(
        owner=Owner(_text(saved["podUID"]), _text(saved["container"])),
        namespace=_text(saved["namespace"]),
        pod=_text(saved["pod"]),
        start_index=_whole(saved["place"]),
        claim=_claim_from_dict(_text(saved["container"]), saved["claim"]),
        policy=CPUPolicy(saved["policy"]),
        smt=SMTPolicy(saved["smtPolicy"]),
        numa=NUMAPolicy(saved["numaPolicy"]),
        cpus=CPUSet.parse(saved["cpus"]),
        idle=CPUSet.parse(saved["idle"]),
        core_type=CoreType(saved.get("coreType", CoreType.ANY)),
        mems=CPUSet.parse(saved.get("mems", "")),
        homes=CPUSet.parse(saved.get("homes", "")),
        device_claims=tuple(_text(uid) for uid in saved.get("deviceClaims", [])),
    )


def _claim_from_dict(container: str, saved: Mapping[str, Any]) -> Claim:
    return Claim(
        container=container,
        role=Role(saved["role"]),
        origin=Origin(saved["origin"]),
        policy=CPUPolicy(saved["policy"]),
        count=_whole(saved["count"]),
        resource=saved["resource"] and _text(saved["resource"]),
        smt=saved["smtPolicy"] and SMTPolicy(saved["smtPolicy"]),
        numa=saved["numaPolicy"] and NUMAPolicy(saved["numaPolicy"]),
        numa_memory=NUMAMemory(saved["numaMemory"]) if "numaMemory" in saved else None,
        memory_limit=_whole(saved.get("memoryLimit", 0)),
        shared_cpus=saved.get("sharedCPUs", False) is True,
        core_type=CoreType(saved["coreType"]) if "coreType" in saved else None,
        quota=QuotaPolicy(saved["quotaPolicy"]) if "quotaPolicy" in saved else None,
        crio_disables_quota=saved.get("crioDisablesQuota", False) is True,
        devices=DevicePolicy(saved["devicePolicy"]) if "devicePolicy" in saved else None,
        noise=NoisePolicy(saved["noisePolicy"]) if "noisePolicy" in saved else None,
        irq=tuple(_text(name) for name in saved.get("irqPolicy", [])),
        crio_disables_interrupts=saved.get("crioDisablesInterrupts", False) is True,
    )


def grant_to_dict(grant: ClaimGrant) -> dict[str, Any]:
    """Return the CPUs of a ResourceClaim as values that JSON can encode."""
    claim = grant.claim
    return {
        "uid": claim.uid,
        "namespace": claim.namespace,
        "name": claim.name,
        "pods": sorted(claim.pods),
        "prepared": grant.is_prepared,
        **({} if claim.asked is None else {"asked": claim.asked}),
        "parts": [
            {
                "request": part.request,
                "device": part.device,
                "share": part.share,
                "count": part.count,
                "cpus": str(cpus),
            }
            for part, cpus in zip(claim.parts, grant.cpus, strict=True)
        ],
    }


def grant_from_dict(saved: Mapping[str, Any]) -> ClaimGrant:
    """Return the CPUs of a ResourceClaim that `grant_to_dict` encoded; errors of damaged values are not translated."""
    parts = tuple(
        ClaimPart(
            _text(it["request"]),
            _text(it["device"]),
            _text(it["share"]),
            _whole(it["count"]),
        )
        for it in saved["parts"]
    )
    claim = DeviceClaim(
        uid=_text(saved["uid"]),
        namespace=_text(saved["namespace"]),
        name=_text(saved["name"]),
        pods=frozenset(_text(uid) for uid in saved["pods"]),
        parts=parts,
        asked=_whole(saved["asked"]) if "asked" in saved else None,
    )
    cpus = tuple(CPUSet.parse(it["cpus"]) for it in saved["parts"])
    return ClaimGrant(claim, cpus, saved["prepared"] is True)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is not a whole number")
    return value
