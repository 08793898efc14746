"""Check the Node's counts of free CPUs on the NUMA nodes of devices, if the agent publishes them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from agent.doctor.check import finding, ok, unknown
from agent.doctor.devices import BEST
from pinning.truncate import listed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.doctor.check import Check
    from agent.doctor.devices import DeviceFacts


class NearFacts(NamedTuple):
    """Counts of free CPUs on the NUMA nodes of devices, as read from the API server."""

    is_wanted: bool = False  # the agent is configured to publish these numbers
    counts: Mapping[str, str] | None = None  # allocatable amount of each resource; None: not known
    silence: str = ""  # why `counts` could not be read


NOT_WANTED: Final = NearFacts()


def near_checks(facts: NearFacts, devices: DeviceFacts, *, observes: bool) -> Iterator[Check]:
    """Yield the check of the published counts of free CPUs near devices; none if the feature is off."""
    subject = "CPUs near devices"
    if not facts.is_wanted:
        return
    if facts.counts is None:
        remedy = "let KUBECONFIG reach the cluster, and name this node with --node"
        yield unknown(subject, f"the published resources of the node are not known ({facts.silence})", remedy)
    elif observes:
        yield ok(subject, "no CPUs are counted near devices, because corepin only observes here")
    elif facts.counts:
        counts = [f"{name} {count}" for name, count in facts.counts.items()]
        is_any = devices.policy == "none" and len(facts.counts) > 1
        seen = f"schedulers count these CPUs near devices: {listed(counts)}"
        yield ok(subject, seen, f"so that fewer pods wait: {BEST}" if is_any else "")
    elif devices.resources:
        message = "the node publishes no CPUs near devices, so pods that require some are not scheduled here"
        remedy = (
            "see `free devices not known` in the agent's log: the kubelet's podresources socket must answer"
        )
        yield finding(subject, message, remedy)
    else:
        yield ok(subject, "none are counted: no device plugin has registered devices with the kubelet")
