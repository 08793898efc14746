"""HTTP/2 frames of the client: what a peer may send at the edges, and how much the client sends."""

from __future__ import annotations

import struct

import pytest

from agent.http2.frames import ClientFrames, Data, Event, GoAway, Head, ProtocolError, Reset
from tests.agent.grpc_calls.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    RESET,
    SETTINGS,
    WHOLE,
    block,
    frame,
    literal,
)
from tests.tables import table

PUSH, UPDATE = 5, 8
WINDOW = 256 * 2**10
REQUEST = ((":method", "POST"), (":path", "/"))
BEGIN = frame(HEADERS, WHOLE, block((":status", "200")))
OK = frame(HEADERS, WHOLE | END, block(("grpc-status", "0")))


def asked(body: bytes = b"") -> ClientFrames:
    """Return a client that has sent a request."""
    frames = ClientFrames(WINDOW)
    frames.request(REQUEST, body)
    frames.to_send()
    return frames


def update(size: int, stream: int = 0) -> bytes:
    """Return a frame that opens a window."""
    return frame(UPDATE, 0, size.to_bytes(4), stream)


def settings(name: int, value: int) -> bytes:
    """Return settings of the peer."""
    return frame(SETTINGS, 0, struct.pack("!HI", name, value), 0)


def test_frames_in_pieces_of_one_byte_are_the_same_frames() -> None:
    """The bytes arrive in any pieces."""
    frames, events = asked(), list[Event]()
    for byte in BEGIN + frame(DATA, PADDED, b"\x01abc\x00") + OK:
        events += frames.receive(bytes([byte]))
    assert events == [
        Head({":status": "200"}, False),
        Data(memoryview(b"abc"), False),
        Head({"grpc-status": "0"}, True),
    ]


@table(
    "sent, reason",
    {
        "data-before-headers": (frame(DATA, 0, b"a"), "before the headers"),
        "data-after-the-end": (BEGIN + OK + frame(DATA, 0, b"a"), "no open stream"),
        "headers-of-no-request": (frame(HEADERS, WHOLE, b"", 2), "2 is no open stream"),
        "continuation-alone": (frame(CONTINUATION, WHOLE), "continue none"),
        "reset-of-the-future": (frame(RESET, 0, bytes(4), 3), "3 is no open stream"),
        "reset-of-the-connection": (frame(RESET, 0, bytes(4), 0), "0 is no open stream"),
        "short-reset": (frame(RESET, 0, bytes(3)), "a number of 3 bytes"),
        "push": (frame(PUSH, WHOLE, bytes(4)), "kind 5"),
        "push-on-the-connection": (frame(PUSH, WHOLE, bytes(4), 0), "kind 5"),
        "settings-of-a-stream": (frame(SETTINGS, 0), "kind 4 for stream 1"),
        "cut-settings": (frame(SETTINGS, 0, bytes(5), 0), "settings of 5 bytes"),
        "short-ping": (frame(PING, 0, bytes(7), 0), "a ping of 7 bytes"),
        "short-goaway": (frame(GOAWAY, 0, bytes(7), 0), "a number of 3 bytes"),
        "no-update": (update(0), "changes by 0 bytes"),
        "large-update": (update(2**31 - 1), "changes by 2147483647 bytes"),
        "short-content-length": (
            frame(HEADERS, WHOLE | END, block((":status", "200"), ("content-length", "3"))),
            "another length",
        ),
    },
)
def test_frames_that_break_the_protocol_are_errors(sent: bytes, reason: str) -> None:
    """The reason names the frame."""
    with pytest.raises(ProtocolError, match=reason):
        asked().receive(sent)


def test_answer_has_the_length_of_its_content_length() -> None:
    """A content-length is compared at the end."""
    begin = frame(HEADERS, WHOLE, block((":status", "200"), ("content-length", "3")))
    *_, last = asked().receive(begin + frame(DATA, END, b"abc"))
    assert last == Data(memoryview(b"abc"), True)


