"""A plugin client that reconnects, over a real unix socket."""

from __future__ import annotations

import random
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.nri.wire import GUARD_EVENTS, WORKER_EVENTS, WORKER_EVENTS_OLD, Client, Disconnected, Status
from agent.nri.wire import nri_pb2 as pb
from agent.nri.wire.client import CRASHED, FIRST_WAIT, LONGEST_NOT_LISTED_WAIT, LONGEST_WAIT, REFUSED_WAIT
from tests.agent.nri.fake_runtime import FakeRuntime, Gone, container, message, pod, request
from tests.agent.nri.wire.plugins import NAME, SOON, Changes, Recorder, created, running

CONNECTED = Status(is_connected=True, runtime="containerd v2.4.2", validates=True)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a path for the runtime's socket that is short enough for a unix socket."""
    monkeypatch.chdir(tmp_path)
    return Path("nri.sock")


def test_plugin_is_connected_when_it_is_synchronized(path: Path) -> None:
    """When the plugin is synchronized the status is connected, with the runtime and whether it calls validators."""
    changes = Changes()
    with FakeRuntime(path) as runtime, running(path, Recorder(), changed=changes) as client:
        plugin = runtime.accept()
        plugin.register()
        plugin.configure()
        assert not client.status.is_connected

        plugin.synchronize()

        assert changes.next() == CONNECTED
        assert client.status == CONNECTED


def test_plugin_waits_for_a_runtime(path: Path) -> None:
    """While the socket is missing this is reported once, and the plugin connects when it exists."""
    changes = Changes()
    with running(path, Recorder(), changed=changes):
        assert changes.next() == Status(is_connected=False, reason="nri.sock: No such file or directory")
        with FakeRuntime(path) as runtime:
            runtime.plugin()
            assert changes.next() == CONNECTED


def test_plugin_reconnects_to_a_restarted_runtime(path: Path) -> None:
    """After each restart of the runtime the plugin is synchronized again, and the status changes accordingly."""
    changes, handlers = Changes(), Recorder()
    with running(path, handlers, changed=changes):
        for name in ("a", "b", "c"):
            with FakeRuntime(path) as runtime:
                runtime.plugin([pod(name)])
                assert changes.until(is_connected=True) == CONNECTED
            assert changes.until(is_connected=False).reason == "the runtime closed the connection"

    assert [call for call in handlers.calls if call[0] == "synchronize"] == [
        ("synchronize", [name], []) for name in ("a", "b", "c")
    ]


def test_old_runtime_gets_the_old_event_mask(path: Path) -> None:
    """If a runtime closes the connection after Configure, the next one uses the event mask that every runtime accepts."""
    changes = Changes()
    with FakeRuntime(path) as runtime, running(path, Recorder(), changed=changes):
        refusing = runtime.accept()
        refusing.register()
        assert refusing.configure(version="v2.1.4") == WORKER_EVENTS
        refusing.close()

        assert runtime.plugin().events == WORKER_EVENTS_OLD
        connected = changes.until(is_connected=True)

    assert connected == Status(is_connected=True, runtime="containerd v2.4.2", validates=False)


def test_restarted_runtime_gets_the_full_event_mask(path: Path) -> None:
    """The old event mask is used for one connection only, because the restarted runtime may be newer."""
    changes = Changes()
    with running(path, Recorder(), changed=changes):
        with FakeRuntime(path) as old:
            refusing = old.accept()
            refusing.register()
            refusing.configure(version="v2.1.4")
            refusing.close()
            old.plugin()
            changes.until(is_connected=True)
        with FakeRuntime(path) as new:
            assert new.plugin().events == WORKER_EVENTS


def test_runtime_killed_after_configure_gets_the_full_event_mask(path: Path) -> None:
    """If the runtime was killed after Configure, the next connection still uses the full mask."""
    changes = Changes()
    with running(path, Recorder(), changed=changes):
        with FakeRuntime(path) as killed:
            plugin = killed.accept()
            plugin.register()
            plugin.configure("cri-o", "1.34.0")
        while "when asked for the events" not in changes.next().reason:
            pass
        assert changes.next().reason == "nri.sock: Connection refused"
        with FakeRuntime(path) as new:
            assert new.plugin().events == WORKER_EVENTS


def test_refused_event_mask_is_in_the_status(path: Path) -> None:
    """A plugin that has only one event mask reports the refused events and retries."""
    changes = Changes()
    client = Client(path, NAME, Recorder(), masks=(GUARD_EVENTS,), changed=changes)
    with FakeRuntime(path) as runtime:
        client.start()
        for _ in range(2):
            plugin = runtime.accept()
            plugin.register()
            assert plugin.configure("cri-o", "1.34.0") == GUARD_EVENTS
            plugin.close()
        client.stop()

    status = changes.next()
    assert status.reason == "the runtime closed the connection when asked for the events 0x2000"
    assert (status.is_refused, status.runtime) == (True, "cri-o 1.34.0")


