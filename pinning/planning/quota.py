"""Treatment of a container's CFS quota, by its pod's annotations and the node's configuration. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pinning.contract import NoisePolicy
from pinning.planning.node_config import Quota

if TYPE_CHECKING:
    from pinning.pods.claims import Claim


class Bandwidth(NamedTuple):
    """A CFS quota: CPU time that a cgroup may use in each period, both in microseconds."""

    quota: int
    period: int


def effective_quota(
    claim: Claim, default: Quota, *, uses_pools: bool, is_crio: bool, keeps_quiet: bool
) -> Quota:
    """Return the treatment of a container's quota: by its pod's annotations, else by the node's default.

    The quota of a container that also uses pools is unset unless its pod keeps it, because helper threads would use it
    up. It is also unset under `noise-policy: quiet` if the node keeps CPUs quiet, even if the container owns more CPUs
    than its limit, because throttling is the longest of all pauses. CRI-O itself follows its own annotation.
    """
    if claim.quota:
        return Quota(claim.quota)
    if uses_pools or (claim.crio_disables_quota and not is_crio):
        return Quota.UNSET
    if keeps_quiet and claim.noise is NoisePolicy.QUIET:
        return Quota.UNSET
    return default


def is_unset(word: Quota, owned_cpus: int, bandwidth: Bandwidth) -> bool:
    """Return whether the CFS quota of an exclusive container is unset.

    `auto` unsets a quota of at least the CPUs owned, because the cpuset already limits the container to these. It keeps
    a lower quota (a CMK core has two CPUs, and the CPU limit may be 1).
    """
    if word is Quota.AUTO:
        return owned_cpus * bandwidth.period <= bandwidth.quota
    return word is Quota.UNSET
