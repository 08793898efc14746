"""Frames of the multiplexer, and the ttrpc messages in them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.nri.wire import ProtocolError, mux, ttrpc, ttrpc_pb2


def read(*pieces: bytes) -> list[ttrpc.Request | ttrpc.Response]:
    """Return the messages in some pieces of bytes."""
    reader, found = ttrpc.MessageReader(), []
    for piece in pieces:
        reader.add(piece)
        while (message := reader.take()) is not None:
            found.append(message)
    return found


def frame(kind: int, body: bytes, *, stream: int = 1, flags: int = 0) -> bytes:
    """Return a message with this body."""
    return struct.pack(">IIBB", len(body), stream, kind, flags) + body


messages = st.one_of(
    st.builds(ttrpc.Request, st.integers(0, 2**32 - 1), st.text(), st.text(), st.binary()),
    st.builds(ttrpc.Response, st.integers(0, 2**32 - 1), st.integers(1, 16), st.text(), st.just(b"")),
    st.builds(ttrpc.Response, st.integers(0, 2**32 - 1), st.just(0), st.just(""), st.binary()),
)


def written(message: ttrpc.Request | ttrpc.Response) -> bytes:
    """Return the bytes of a message."""
    if isinstance(message, ttrpc.Request):
        return ttrpc.request(*message, timeout_seconds=2)
    if message.code:
        return ttrpc.failure(message.stream, message.code, message.message)
    return ttrpc.success(message.stream, message.payload)


@given(st.lists(messages, max_size=5), st.integers(1, 30))
def test_messages_are_read_from_any_pieces(sent: list[ttrpc.Request | ttrpc.Response], size: int) -> None:
    """Written messages are read back, however the bytes are split."""
    data = b"".join(map(written, sent))

    assert read(*(data[at : at + size] for at in range(0, len(data), size))) == sent


def test_empty_success_is_a_header() -> None:
    """A success without a payload has no body."""
    assert ttrpc.success(5, b"") == bytes.fromhex("00000000000000050200")
    assert read(ttrpc.success(5, b"")) == [ttrpc.Response(5, 0, "", b"")]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(
            struct.pack(">IIBB", 4 * 2**20 + 1, 1, 1, 0), "4194305 bytes, more than 4194304", id="long"
        ),
        pytest.param(frame(0, b""), "of the type 0", id="type-0"),
        pytest.param(frame(3, b""), "of the type 3", id="data"),
        pytest.param(frame(1, b"\xff"), "1 bytes are no Request", id="no-protobuf"),
        pytest.param(frame(1, b"\x0a\x01\xff"), "3 bytes are no Request", id="no-utf-8"),
        pytest.param(frame(2, b"\x0a\x05"), "2 bytes are no Response", id="cut-off"),
    ],
)
def test_bad_message_is_refused(data: bytes, reason: str) -> None:
    """An invalid message raises ProtocolError with the reason."""
    with pytest.raises(ProtocolError, match=reason):
        read(data)


def test_flags_and_metadata_are_ignored() -> None:
    """Flags, and metadata that a tracer adds to a request, are ignored."""
    body = ttrpc_pb2.Request(service="s", method="m", payload=b"p").SerializeToString()
    metadata = b"\x2a\x0a\x0a\x03key\x12\x03val"

    assert read(frame(1, body + metadata, flags=1)) == [ttrpc.Request(1, "s", "m", b"p")]


def test_too_long_answer_is_not_sent() -> None:
    """An answer above 4 MiB raises an error, because the runtime would end the connection."""
    with pytest.raises(ValueError, match="an answer of 4194309 bytes, more than 4194304"):
        ttrpc.success(1, bytes(4 * 2**20))


@pytest.mark.parametrize(
    ("text", "said"),
    [("\udc80 is not a string", "? is not a string"), ("x" * 10000, "x" * 4096)],
    ids=["surrogate", "long"],
)
def test_text_of_an_error_is_truncated_and_valid(text: str, said: str) -> None:
    """The text of an error is truncated, and invalid characters are replaced."""
    assert read(ttrpc.failure(1, 9, text)) == [ttrpc.Response(1, 9, said, b"")]


def test_long_text_of_the_runtime_is_truncated() -> None:
    """The error text of a runtime is truncated, so that it fills neither memory nor log."""
    body = ttrpc_pb2.Response(status=ttrpc_pb2.Status(code=2, message="x" * 10**6))

    (response,) = read(frame(2, body.SerializeToString()))

    assert isinstance(response, ttrpc.Response)
    assert len(response.message) == ttrpc.TEXT_LIMIT


def frames_of(*pieces: bytes) -> list[mux.Frame]:
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

    assert frames_of(*(data[at : at + size] for at in range(0, len(data), size))) == sent


@given(st.binary(max_size=3 * mux.FIRST_BYTES))
def test_message_is_split_as_go_reads_it(message: bytes) -> None:
    """The first frame has up to 4096 bytes, the size of the Go reader's buffer, and the second frame the rest."""
    found = frames_of(mux.frames(mux.PLUGIN, message))

    assert b"".join(frame.payload for frame in found) == message
    assert [len(frame.payload) for frame in found[:1]] == [min(len(message), 4096)][: len(message)]
    assert len(found) <= 2


def test_longest_frame_is_accepted() -> None:
    """A frame has up to 4 MiB plus a ttrpc header."""
    (frame,) = frames_of(struct.pack(">II", 1, 4 * 2**20 + 10), bytes(4 * 2**20 + 10))

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
        frames_of(struct.pack(">II", *header))


def test_partial_frame_is_kept_until_complete() -> None:
    """An incomplete frame is stored, and dropped once it was frames_of."""
    reader = mux.FrameReader()
    reader.add(struct.pack(">II", 1, 2) + b"a")

    assert reader.take() is None
    assert reader.is_partial

    reader.add(b"b")

    assert reader.take() == (1, b"ab")
    assert not reader.is_partial
