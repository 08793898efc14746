"""Frames of the multiplexer."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.nri.wire import ProtocolError, mux


def read(*pieces: bytes) -> list[mux.Frame]:
    """Return the frames in some pieces of bytes."""
    reader, found = mux.FrameReader(), []
    for piece in pieces:
        reader.add(piece)
        while (frame := reader.take()) is not None:
            found.append(frame)
    return found


@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40))), st.integers(1, 30))
def test_frames_are_read_from_any_pieces(sent: list[tuple[int, bytes]], size: int) -> None:
    """The frames are the same however their bytes are split, and no byte remains."""
    data = b"".join(struct.pack(">II", connection, len(payload)) + payload for connection, payload in sent)

    assert read(*(data[at : at + size] for at in range(0, len(data), size))) == sent


@given(st.binary(max_size=3 * mux.FIRST_BYTES))
def test_message_is_split_as_go_reads_it(message: bytes) -> None:
    """The first frame has up to 4096 bytes, the size of the Go reader's buffer, and the second frame the rest."""
    found = read(mux.frames(mux.PLUGIN, message))

    assert b"".join(frame.payload for frame in found) == message
    assert [len(frame.payload) for frame in found[:1]] == [min(len(message), 4096)][: len(message)]
    assert len(found) <= 2


def test_longest_frame_is_accepted() -> None:
    """A frame has up to 4 MiB plus a ttrpc header."""
    (frame,) = read(struct.pack(">II", 1, 4 * 2**20 + 10), bytes(4 * 2**20 + 10))

    assert len(frame.payload) == mux.PAYLOAD_LIMIT


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        pytest.param((1, 4 * 2**20 + 11), "a frame of 4194315 bytes, more than 4194314", id="too-long"),
        pytest.param((1, 2**32 - 1), "a frame of 4294967295 bytes", id="longest"),
        pytest.param((0, 4), "the connection 0, which is not open", id="reserved"),
        pytest.param((3, 4), "the connection 3, which is not open", id="unknown"),
    ],
)
def test_bad_header_is_refused_at_once(header: tuple[int, int], reason: str) -> None:
    """A header beyond the limits is refused before any payload has arrived."""
    with pytest.raises(ProtocolError, match=reason):
        read(struct.pack(">II", *header))


def test_partial_frame_is_kept_until_complete() -> None:
    """An incomplete frame is stored, and dropped once it was read."""
    reader = mux.FrameReader()
    reader.add(struct.pack(">II", 1, 2) + b"a")

    assert reader.take() is None
    assert reader.is_partial

    reader.add(b"b")

    assert reader.take() == (1, b"ab")
    assert not reader.is_partial
