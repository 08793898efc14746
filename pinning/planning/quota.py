"""Whether a container's CFS quota is unset: what the operator's word means for one owner of CPUs. Pure."""

from __future__ import annotations

from typing import NamedTuple

from pinning.planning.node_config import Quota


class Bandwidth(NamedTuple):
    """A CFS quota: CPU time that a cgroup may use in each period, both in microseconds."""

    quota: int
    period: int


def is_unset(word: Quota, owned_cpus: int, bandwidth: Bandwidth) -> bool:
    """Return whether an exclusive container has no quota.

    `auto` unsets one that is worth at least the CPUs owned, because the cpuset promises no less, and keeps a lower
    one (a CMK core has two CPUs, and the CPU limit may be 1).
    """
    if word is Quota.AUTO:
        return owned_cpus * bandwidth.period <= bandwidth.quota
    return word is Quota.UNSET
