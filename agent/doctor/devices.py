"""Check whether the kubelet's topology manager aligns the devices of containers that have CPUs. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from agent.doctor.check import ok, unknown
from pinning.truncate import VALUE, listed, truncate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.doctor.check import Check

BEST: Final = (
    "topologyManagerPolicy: best-effort of the kubelet puts the devices of a container together where it can, and"
    " rejects no pod"
)
REJECTING: Final = frozenset({"restricted", "single-numa-node"})


class DeviceFacts(NamedTuple):
    """The policy of the kubelet's topology manager, and the devices of containers with CPUs."""

    policy: str  # the topology manager's policy; empty: not known
    resources: Mapping[str, tuple[str, ...]]  # resource names of devices, by namespace/pod/container


NO_DEVICES: Final = DeviceFacts("", {})


def device_checks(facts: DeviceFacts) -> Iterator[Check]:
    """Yield the check of the topology manager's policy; none if no container with CPUs has devices."""
    subject = "topology manager"
    several = [name for name, resources in facts.resources.items() if len(resources) > 1]
    apart = f"the devices of {listed(several)}, which are of several kinds, may be on different NUMA nodes"
    if not facts.resources:
        return
    if facts.policy in REJECTING:
        message = "rejects pods of every QoS class whose devices the policy cannot put together (TopologyAffinityError)"
        yield ok(subject, f"policy {facts.policy}: the kubelet {message}", f"if this is not intended: {BEST}")
    elif facts.policy == "best-effort":
        yield ok(
            subject, "policy best-effort: the kubelet puts the devices of a container together where it can"
        )
    elif not several:
        return
    elif facts.policy == "none":
        yield ok(subject, f"policy none: {apart}", BEST)
    else:
        policy = truncate(facts.policy, VALUE)
        known = f"policy {policy!r} is not known here" if policy else "its policy is not known"
        yield unknown(
            subject, f"{known}: {apart}", f"have the agent ask the kubelet (--kubelet-configz); {BEST}"
        )
