"""Policies of a pod that each of its containers overrides."""

from __future__ import annotations

from pinning.pods.claims import read_pod
from pinning.pods.warnings import OVERRIDDEN
from tests.pods import SMT, container, pod


def test_overridden_policies_say_by_what() -> None:
    """The warning names the containers' annotations, and not the CPU policy, which is exclusive."""
    words = {SMT: "isolate", "smt-policy.corepin.io/container.main": "require"}
    (warning,) = read_pod(pod(container("main", "2"), annotations=words)).warnings
    assert warning.field == f"metadata.annotations[{SMT}]"
    assert warning.message == f"isolate has no effect: {OVERRIDDEN}"
