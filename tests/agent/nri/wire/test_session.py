"""Both directions of a connection as bytes, without a socket."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.nri.wire import ProtocolError, mux, ttrpc
from agent.nri.wire import nri_pb2 as pb
from agent.nri.wire.session import Session
from agent.nri.wire.synchronization import ENTRIES_LIMIT, LETTERS_LIMIT, Parts
from tests.agent.nri.fake_runtime import container, message, pod, request
from tests.agent.nri.wire.plugins import created, update

REGISTER = (
    "00000002000000490000003f0000000101000a1c6e72692e706b672e6170692e7631616c706861312e52756e74696d65"
    "120e5265676973746572506c7567696e1a090a0370696e120231302080e497d012"
)


def taken(session: Session, data: bytes) -> list[ttrpc.Request | ttrpc.Response]:
    """Return the messages that these bytes contain."""
    session.add(data)
    found = []
    while (said := session.take()) is not None:
        found.append(said)
    return found


def refusal(session: Session, data: bytes) -> str | None:
    """Return the reason why these bytes are refused, or None."""
    try:
        taken(session, data)
    except ProtocolError as error:
        return str(error)
    return None


def registered() -> Session:
    """Return a session that waits for the answer to its first call."""
    session = Session()
    session.call("s", "RegisterPlugin", b"", 5)
    return session


def test_registration_has_the_bytes_of_the_go_plugin() -> None:
    """The first call has exactly the bytes that a real runtime accepted."""
    asked = pb.RegisterPluginRequest(plugin_name="pin", plugin_idx="10").SerializeToString()

    assert Session().call("nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin", asked, 5).hex() == REGISTER


def test_answer_to_the_registration_is_read() -> None:
    """The empty answer of a real runtime counts as success."""
    live = bytes.fromhex("000000020000000a00000000000000010200")

    assert taken(registered(), live) == [ttrpc.Response(1, 0, "", b"")]


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        pytest.param(
            Session().answer(1, pb.ConfigureResponse(events=0x6AF).SerializeToString()),
            "000000010000000f00000005000000010200120310af0d",
            id="configure",
        ),
        pytest.param(
            Session().answer(5, created("2-3", update("c0", "0-1,4-7")).SerializeToString()),
            "000000010000002e0000002400000005020012220a0b3209120712053203322d3312130a026330120d0a0b12093207302d312c342d37",
            id="create",
        ),
        pytest.param(
            Session().refuse(7, 9, "no CPUs"),
            "00000001000000170000000d0000000702000a0b080912076e6f2043505573",
            id="error",
        ),
    ],
)
def test_answers_have_the_bytes_of_the_go_plugin(sent: bytes, expected: str) -> None:
    """Each answer has exactly the bytes that a real runtime accepted."""
    assert sent.hex() == expected


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(request(2, "M", b""), "on stream 2 after stream -1", id="even"),
        pytest.param(request(0, "M", b""), "on stream 0 after stream -1", id="zero"),
        pytest.param(request(5, "M", b"") + request(5, "M", b""), "stream 5 after stream 5", id="twice"),
        pytest.param(request(5, "M", b"") + request(3, "M", b""), "stream 3 after stream 5", id="backwards"),
        pytest.param(message(mux.RUNTIME, 1, 1, b""), "for responses only", id="call-on-2"),
        pytest.param(message(mux.PLUGIN, 1, 2, b""), "has no open request", id="answer-on-1"),
        pytest.param(message(mux.RUNTIME, 3, 2, b""), "stream 3, which has no open", id="other-stream"),
        pytest.param(message(mux.RUNTIME, 1, 2, b"") * 2, "stream 1, which has no open", id="answered-twice"),
    ],
)
def test_message_out_of_order_is_refused(data: bytes, reason: str) -> None:
    """Stream ids must increase, and only open calls can be answered."""
    with pytest.raises(ProtocolError, match=reason):
        taken(registered(), data)


def test_message_is_joined_from_many_frames() -> None:
    """A message in frames of one byte, mixed with frames of the other connection, is one message."""
    call = request(1, "M", b"payload")[8:]
    answer = message(mux.RUNTIME, 1, 2, b"")
    frames = [struct.pack(">II", 1, 1) + bytes([byte]) for byte in call]

    assert taken(registered(), b"".join([*frames[:9], answer, *frames[9:]])) == [
        ttrpc.Response(1, 0, "", b""),
        ttrpc.Request(1, "nri.pkg.api.v1alpha1.Plugin", "M", b"payload"),
    ]


@given(st.lists(st.binary(max_size=60), max_size=10))
def test_any_bytes_are_messages_or_an_error(pieces: list[bytes]) -> None:
    """Any bytes are parsed, buffered, or refused with a reason."""
    session = registered()

    assert all(refusal(session, piece) != "" for piece in pieces)


@given(st.data())
def test_damaged_conversation_is_messages_or_an_error(data: st.DataObject) -> None:
    """One wrong byte in a conversation either changes a message or ends the connection, and does not crash the plugin."""
    said = bytearray(
        message(mux.RUNTIME, 1, 2, b"") + request(1, "Configure", b"\x12\x01c") + request(3, "M", b"")
    )
    said[data.draw(st.integers(0, len(said) - 1))] = data.draw(st.integers(0, 255))

    assert refusal(registered(), bytes(said)) != ""


def test_memory_is_released_after_long_messages() -> None:
    """After many messages of 4 MiB the memory is released, and only a few are held at once."""
    session, payload = Session(), bytes(4 * 2**20 - 100)
    tracemalloc.start()
    try:
        for stream in range(1, 21, 2):
            assert len(taken(session, request(stream, "M", payload))) == 1
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert held < len(payload) / 10
    assert peak < 10 * len(payload)


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
