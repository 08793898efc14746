"""Annotations of a tenant's size in a real containerd's list of sandboxes."""

from __future__ import annotations

from tests.agent.containerd import Containerd
from tests.agent.cri.list_bounds import NOTES, check_bounds, cost

PODS = 25
ROUNDS = 3


def test_pods_of_60000_annotations_are_listed_in_little_memory(containerd: Containerd) -> None:
    """25 sandboxes of 60,000 annotations are all listed, below 100 MiB, and no turn takes 50 ms."""
    for number in range(PODS):
        containerd.run_pod(f"p{number}", f"uid-{number}", NOTES)
    found = cost(containerd.socket, ROUNDS)
    assert (found["sandboxes"], found["containers"]) == (PODS, 0)
    check_bounds(found)
