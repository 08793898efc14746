"""Texts of `corepin why` about a ResourceClaim."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from drawing.claim_words import claim_words, resource_claim_words
from published.pod_status import Container, PodClaim

NOW = datetime(2026, 11, 20, 10, 0, 3, tzinfo=UTC)
PREPARED = "2026-11-20T10:00:00Z"


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (
            PodClaim(cpus=12, asked=11, numa_nodes=(0,), prepared=PREPARED),
            "12 CPUs (asked for 11), numa 0, prepared 3 s ago",
        ),
        (PodClaim(cpus=2, asked=0, numa_nodes=(1,)), "2 CPUs (asked for 0), numa 1, prepared"),
        (PodClaim(cpus=1, asked=1, waits=PREPARED), "1 CPU, numa not known, not prepared yet"),
        (
            PodClaim(cpus=8, numa_nodes=(0, 1), prepared="2026-11-20T09:58:03Z"),
            "8 CPUs, numa 0, 1, prepared 2 min ago",
        ),
        (PodClaim(cpus=8, prepared="2026-11-20T07:00:03Z"), "8 CPUs, numa not known, prepared 3 h ago"),
        (PodClaim(cpus=8, prepared="2026-11-10T07:00:03Z"), "8 CPUs, numa not known, prepared 10 d ago"),
        (
            PodClaim(cpus=8, prepared="2026-11-20T10:00:03Z"),
            "8 CPUs, numa not known, prepared 0 s ago",
        ),
        (PodClaim(cpus=8, prepared="2027-01-01T00:00:00Z"), "prepared at 2027-01-01T00:00:00Z"),
        (PodClaim(cpus=8, prepared="2026-11-20T10:00:00"), "prepared at 2026-11-20T10:00:00"),
        (PodClaim(cpus=8, prepared="soon"), "prepared at soon"),
    ],
)
def test_number_place_and_age_of_a_claim(claim: PodClaim, words: str) -> None:
    """A time in the future, without a zone or that is no time is shown unchanged instead of an age."""
    assert resource_claim_words(claim, NOW).endswith(words)


def test_without_the_time_of_day_the_age_is_a_time() -> None:
    """Without the present time, as on the dashboard's page, the time is shown instead of an age."""
    assert resource_claim_words(PodClaim(prepared=PREPARED), None).endswith(f"prepared at {PREPARED}")


def test_number_of_cpus_is_left_out_where_the_list_is_damaged() -> None:
    """The number of CPUs is omitted if the list is invalid, because users can write the annotation."""
    (words,) = claim_words(Container(cpus="all", claims=("a", "b"), numa_nodes=(0, 1)))
    assert words == "of claims a, b (NUMA nodes 0, 1)"
    assert not list(claim_words(Container(cpus="1")))


@pytest.mark.parametrize(
    ("container", "words"),
    [
        (Container(cpus="4", claims=("a",), numa_nodes=(1,)), "of claim a (1 CPU, NUMA node 1)"),
        (
            Container(cpus="4-5", claims=("a",), more_claims=2),
            "of claims a and 2 more (2 CPUs, NUMA nodes not known)",
        ),
    ],
)
def test_claims_of_a_container_have_number_and_place(container: Container, words: str) -> None:
    """A container's claims are listed with CPUs and NUMA node, up to a limit; an unknown node is stated as unknown."""
    assert list(claim_words(container)) == [words]
