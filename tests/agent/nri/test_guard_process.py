"""The guard as a process: its probes, its log, and its exit."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from agent.nri.guard import Guard
from agent.nri.guard_process import ASKING, Changes, Health, obstacle, run
from agent.nri.wire import Status

GUARDING = Status(is_connected=True, runtime="containerd v2.2.0", validates=True)
OLD = Status(
    is_connected=False, runtime="cri-o 1.33.5", reason="the runtime closed the connection", is_refused=True
)
REASON = "the runtime closed the connection: {}: {} the guard needs containerd 2.2 or CRI-O 1.34 or later, whose NRI is 0.10 or later"
AWAY = Status(is_connected=False, reason="/var/run/nri/nri.sock: No such file or directory")


@contextmanager
def serving(health: Health) -> Iterator[str]:
    """Serve the probes and yield their URL."""
    thread = threading.Thread(target=health.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{health.server_address[1]}"
    finally:
        health.shutdown()
        health.server_close()
        thread.join()


def connected(health: Health) -> socket.socket:
    """Return an open connection without a request."""
    return socket.create_connection(("127.0.0.1", health.server_address[1]))


def asked(url: str) -> tuple[int, str]:
    """Return status and text of an answer."""
    try:
        with urlopen(url) as response:  # noqa: S310 - of this test
            return response.status, response.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize(
    ("path", "problem", "status", "text"),
    [
        pytest.param("/healthz", "away", HTTPStatus.OK, "ok\n", id="alive, whatever the runtime does"),
        pytest.param("/readyz", "", HTTPStatus.OK, "ok\n", id="guarding"),
        pytest.param("/readyz?verbose", "away", HTTPStatus.SERVICE_UNAVAILABLE, "away\n", id="not guarding"),
        pytest.param("/metrics", "", HTTPStatus.NOT_FOUND, "/healthz or /readyz\n", id="unknown"),
    ],
)
def test_probes_are_answered(path: str, problem: str, status: HTTPStatus, text: str) -> None:
    """The liveness probe always succeeds; the readiness probe fails with the reason."""
    with serving(Health(("127.0.0.1", 0), lambda: problem)) as address:
        assert asked(address + path) == (status, text)


def test_silent_connections_time_out() -> None:
    """Connections without a request are closed after a timeout, so that a full server answers the next request."""
    health = Health(("127.0.0.1", 0), str, request_seconds=0.05)
    with serving(health) as address:
        silent = [connected(health) for _ in range(ASKING)]
        try:
            assert asked(f"{address}/healthz") == (HTTPStatus.OK, "ok\n")
        finally:
            for connection in silent:
                connection.close()


def test_garbled_requests_are_answered() -> None:
    """A request line without a path gets the status 404."""
    health = Health(("127.0.0.1", 0), str)
    with serving(health), closing(connected(health)) as connection:
        connection.sendall(b"\xff\xfe\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 404 ")


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        pytest.param(GUARDING, "", id="guarding"),
        pytest.param(AWAY, AWAY.reason, id="away"),
        pytest.param(Status(is_connected=False), "not connected yet", id="before the first attempt"),
        pytest.param(OLD, REASON.format("cri-o 1.33.5", "it has no validators:"), id="an older runtime"),
        pytest.param(
            replace(OLD, runtime="cri-o 1.34.0"),
            REASON.format("cri-o 1.34.0", "by its version it has validators, but"),
            id="a build of that version with an older NRI",
        ),
        pytest.param(
            replace(OLD, runtime=""), REASON.format("the runtime", "it has no validators:"), id="no name"
        ),
    ],
)
def test_obstacle_is_the_reason_of_the_connection(status: Status, problem: str) -> None:
    """If the runtime is not connected, the reason of the readiness probe names the runtime and the remedy."""
    assert obstacle(status) == problem


def test_each_change_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Losing and regaining the connection are each logged once."""
    caplog.set_level(logging.INFO)
    changes = Changes()
    for status in (AWAY, AWAY, GUARDING, GUARDING, AWAY):
        changes.log(status)
    assert [record.getMessage() for record in caplog.records] == [
        "nothing is guarded",
        "guarding",
        "nothing is guarded",
    ]


def test_guard_exits_when_the_kubelets_state_file_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard exits when the kubelet replaces its state file, so that its restarted container sees the new file."""
    monkeypatch.setattr("agent.nri.guard_process.LOOK_SECONDS", 0.001)
    monkeypatch.setattr("signal.signal", lambda *_: None)  # keeps the handlers of the test run
    reasons = iter(("", "", "cpu_manager_state: replaced"))
    guard = Guard(frozenset(), lambda: False)

    assert run(tmp_path / "nri.sock", guard, None, lambda: next(reasons)) == "cpu_manager_state: replaced"
