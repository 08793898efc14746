"""Texts about the number of CPUs that are free beside devices."""

from __future__ import annotations

from drawing.policy_words import LONGEST_COUNTED, MOST_COUNTED, near_words
from published.node_pools import NearCPUs


def test_free_cpus_are_listed_by_resource() -> None:
    """Each resource has its free CPUs, and the published number if it is known; the list is empty if none are counted."""
    near = {"near.corepin.io/a.b": NearCPUs(free=6, published=40), "near.corepin.io/c.d": NearCPUs()}
    first = "free beside the next device: 6 of 40 CPUs (near.corepin.io/a.b), 0 CPUs (near.corepin.io/c.d)"
    assert near_words(near) == first
    assert near_words(near, 3) == f"{first} and of 3 more resources"
    assert near_words({}, 3) == ""


def test_names_and_resources_are_bounded() -> None:
    """An annotation may have any number of names of any length."""
    near = {f"{number:03}{'x' * 300}": NearCPUs(free=1) for number in range(MOST_COUNTED + 5)}
    text = near_words(near, 1)
    assert text.endswith(" and of 6 more resources")
    assert len(text) < (MOST_COUNTED + 1) * (LONGEST_COUNTED + 20)
