"""One connection over a real socket: deadlines, errors of handlers, and protocol errors of the runtime."""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from agent.nri.wire import WORKER_EVENTS, Limits, Reject
from agent.nri.wire import nri_pb2 as pb
from agent.nri.wire.connection import NOT_LISTED
from tests.agent.nri.fake_runtime import Gone, Plugin, Refused, container, message, pod, request
from tests.agent.nri.wire.plugins import PATIENT, SOON, Recorder, update
from tests.agent.nri.wire.serving import Served
from tests.tables import table


@pytest.fixture
def served() -> Iterator[Served]:
    """Return a connection with long deadlines."""
    served = Served()
    yield served
    served.close()


@pytest.fixture
def ready(served: Served) -> Served:
    """Return a connection that is registered, configured and synchronized."""
    served.runtime.register()
    served.runtime.configure()
    served.runtime.synchronize()
    return served


def test_plugin_registers_under_its_name(served: Served) -> None:
    """The plugin registers with its name and a two-digit index, and answers Configure with its events."""
    asked = served.runtime.register()

    assert (asked.plugin_name, asked.plugin_idx) == ("pin", "10")
    assert served.runtime.configure() == WORKER_EVENTS


def test_synchronized_is_signalled_after_the_answer(served: Served) -> None:
    """The callback for the synchronization runs after the answer with the updates was sent."""
    served.runtime.register()
    served.runtime.configure()
    served.handlers.updates = [update("a-c", "0-1")]
    assert not served.synchronized.is_set()

    updates = served.runtime.synchronize([pod("a")], [container("c", "a")], parts=3)

    assert served.synchronized.wait(60)
    assert [change.container_id for change in updates] == ["a-c"]


def test_answer_of_any_length_arrives(ready: Served) -> None:
    """An answer of hundreds of updates is split into frames that a runtime in Go can read."""
    ready.handlers.updates = [update(f"id-{number}", "0-1,4-7") for number in range(1000)]

    assert len(ready.runtime.create(pod("a"), container("c", "a")).update) == 1000


def test_request_of_any_length_arrives(ready: Served) -> None:
    """A request of almost 4 MiB is received."""
    ready.runtime.create(pod("a", annotations={"long": "x" * (4 * 2**20 - 1000)}), container("c", "a"))

    assert ready.handlers.calls[-1] == ("create", "a", "c")


def test_reject_of_a_handler_is_the_error_of_the_request(ready: Served) -> None:
    """If a handler rejects a request, the error has the handler's message, and the next request is answered."""
    ready.handlers.failure = Reject("no CPUs are free", 8)

    with pytest.raises(Refused) as refused:
        ready.runtime.create(pod("a"), container("c", "a"))

    assert (refused.value.code, refused.value.message) == (8, "no CPUs are free")
    assert ready.runtime.create(pod("a"), container("c", "a")).HasField("adjust")


def test_bug_of_a_handler_fails_its_request_alone(ready: Served, caplog: pytest.LogCaptureFixture) -> None:
    """An exception in a handler fails its request, is logged, and does not end the connection."""
    ready.handlers.failure = KeyError("c")

    with caplog.at_level(logging.ERROR), pytest.raises(Refused) as refused:
        ready.runtime.create(pod("a"), container("c", "a"))

    assert (refused.value.code, refused.value.message) == (13, "10-pin: KeyError in CreateContainer")
    assert [record.message for record in caplog.records] == ["a request of the runtime failed"]
    assert ready.runtime.create(pod("a"), container("c", "a")).HasField("adjust")


def test_answer_that_is_too_long_fails_its_request_alone(ready: Served) -> None:
    """An answer above ttrpc's limit is an error of the request and does not end the connection."""
    ready.handlers.updates = [update("x" * 5 * 2**20, "0")]

    with pytest.raises(Refused, match="ValueError in CreateContainer"):
        ready.runtime.create(pod("a"), container("c", "a"))

    ready.runtime.stop(pod("a"), container("c", "a"))


