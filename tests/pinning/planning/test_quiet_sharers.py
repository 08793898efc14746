"""Containers under `quiet` that may also run on the shared set."""

from __future__ import annotations

import pytest

from pinning.planning.ledger import quiet_sharers
from tests.agent.states import EXCLUSIVE, bound, owner, state_of
from tests.pods import container


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ({"noise-policy.corepin.io/pod": "quiet", "shared-cpus.corepin.io/pod": "true"}, True),
        ({"noise-policy.corepin.io/pod": "none", "shared-cpus.corepin.io/pod": "true"}, False),
        ({"noise-policy.corepin.io/pod": "quiet"}, False),
        ({"irq-load-balancing.crio.io": "disable", "shared-cpus.corepin.io/pod": "true"}, False),
    ],
)
def test_both_annotations_are_needed(words: dict[str, str], found: bool) -> None:
    """CRI-O's annotation is about interrupts alone."""
    pod = bound("web", container("main", 2), annotations={**EXCLUSIVE, **words})
    assert quiet_sharers(state_of(pod).ledger.parts) == ({owner(pod)} if found else frozenset())
