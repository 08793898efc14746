"""The page's text about a container whose CPUs are not quiet."""

from __future__ import annotations

from dashboard.view.messages import facts
from dashboard.view.shapes import Fact
from published.node_pools import Owner
from published.pod_status import Container


def test_the_reason_is_a_fact() -> None:
    """The page shows why a container's CPUs are not quiet, and nothing if they are."""
    owner = Owner(policy="exclusive", cpus="1-2")
    fact = Fact("Not quiet", "no irqbalance")
    assert fact in facts(owner, Container(policy="exclusive", not_quiet="no irqbalance"))
    kept = Fact("Interrupts not kept", "no interrupt has a name like eth7")
    assert kept in facts(owner, Container(policy="exclusive", not_kept="no interrupt has a name like eth7"))
    assert not any(it.term == "Not quiet" for it in facts(owner, Container(policy="exclusive")))
