"""Entries of a ledger."""

from __future__ import annotations

from typing import Any

from pinning.contract import CPUPolicy, NUMAPolicy, SMTPolicy
from pinning.machine.cpuset import CPUSet
from pinning.planning.ledger import Assignment
from pinning.planning.observed import Owner
from pinning.pods.claims import Claim, Origin
from pinning.pods.resources import Role


def entry(uid: str, cpus: str, idle: str = "", **more: Any) -> Assignment:
    """Return an exclusive assignment of a container; `role`, `start_index`, `container`, `policy` and `smt` may differ."""
    container, policy = more.pop("container", "c"), more.pop("policy", CPUPolicy.EXCLUSIVE)
    role = more.pop("role", Role.MAIN)
    values: dict[str, Any] = {
        "owner": Owner(uid, container),
        "namespace": "n",
        "pod": uid,
        "start_index": 0,
        "claim": Claim(container, role, Origin.ANNOTATION, policy, 1),
        "policy": policy,
        "smt": SMTPolicy.PREFER,
        "numa": NUMAPolicy.PACKED,
        "cpus": CPUSet.parse(cpus),
        "idle": CPUSet.parse(idle),
    }
    return Assignment(**{**values, **more})