def test_refused_event_mask_is_retried_rarely(path: Path) -> None:
    """After a refused mask the client retries rarely, and more often once the runtime has ended."""
    random.seed(1)
    client = Client(path, NAME, Recorder(), masks=(GUARD_EVENTS,))
    with FakeRuntime(path) as runtime:
        attempt = Thread(target=client._attempt, args=(GUARD_EVENTS,))
        attempt.start()
        plugin = runtime.accept()
        plugin.register()
        plugin.configure("cri-o", "1.34.0")
        plugin.close()
        attempt.join()
        assert max(client._wait() for _ in range(20)) > REFUSED_WAIT / 2
    client._attempt(GUARD_EVENTS)
    assert client._wait() <= LONGEST_WAIT


@pytest.mark.parametrize("part", [False, True], ids=["before", "after the first part"])
def test_runtime_that_fails_to_list_keeps_the_mask(path: Path, part: bool) -> None:
    """If a containerd that supports all events closes the connection, the cause is a failed list and not the mask."""
    client = Client(path, NAME, Recorder())
    with FakeRuntime(path) as runtime:
        attempt(client, runtime, part=part)
        status = client._disconnected("")
        assert client._mask == 0
        assert status.is_not_listed
        assert "delete the pods with the largest environments" in status.reason
        assert CRASHED not in status.reason


def test_retries_after_a_failed_list_back_off(path: Path) -> None:
    """After a failed list the delay doubles from a few seconds to a minute."""
    random.seed(1)
    client = Client(path, NAME, Recorder())
    waits = []
    with FakeRuntime(path) as runtime:
        for _ in range(6):
            attempt(client, runtime)
            waits.append(client._backoff)
            assert client._wait() >= client._backoff / 2
    assert waits == [4, 8, 16, 32, 60, 60]


def test_retry_after_a_crash_waits_a_minute(path: Path) -> None:
    """If the runtime crashes during the list, the client waits a minute, so that it does not crash it again."""
    client = Client(path, NAME, Recorder())
    with FakeRuntime(path) as runtime:
        serving = Thread(target=client._attempt, args=(WORKER_EVENTS,))
        serving.start()
        plugin = runtime.accept()
        plugin.register()
        plugin.configure()
    serving.join()
    assert client._backoff == LONGEST_NOT_LISTED_WAIT
    assert client._disconnected("").reason.endswith(f"({CRASHED})")
    gone = client._disconnected(client._attempt(WORKER_EVENTS))
    assert gone.is_not_listed
    assert CRASHED in gone.reason
    assert client._wait() >= LONGEST_NOT_LISTED_WAIT / 2


def test_refusal_of_both_masks_is_a_failed_list(path: Path) -> None:
    """If a runtime refuses even the old mask, the cause is a failed list, and retries are delayed."""
    client = Client(path, NAME, Recorder())
    with FakeRuntime(path) as runtime:
        attempt(client, runtime, ("cri-o", "1.34.0"))
        assert not client._disconnected("refused").is_not_listed
        attempt(client, runtime, ("cri-o", "1.34.0"), WORKER_EVENTS_OLD)
        attempt(client, runtime, ("cri-o", "1.34.0"))
        status = client._disconnected("refused")
        assert "largest environments" in status.reason
        assert client._wait() >= client._backoff / 2


def test_synchronization_resets_the_backoff(path: Path) -> None:
    """After a synchronization the next disconnect counts as an ordinary one, with a short delay."""
    client = Client(path, NAME, Recorder())
    with FakeRuntime(path) as runtime:
        attempt(client, runtime)
        serving = Thread(target=client._attempt, args=(WORKER_EVENTS,))
        serving.start()
        runtime.plugin().close()
        serving.join()
    assert client._disconnected("closed") == Status(is_connected=False, reason="closed")
    assert client._wait() <= LONGEST_WAIT


def attempt(
    client: Client,
    runtime: FakeRuntime,
    version: tuple[str, str] = ("containerd", "v2.4.2"),
    events: int = WORKER_EVENTS,
    *,
    part: bool = False,
) -> None:
    """Let a client connect once to a runtime that closes the connection before the list is complete."""
    serving = Thread(target=client._attempt, args=(events,))
    serving.start()
    plugin = runtime.accept()
    plugin.register()
    plugin.configure(*version)
    if part:
        more = pb.SynchronizeRequest(pods=[pod("a")], more=True)
        assert plugin.call("Synchronize", more, pb.SynchronizeResponse).more
    was_unlisted = client._unlisted
    plugin.close()
    if part or version[0] == "containerd" or events == WORKER_EVENTS_OLD:
        runtime.accept().close()  # by this the client detects that the runtime still runs
        serving.join()
        assert client._unlisted == was_unlisted + 1
    serving.join()


