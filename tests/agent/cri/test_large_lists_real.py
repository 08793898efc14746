"""Very large annotations in the sandbox list of a real containerd."""

from __future__ import annotations

from tests.agent.cri.list_bounds import NOTES, check_bounds, cost
from tests.environments.node.containerd import Containerd

PODS = 25
ROUNDS = 3


def test_pods_of_60000_annotations_are_listed_in_little_memory(containerd: Containerd) -> None:
    """25 sandboxes with 60,000 annotations each are listed within the limits of memory and loop time."""
    for number in range(PODS):
        containerd.run_pod(f"p{number}", f"uid-{number}", NOTES)
    found = cost(containerd.socket, ROUNDS)
    assert (found["sandboxes"], found["containers"]) == (PODS, 0)
    check_bounds(found)
