"""The list of pods and containers in Synchronize."""

from __future__ import annotations

import pytest

from agent.nri.wire import ProtocolError
from agent.nri.wire import nri_pb2 as pb
from agent.nri.wire.synchronization import ENTRIES_LIMIT, LETTERS_LIMIT, Parts
from tests.agent.nri.fake_runtime import container, pod


def test_parts_are_joined_in_order() -> None:
    """Pods and containers keep the order in which they arrive over all parts."""
    parts = Parts()

    assert parts.add(pb.SynchronizeRequest(pods=[pod("b"), pod("a")], more=True).SerializeToString())
    assert not parts.add(
        pb.SynchronizeRequest(pods=[pod("c")], containers=[container("d", "b")]).SerializeToString()
    )
    assert [entry.name for entry in parts.pods] == ["b", "a", "c"]
    assert [entry.name for entry in parts.containers] == ["d"]


def test_undeclared_fields_are_not_kept() -> None:
    """Annotations and variables of large pods are not kept after their part was read."""
    variables = b"\x42\x04K=va" * 200_000
    crowded = pod("a", annotations={f"k{number}": "" for number in range(60_000)})
    entry = container("c", "a").SerializeToString() + variables
    parts = Parts()

    parts.add(
        pb.SynchronizeEntries(pods=[crowded.SerializeToString()], containers=[entry]).SerializeToString()
    )

    assert [len(kept.SerializeToString()) < 100 for kept in (*parts.pods, *parts.containers)] == [True] * 2
    assert parts.containers[0].pod_sandbox_id == "sandbox-a"


def test_size_of_names_is_limited() -> None:
    """Names and ids above the limit are refused before they are stored."""
    part = pb.SynchronizeRequest(pods=[pb.PodSandbox(name="x" * 4_000_000)], more=True).SerializeToString()
    parts = Parts()
    for _ in range(LETTERS_LIMIT // len(part)):
        parts.add(part)

    with pytest.raises(ProtocolError, match="more than 8388608 characters in names and ids"):
        parts.add(part)


def test_number_of_entries_is_limited() -> None:
    """Entries of all parts are counted before they are parsed."""
    parts = Parts()
    parts.add(b"\x0a\x00" * (ENTRIES_LIMIT - 1) + b"\x12\x00")

    with pytest.raises(ProtocolError, match="more than 20000 pods and containers"):
        parts.add(b"\x12\x00")
