"""Check that the cluster has this node's NodeResourceTopology, if the agent publishes it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from agent.doctor.check import finding, ok, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.doctor.check import Check


class ZoneFacts(NamedTuple):
    """The content of the node's NodeResourceTopology."""

    is_ours: bool
    cpus: Mapping[str, tuple[str, str]]  # number of free and of allocatable CPUs, by zone: "node-0"


class NUMAFacts(NamedTuple):
    """Facts about the node's NodeResourceTopology from the API server."""

    is_wanted: bool = False  # the agent is configured to publish a NodeResourceTopology
    zones: ZoneFacts | None = None  # None: there is no such object, or it is unknown
    silence: str = ""  # why `zones` could not be read


NOT_WANTED: Final = NUMAFacts()


def numa_checks(facts: NUMAFacts, *, observes: bool) -> Iterator[Check]:
    """Yield the findings on scheduling by NUMA node; none if the feature is off."""
    subject = "NUMA scheduling"
    if not facts.is_wanted:
        return
    if facts.silence:
        remedy = "let KUBECONFIG reach the cluster, and name this node with --node"
        yield unknown(subject, f"not known ({facts.silence})", remedy)
    elif facts.zones and not facts.zones.is_ours:
        remedy = (
            "stop it on this node and delete the object; the agent then publishes its own within five minutes"
        )
        yield finding(subject, "another program publishes the NodeResourceTopology of this node", remedy)
    elif observes:
        yield ok(subject, "no NodeResourceTopology, because corepin only observes here")
    elif facts.zones is None:
        message = "this node has no NodeResourceTopology, so no scheduler sees what its NUMA nodes have free"
        yield finding(
            subject, message, "install the CRD (noderesourcetopology-api); the agent's log has more"
        )
    else:
        free = ", ".join(
            f"{left} of {there} CPUs of {name}" for name, (left, there) in facts.zones.cpus.items()
        )
        yield ok(subject, f"a scheduler with the filter may place {free}")
