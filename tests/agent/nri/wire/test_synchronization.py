"""What a runtime tells of all that is there."""

from __future__ import annotations

import pytest

from agent.nri.wire import ProtocolError
from agent.nri.wire import nri_pb2 as pb
from agent.nri.wire.synchronization import BYTES_LIMIT, ENTRIES_LIMIT, Parts
from tests.agent.nri.fake_runtime import container, pod


def test_parts_are_one_in_their_order() -> None:
    """Pods and containers come in the order in which they were told."""
    parts = Parts()

    assert parts.add(pb.SynchronizeRequest(pods=[pod("b"), pod("a")], more=True).SerializeToString())
    assert not parts.add(
        pb.SynchronizeRequest(pods=[pod("c")], containers=[container("d", "b")]).SerializeToString()
    )
    assert [told.name for told in parts.whole.pods] == ["b", "a", "c"]
    assert [told.name for told in parts.whole.containers] == ["d"]


def test_what_is_not_declared_is_not_kept() -> None:
    """Variables of containers, which their users can make many, are gone when the next part comes."""
    variables = b"\x42\x04K=va" * 100_000
    told = container("c", "a").SerializeToString() + variables
    parts = Parts()

    parts.add(pb.SynchronizeEntries(containers=[told]).SerializeToString())

    assert parts.whole == pb.SynchronizeRequest(containers=[container("c", "a")])


def test_bytes_have_a_limit() -> None:
    """Parts without end are refused before they fill the memory."""
    part = pb.SynchronizeRequest(pods=[pb.PodSandbox(name="x" * 4_000_000)], more=True).SerializeToString()
    parts = Parts()
    for _ in range(BYTES_LIMIT // len(part)):
        parts.add(part)

    with pytest.raises(ProtocolError, match="more than 67108864 bytes of pods and containers"):
        parts.add(part)


def test_entries_have_a_limit() -> None:
    """Entries are counted before they are read, over all parts."""
    parts = Parts()
    parts.add(b"\x0a\x00" * (ENTRIES_LIMIT - 1) + b"\x12\x00")

    with pytest.raises(ProtocolError, match="more than 20000 pods and containers"):
        parts.add(b"\x12\x00")
