"""CRI-O's annotations: what they disable in a claim, and the warnings about those that corepin does not follow."""

from __future__ import annotations

import pytest

from pinning.contract import CRIO_FOLLOWED, CRIO_UNFOLLOWED
from pinning.pods.claims import read_pod
from pinning.pods.crio import UNFOLLOWED, is_crio_key
from tests.pods import container, pod

CPU_MANAGER = "cpu-manager.corepin.io/pod"
IRQ = "irq-load-balancing.crio.io"


@pytest.mark.parametrize(
    ("annotations", "disables"),
    [
        pytest.param({IRQ: "disable"}, True, id="of the pod"),
        pytest.param({f"{IRQ}/main": "disable"}, True, id="of the container"),
        pytest.param({f"{IRQ}/other": "disable"}, False, id="of another container"),
        pytest.param({IRQ: "housekeeping"}, False, id="another word"),
        pytest.param({}, False, id="none"),
    ],
)
def test_a_claim_carries_crios_word_about_interrupts(annotations: dict[str, str], disables: bool) -> None:
    """The word about the quota stays apart from it."""
    given = {CPU_MANAGER: "exclusive", **annotations}
    (claim,) = read_pod(pod(container("main", "2"), annotations=given)).claims
    assert (claim.crio_disables_interrupts, claim.crio_disables_quota, claim.noise) == (disables, False, None)


@pytest.mark.parametrize("word", ["cpu-load-balancing", "cpu-freq-governor", "cpu-c-states"])
def test_words_that_corepin_does_not_follow_are_warned_of(word: str) -> None:
    """CRI-O's other annotations are warnings, for the pod and for containers with exclusive CPUs, each by its key."""
    key = f"{word}.crio.io"
    given = {CPU_MANAGER: "exclusive", key: "x", f"{key}/main": "x", f"{key}/other": "x", IRQ: "disable"}
    warnings = read_pod(pod(container("main", "2"), annotations=given)).warnings
    assert [(it.field, it.message) for it in warnings] == [
        (f"metadata.annotations[{named}]", UNFOLLOWED) for named in (key, f"{key}/main")
    ]


def test_pods_without_exclusive_cpus_are_not_warned_of_crios_words() -> None:
    """Without exclusive CPUs corepin does not act on CRI-O's annotations, so it does not warn about them either."""
    given = {CPU_MANAGER: "share", "cpu-c-states.crio.io": "disable"}
    assert read_pod(pod(container("main", "2"), annotations=given)).warnings == ()


@pytest.mark.parametrize("word", sorted({*CRIO_FOLLOWED, *CRIO_UNFOLLOWED}))
@pytest.mark.parametrize(
    ("key", "is_read"),
    [
        ("{}", True),
        ("{}/main", True),
        ("{}/", True),
        ("{}.example.com", False),
        ("x{}", False),
        ("example.com/{}", False),
    ],
)
def test_crios_keys_are_read_for_the_pod_and_for_containers(word: str, key: str, is_read: bool) -> None:
    """CRI-O's annotations are read by their whole key, and with the name of a container behind a slash."""
    assert is_crio_key(key.format(word)) is is_read
