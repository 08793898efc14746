"""The guard as a process: it registers, holds back, says how it is, and leaves nothing behind."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http import HTTPStatus
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from agent.nri.guard import Guard
from agent.nri.guard_process import ASKING, Changes, Health, obstacle, run
from agent.nri.wire import Status

GUARDING = Status(is_connected=True, runtime="containerd v2.2.0", validates=True)
AWAY = Status(is_connected=False, reason="/var/run/nri/nri.sock: No such file or directory")


@contextmanager
def serving(health: Health) -> Iterator[str]:
    """Yield the address of one that answers."""
    thread = threading.Thread(target=health.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{health.server_address[1]}"
    finally:
        health.shutdown()
        health.server_close()
        thread.join()


def connected(health: Health) -> socket.socket:
    """Return a connection on which nothing was said yet."""
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
    """It is ready while it guards, and says why it does not."""
    with serving(Health(("127.0.0.1", 0), lambda: problem)) as address:
        assert asked(address + path) == (status, text)


def test_who_says_nothing_holds_up_nobody_for_long() -> None:
    """As many silent connections as are answered at once end by themselves, and the next caller is answered."""
    health = Health(("127.0.0.1", 0), str, request_seconds=0.05)
    with serving(health) as address:
        silent = [connected(health) for _ in range(ASKING)]
        try:
            assert asked(f"{address}/healthz") == (HTTPStatus.OK, "ok\n")
        finally:
            for connection in silent:
                connection.close()


def test_garbled_requests_are_answered() -> None:
    """A line without a path is one that nothing is found at."""
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
    ],
)
def test_what_stands_in_the_way(status: Status, problem: str) -> None:
    """The connection's own reason."""
    assert obstacle(status) == problem


def test_each_change_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """As a warning with the reason when nothing is guarded any more, and that it is again."""
    caplog.set_level(logging.INFO)
    changes = Changes()
    for status in (AWAY, AWAY, GUARDING, GUARDING, AWAY):
        changes.tell(status)
    assert [record.getMessage() for record in caplog.records] == [
        "nothing is guarded",
        "guarding",
        "nothing is guarded",
    ]


def test_it_ends_when_the_kubelet_s_policy_is_not_known_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It returns which file was replaced, and its container is started again with the new one."""
    monkeypatch.setattr("agent.nri.guard_process.LOOK_SECONDS", 0.001)
    monkeypatch.setattr("signal.signal", lambda *_: None)  # those of the tests stay
    reasons = iter(("", "", "cpu_manager_state: replaced"))
    guard = Guard(frozenset(), lambda: False)

    assert run(tmp_path / "nri.sock", guard, None, lambda: next(reasons)) == "cpu_manager_state: replaced"
