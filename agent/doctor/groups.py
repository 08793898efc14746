"""Check that a node's agent runs with the configuration of the CPU group in the node's label. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from agent.doctor.check import finding, ok, unknown
from pinning.contract import CPU_GROUP_LABEL
from pinning.planning.cpu_groups import key_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.doctor.check import Check


class GroupFacts(NamedTuple):
    """Facts about the CPU group of a node; None: unknown."""

    labelled: str | None = None  # value of the node's group label; empty: the node has no label
    # Node group of the configuration that the agent runs with; empty: the default one.
    running: str | None = None
    # Groups that have a key in the ConfigMap; None: no configuration is mounted here.
    there: frozenset[str] | None = None


NOT_ASKED = GroupFacts()


def group_checks(facts: GroupFacts) -> Iterator[Check]:
    """Yield the findings on the group; none for a node without label whose agent has no group."""
    subject = "configuration"
    labelled, running = facts.labelled, facts.running
    if labelled is None:
        if running:
            message = f"the agent runs with {key_of(running)}; the label {CPU_GROUP_LABEL} is not known"
            yield unknown(
                subject, message, "let KUBECONFIG reach the cluster, and name this node with --node"
            )
        return
    if labelled and facts.there is not None and labelled not in facts.there:
        message = (
            f"label {CPU_GROUP_LABEL}={labelled}, but the agents' ConfigMap lacks the key {key_of(labelled)}"
        )
        yield finding(
            subject,
            f"{message}: an agent that starts waits until the key exists",
            "add the key, or change the label",
        )
    elif running is not None and labelled != running:
        now = f"is {labelled}" if labelled else "was removed"
        message = f"label {CPU_GROUP_LABEL} {now}, but the agent runs with {key_of(running)}"
        yield finding(
            subject, message, f"delete the agent's pod on this node: the next one takes {key_of(labelled)}"
        )
    elif labelled:
        yield ok(subject, f"{key_of(labelled)}, as the label {CPU_GROUP_LABEL} says")