def test_reconnects_back_off_with_jitter() -> None:
    """The delays before reconnects begin short, grow to a limit, and have jitter."""
    random.seed(1)
    client = Client("nowhere", NAME, Recorder())

    waits = [client._wait() for _ in range(12)]

    assert FIRST_WAIT / 2 <= waits[0] <= FIRST_WAIT
    assert all(LONGEST_WAIT / 2 <= wait <= LONGEST_WAIT for wait in waits[-5:])
    assert len(set(waits)) == len(waits)


@pytest.mark.parametrize("step", ["nowhere", "accepted", "registered", "synchronized"])
def test_stop_ends_the_thread(path: Path, step: str) -> None:
    """At any stage of the connection `stop` closes it and ends the thread."""
    changes, handlers = Changes(), Recorder()
    with FakeRuntime(path if step != "nowhere" else Path("other.sock")) as runtime:
        client = Client(path, NAME, handlers, changed=changes)
        client.start()
        if step == "nowhere":
            changes.next()
        else:
            plugin = runtime.accept()
            if step != "accepted":
                plugin.register()
            if step == "synchronized":
                plugin.configure()
                plugin.synchronize()
                changes.until(is_connected=True)

        client.stop()

    assert not client._thread.is_alive()
    assert client.status == Status(is_connected=False, reason="stopped")


def test_stop_answers_the_request_in_progress(path: Path) -> None:
    """`stop` waits for the answer to a running creation, because otherwise the container would start unadjusted."""
    handlers = Recorder()
    with FakeRuntime(path) as runtime, running(path, handlers) as client:
        plugin = runtime.plugin()
        handlers.pause = threading.Event()
        with ThreadPoolExecutor() as pool:
            creating = pool.submit(plugin.create, pod("a"), container("c", "a"))
            handlers.paused.wait(60)
            stopping = pool.submit(client.stop)
            client._stopping.wait(60)
            handlers.pause.wait(SOON)  # no event shows that its socket was shut down
            handlers.pause.set()
            stopping.result()
            assert creating.result() == created("2-3")
        plugin.wait_gone()


def test_stop_while_it_connects_ends_the_connection(path: Path) -> None:
    """If a connection is established after `stop`, it is closed."""
    client = Client(path, NAME, Recorder())
    client.stop()

    with (
        FakeRuntime(path),
        socket.socket(socket.AF_UNIX) as stream,
        pytest.raises(Disconnected, match="stopped"),
    ):
        client._connect(stream)


def test_client_that_never_started_can_be_stopped() -> None:
    """`stop` can be called on a client that was never started."""
    client = Client("nowhere", NAME, Recorder())

    client.stop()

    assert client.status == Status(is_connected=False, reason="stopped")


def test_failing_status_callback_does_not_end_the_client(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception in the callback is logged, and the client continues."""

    def fail(_: Status) -> None:
        raise RuntimeError("Event loop is closed")

    client = Client(path, NAME, Recorder(), changed=fail)
    with FakeRuntime(path) as runtime:
        client.start()
        runtime.plugin().stop(pod("a"), container("c", "a"))
        client.stop()

    assert [record.message for record in caplog.records] == [
        "a change of the connection could not be handled"
    ]


def test_invalid_socket_path_does_not_end_the_client(caplog: pytest.LogCaptureFixture) -> None:
    """An invalid path is reported as the reason, and the thread continues."""
    changes = Changes()
    client = Client("\ud800", NAME, Recorder(), changed=changes)
    client.start()

    assert changes.next().reason.startswith("UnicodeEncodeError: ")
    client.stop()
    assert caplog.records[0].message == "the connection to the runtime crashed"


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_client_survives_any_bytes_of_a_runtime(path: Path, data: st.DataObject) -> None:
    """After any bytes from a runtime the client reconnects in the same thread."""
    wrong = data.draw(
        st.one_of(st.binary(max_size=100), st.builds(_damaged, st.integers(0, 10**6), st.integers(1, 255)))
    )
    changes = Changes()
    with FakeRuntime(path) as runtime, running(path, Recorder(), changed=changes) as client:
        plugin = runtime.plugin() if data.draw(st.booleans()) else runtime.accept()
        with suppress(Gone, OSError):  # the client may already have disconnected
            plugin.send(wrong)
            plugin.socket.shutdown(socket.SHUT_WR)
        plugin.wait_gone()
        plugin.close()

        runtime.plugin().stop(pod("a"), container("c", "a"))
        assert client._thread.is_alive()


def _damaged(at: int, by: int) -> bytes:
    """Return the start of a valid conversation with one wrong byte."""
    said = bytearray(
        message(2, 1, 2, b"") + request(1, "Configure", b"\x12\x01c") + request(3, "Synchronize", b"")
    )
    said[at % len(said)] ^= by
    return bytes(said)