def test_request_may_be_reset_once() -> None:
    """A reset of an answer that has ended, as Go's server may send, means nothing."""
    reset = frame(RESET, 0, (8).to_bytes(4))
    assert asked().receive(reset + reset) == [Reset(8)]
    assert len(asked().receive(BEGIN + OK + reset)) == 2


def test_reset_of_an_earlier_request_means_nothing() -> None:
    """Only the current request has an answer to lose."""
    frames = asked()
    frames.receive(BEGIN + OK)
    frames.request(REQUEST, b"")
    assert frames.receive(frame(RESET, 0, bytes(4), 1)) == []


def test_peer_that_leaves_takes_no_request() -> None:
    """After GOAWAY a request would be lost."""
    frames = asked()
    assert frames.receive(BEGIN + OK + frame(GOAWAY, 0, struct.pack("!II", 1, 11), 0))[-1] == GoAway(11)
    assert not frames.takes(b"")
    with pytest.raises(ProtocolError, match="no further request"):
        frames.request(REQUEST, b"")


def test_settings_and_pings_are_answered_once() -> None:
    """An answer is not answered."""
    frames = asked()
    assert frames.receive(settings(1, 0) + frame(PING, 0, b"12345678", 0)) == []
    assert frames.to_send() == frame(SETTINGS, ACK, stream=0) + frame(PING, ACK, b"12345678", 0)
    frames.receive(frame(SETTINGS, ACK, stream=0) + frame(PING, ACK, bytes(8), 0))
    assert frames.to_send() == b""


@table(
    "opened, size, takes",
    {
        "first": (b"", 16384, True),
        "small-window": (settings(4, 10), 11, False),
        "enough": (settings(4, 10), 10, True),
        "of-a-stream": (update(2**31 - 1, 1), 16384, True),
    },
)
def test_request_fits_into_the_windows_of_the_peer(opened: bytes, size: int, *, takes: bool) -> None:
    """A request is one frame, so it waits for no window."""
    frames = asked()
    frames.receive(BEGIN + OK + opened)
    assert frames.takes(bytes(size)) is takes


def test_window_of_the_connection_is_used_up_and_opened() -> None:
    """Requests take room on the connection until the peer opens the window."""
    frames, body = ClientFrames(WINDOW), bytes(16384)
    for stream in (1, 3, 5):
        frames.request(REQUEST, body)
        frames.receive(frame(HEADERS, WHOLE | END, block((":status", "200")), stream))
    assert not frames.takes(body)
    frames.receive(update(1))
    assert frames.takes(body)


def test_peer_sends_no_more_than_its_window() -> None:
    """Half a window after another is opened, and none for an answer that has ended."""
    frames, piece = asked(), frame(DATA, 0, bytes(16384))
    frames.receive(BEGIN + piece * 7)
    assert frames.to_send() == b""
    frames.receive(piece)
    assert frames.to_send() == update(2**17) + update(2**17, 1)
    frames.receive(piece * 7 + frame(DATA, END, bytes(16384)))
    assert frames.to_send() == update(2**17)


def test_headers_are_remembered_by_the_peers_table() -> None:
    """A peer may send a header by its place in the table that earlier ones filled."""
    frames = asked()
    indexed = b"\x40" + literal("grpc-status", "0")[1:]
    frames.receive(frame(HEADERS, WHOLE | END, block((":status", "200")) + indexed))
    frames.request(REQUEST, b"")
    assert frames.receive(frame(HEADERS, WHOLE | END, b"\x88\xbe", 3)) == [
        Head({":status": "200", "grpc-status": "0"}, True)
    ]


def test_long_header_is_a_bug() -> None:
    """Names of methods are short."""
    with pytest.raises(ValueError, match="less than 127 are sent"):
        ClientFrames(WINDOW).request(((":path", "/" * 127),), b"")
