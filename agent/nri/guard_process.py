"""The guard's process: one NRI connection to the runtime, and a health endpoint.

It is small and has no event loop, so that it works while other parts of the node fail.
"""

from __future__ import annotations

import logging
import signal
import socket
import socketserver
import threading
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from agent.nri.guard import GUARD
from agent.nri.versions import GUARDING, has_validators
from agent.nri.wire import GUARD_EVENTS, Client

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent.nri.guard import Guard
    from agent.nri.wire import Status

ASKING: Final = 16  # open connections; a new one above the limit replaces the oldest
ASKING_SECONDS: Final = 2.0  # time limit for the bytes of a probe
LOOK_SECONDS: Final = 2.0  # between two calls of `replaced`
HEAD_LIMIT: Final = 8192  # bytes read of one HTTP request

logger = logging.getLogger(__name__)


def run(socket_path: Path, guard: Guard, listen: tuple[str, int] | None, replaced: Callable[[], str]) -> str:
    """Guard until SIGTERM or SIGINT and return "", or until `replaced` returns a text and return that."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    client = Client(socket_path, GUARD, guard, masks=(GUARD_EVENTS,), changed=Changes().log)
    health = Health(listen, lambda: obstacle(client.status)) if listen else None
    if health:
        threading.Thread(target=health.serve_forever, name="health", daemon=True).start()
        logger.info("serving", extra={"facts": {"health": "{}:{}".format(*health.server_address[:2])}})
    client.start()
    reason = ""
    while not reason and not stopped.wait(LOOK_SECONDS):
        reason = replaced()
    client.stop()
    if health:
        health.shutdown()
        health.server_close()
    logger.info("stopped, containers are created unguarded")
    return reason


def obstacle(status: Status) -> str:
    """Return why the guard is not active; empty if it is."""
    if status.is_connected and status.validates:
        return ""
    if status.is_refused:
        return f"{status.reason}: {_too_old(status.runtime)}"
    return status.reason or "not connected yet"


def _too_old(runtime: str) -> str:
    """Return why a runtime refuses the guard: without validators, or although its version should have them."""
    name = runtime or "the runtime"
    lack = "by its version it has validators, but" if has_validators(runtime) else "it has no validators:"
    return f"{name}: {lack} the guard needs {GUARDING} or later, whose NRI is 0.10 or later"


class Changes:
    """Logs when the guard becomes active, and why it is not."""

    def __init__(self) -> None:
        self._logged: str | None = None

    def log(self, status: Status) -> None:
        """Log a status unless it equals the last one logged."""
        problem = obstacle(status)
        if problem == self._logged:
            return
        self._logged = problem
        if problem:
            logger.warning("nothing is guarded", extra={"facts": {"reason": problem}})
        else:
            logger.info("guarding", extra={"facts": {"runtime": status.runtime}})


class Health(socketserver.ThreadingTCPServer):
    """Answers the kubelet's probes: /healthz, and /readyz with the reason why the guard is not active."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 32

    def __init__(
        self, listen: tuple[str, int], obstacle: Callable[[], str], *, request_seconds: float = ASKING_SECONDS
    ) -> None:
        host, port = listen
        everywhere = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 - as the flag says
        address = host or everywhere
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.obstacle = obstacle
        self.request_seconds = request_seconds
        self._slots = threading.BoundedSemaphore(ASKING)
        self._open: dict[Any, None] = {}  # connections, oldest first
        self._open_lock = threading.Lock()
        super().__init__((address, port), _Asked)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a new thread; above the limit close the oldest connection, so that silent ones delay no probe."""
        if not self._slots.acquire(blocking=False):
            with self._open_lock, suppress(StopIteration, OSError):
                next(iter(self._open)).shutdown(socket.SHUT_RDWR)
            self._slots.acquire()
        with self._open_lock:
            self._open[request] = None
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            self._ended(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, then release the slot."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._ended(request)

    def _ended(self, request: Any) -> None:
        with self._open_lock:
            del self._open[request]
        self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of slow or invalid clients."""

    def answer(self, path: str) -> tuple[HTTPStatus, str]:
        """Return the answer to one path."""
        if path == "/healthz":
            return HTTPStatus.OK, "ok"
        if path == "/readyz":
            problem = self.obstacle()
            return (HTTPStatus.SERVICE_UNAVAILABLE, problem) if problem else (HTTPStatus.OK, "ok")
        return HTTPStatus.NOT_FOUND, "/healthz or /readyz"


class _Asked(socketserver.BaseRequestHandler):
    """One HTTP request."""

    server: Health

    def handle(self) -> None:
        """Answer the first segment, which holds a whole probe, and close, so that no client keeps a connection slot."""
        self.request.settimeout(self.server.request_seconds)
        line = self.request.recv(HEAD_LIMIT).partition(b"\r\n")[0].decode("latin-1").split(" ")
        status, text = self.server.answer(line[1].partition("?")[0] if len(line) > 1 else "")
        body = f"{text}\n".encode()
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self.request.sendall(head.encode() + body)