def test_unknown_method_is_unimplemented(ready: Served) -> None:
    """An unknown method is answered with code 12 and does not end the connection."""
    with pytest.raises(Refused) as refused:
        ready.runtime.call_raw("Checkpoint", b"")

    assert refused.value.code == 12
    ready.runtime.stop(pod("a"), container("c", "a"))


def test_refused_registration_ends_the_connection(served: Served) -> None:
    """The connection ends with the runtime's reason."""
    served.runtime.register(code=2, text="invalid plugin name")

    assert served.reason() == "the runtime refuses the plugin: invalid plugin name (code 2)"


def test_shutdown_is_answered_and_ends_the_connection(ready: Served) -> None:
    """Shutdown is answered, and the connection ends."""
    assert ready.runtime.call_raw("Shutdown", b"") == b""
    assert ready.reason() == "the runtime shuts down"


def test_close_after_configure_names_the_events(served: Served) -> None:
    """If a runtime disconnects after Configure and may not support the events, the reason names the events."""
    served.runtime.register()
    served.runtime.configure("cri-o", "1.34.0")
    served.runtime.close()

    assert served.reason() == "the runtime closed the connection when asked for the events 0x24a9"


def test_close_before_the_answer_to_configure_names_no_events(served: Served) -> None:
    """If a runtime timed out before the answer to Configure, the reason does not name the events, which it has not seen."""
    served.runtime.register()
    served.handlers.pause = threading.Event()
    served.runtime.send(request(1, "Configure", b""))
    served.handlers.paused.wait(60)
    served.runtime.close()
    served.handlers.pause.set()

    assert served.reason() == "the runtime closed the connection"


@pytest.mark.parametrize("parts", [1, 2], ids=["synchronized", "between-parts"])
def test_close_after_synchronization_names_no_events(served: Served, parts: int) -> None:
    """If a runtime has synchronized the plugin it accepted the events, so the reason does not name them."""
    served.runtime.register()
    served.runtime.configure()
    part = pb.SynchronizeRequest(more=parts == 2)
    served.runtime.call("Synchronize", part, pb.SynchronizeResponse)
    served.runtime.close()

    assert served.reason() == (NOT_LISTED if parts == 2 else "the runtime closed the connection")


@table(
    "sent, reason",
    {
        "connection": (struct.pack(">II", 7, 4), "a frame of the connection 7, which is not open"),
        "long-frame": (struct.pack(">II", 1, 2**31), "a frame of 2147483648 bytes"),
        "long-message": (
            struct.pack(">IIIIBB", 1, 10, 2**31, 1, 1, 0),
            "a ttrpc message of 2147483648 bytes",
        ),
        "stream-data": (message(1, 9, 3, b""), "a ttrpc message of the type 3"),
        "no-protobuf": (message(1, 9, 1, b"\xff\xff"), "2 bytes are no Request"),
        "even-stream": (message(1, 8, 1, b""), "a request on stream 8 after stream 3"),
        "old-stream": (message(1, 1, 1, b""), "a request on stream 1 after stream 3"),
        "answer": (message(2, 1, 2, b""), "a response on stream 1, which has no open request"),
        "payload": (request(9, "CreateContainer", b"\x0a\x01"), "2 bytes are no CreateContainerReq"),
        "utf-8": (request(9, "CreateContainer", b"\x0a\x04\x12\x02\xff\xfe"), "6 bytes are no Create"),
    },
)
def test_protocol_error_ends_the_connection(ready: Served, sent: bytes, reason: str) -> None:
    """After a protocol error the connection ends with the reason, and no handler is called."""
    before = len(ready.handlers.calls)
    ready.runtime.send(sent)

    assert ready.reason().startswith(reason)
    with pytest.raises(Gone):
        ready.runtime.receive()
    assert len(ready.handlers.calls) == before


def _synchronize_endlessly(runtime: Plugin) -> None:
    runtime.register()
    runtime.configure()
    while True:
        runtime.call("Synchronize", pb.SynchronizeRequest(more=True), pb.SynchronizeResponse)


