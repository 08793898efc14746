"""The parts of a pod that rules read follow the domain's types."""

from __future__ import annotations

from typing import Any, TypedDict

import msgspec
import pytest
from hypothesis import given, settings

from pinning.pods.types import Pod
from tests.pods import CPU_MANAGER, container, pod
from tests.webhook.requests import RULES, denied, generated, request, updated
from webhook.rules.pod_parts import (
    NEW,
    NEW_WITH_TOKEN,
    STORED,
    Narrowed,
    NewPod,
    NewPodWithToken,
    StoredPod,
    part_of,
)
from webhook.rules.pods import review_changed_pod, review_template


class Entry(TypedDict, total=False):
    """An entry of a list."""

    kept: int
    unread: int


class Whole(TypedDict, total=False):
    """A type of the domain."""

    entries: list[Entry] | None
    by_name: dict[str, Entry]


def test_a_field_is_in_the_part_until_it_is_left_out() -> None:
    """Fields at any depth of a type are in the part, but for those left out and unknown ones."""
    part = part_of(Whole, {Entry: {"unread": None}})
    entry = {"kept": 1, "unread": 2, "unknown": 3}
    assert msgspec.convert({"entries": [entry], "by_name": {"a": entry}}, part) == {
        "entries": [{"kept": 1}],
        "by_name": {"a": {"kept": 1}},
    }
    assert msgspec.convert({"entries": None}, part) == {"entries": None}


@pytest.mark.parametrize("narrowed", [NEW, NEW_WITH_TOKEN, STORED], ids=["new", "new with token", "stored"])
def test_only_fields_that_there_are_can_be_left_out(narrowed: Narrowed) -> None:
    """A field that the domain renames is read under its new name, and its old one is taken off the list."""
    for kind, members in narrowed.items():
        assert members.keys() <= kind.__annotations__.keys()


@pytest.mark.parametrize(
    "part", [NewPod, NewPodWithToken, StoredPod], ids=["new", "new with token", "stored"]
)
def test_a_part_holds_a_pod_to_its_shape(part: type[Pod]) -> None:
    """A pod whose members have a wrong type is refused with the path."""
    with pytest.raises(msgspec.ValidationError, match=r"spec\.containers\[0\]\.env"):
        msgspec.convert({"spec": {"containers": [{"env": 1}]}}, part)


@given(generated, generated)
@settings(max_examples=100, deadline=None)
def test_the_part_of_a_stored_pod_decides_alone(old: Any, new: Any) -> None:
    """For any pods, the verdicts on an update and on a template equal those on the whole pods."""
    was, now = (msgspec.convert(document, StoredPod) for document in (old, new))
    assert review_changed_pod(was, now, RULES.settings) == review_changed_pod(old, new, RULES.settings)
    assert review_template(now, RULES.settings) == review_template(new, RULES.settings)


@pytest.mark.parametrize(("runtime_class", "refused"), [("kata-qemu", True), ("runc", False)])
def test_an_update_does_not_give_the_shared_set_to_a_kata_pod(runtime_class: str, refused: bool) -> None:
    """An update that adds `shared-cpus` to a running pod is refused for Kata, as it is for a new pod."""
    shared = "shared-cpus.corepin.io/pod"
    old, new = (
        pod(container("main", "2"), annotations=given, runtimeClassName=runtime_class)
        for given in ({CPU_MANAGER: "exclusive"}, {CPU_MANAGER: "exclusive", shared: "true"})
    )
    expected = [f"metadata.annotations[{shared}]"] if refused else []
    assert denied(RULES.validate(request(new))) == expected
    assert denied(updated(new, old)) == expected