def _begin(runtime: Plugin, begun: bytes) -> None:
    runtime.register()
    runtime.configure()
    runtime.synchronize()
    runtime.send(begun)


def _send_slowly(runtime: Plugin) -> None:
    runtime.register()
    runtime.send(struct.pack(">IIIIBB", 1, 10, 4 * 2**20, 1, 1, 0))
    while True:
        runtime.send(struct.pack(">II", 1, 1) + b"x")


def _read_nothing(runtime: Plugin) -> None:
    for stream in range(1, 2**31, 2):
        runtime.send(request(stream, "x" * 1000, b""))


@table(
    "limit, act, reason",
    {
        "no answer to the registration, as of older runtimes": ("register", bool, "answer the registration"),
        "no Configure after it": ("configure", Plugin.register, "configure the plugin"),
        "no end of the list": ("synchronize", _synchronize_endlessly, "synchronize the plugin"),
        "a part of a header": ("message", partial(_begin, begun=b"\0"), "finish a message"),
        "no payload": (
            "message",
            partial(_begin, begun=struct.pack(">II", 1, 4 * 2**20)),
            "finish a message",
        ),
        "bytes that never end a message": ("message", _send_slowly, "finish a message"),
        "answers that are not read": ("write", _read_nothing, "read"),
    },
)
def test_runtime_that_stops_times_out(limit: str, act: Callable[[Plugin], object], reason: str) -> None:
    """The connection ends at the deadline of the step; further bytes of one message do not extend it."""
    served = Served(PATIENT._replace(**{limit: SOON}))
    with suppress(Gone):
        act(served.runtime)

    assert served.reason() == f"the runtime did not {reason} in 0.2 s"
    served.close()


def test_idle_connection_does_not_time_out() -> None:
    """A synchronized connection without requests has no deadline."""
    served = Served(Limits(register=60, configure=60, synchronize=60, message=SOON, write=60))
    served.runtime.register()
    served.runtime.configure()
    served.runtime.synchronize()

    served._thread.join(3 * SOON)
    served.runtime.stop(pod("a"), container("c", "a"))
    served.close()


MESSAGE = 4 * 2**20 - 1000
GROWTH = 6 * MESSAGE  # a message has several copies at once, and the allocator keeps some memory
LONG = pod("a", annotations={"long": "x" * MESSAGE})


class Forgetful(Recorder):
    """Handlers that store nothing."""

    def _record(self, *_: object) -> None:
        pass


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def long_requests() -> None:
    """Send two creations of almost 4 MiB."""
    served = Served(handlers=Forgetful())
    served.runtime.register()
    served.runtime.create(LONG, container("c", "a"))
    served.runtime.create(LONG, container("c", "a"))
    served.close()


def nothing_but_entries() -> None:
    """Send a list of two million empty containers."""
    served = Served(handlers=Forgetful())
    served.runtime.register()
    served.runtime.send(request(1, "Synchronize", b"\x12\x00" * (MESSAGE // 2)))
    assert served.reason() == "more than 20000 pods and containers"
    served.close()


def breaking_off() -> None:
    """Disconnect in the middle of a long message, and between the parts of a synchronization."""
    served = Served(handlers=Forgetful())
    served.runtime.register()
    part = pb.SynchronizeRequest(pods=[LONG], more=True)
    served.runtime.call("Synchronize", part, pb.SynchronizeResponse)
    served.runtime.send(struct.pack(">II", 1, MESSAGE) + bytes(MESSAGE - 1))
    served.close()


def growth(visit: Callable[[], None]) -> int:
    """Return by how many bytes ten connections grow this process."""
    before = resident_bytes()
    for _ in range(10):
        visit()
    return resident_bytes() - before


@pytest.mark.parametrize("visit", [long_requests, nothing_but_entries, breaking_off])
def test_connections_do_not_leak_memory(visit: Callable[[], None]) -> None:
    """Ten connections with long messages need no more memory than one, except for the allocator's reserve.

    A leak would grow in every round of ten; the allocator's reserve grows in at most one of three rounds.
    """
    visit()
    assert any(growth(visit) < GROWTH for _ in range(3))
