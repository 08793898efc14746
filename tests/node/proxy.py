"""A proxy between the agent and the API server that counts every request, and fails on demand."""

from __future__ import annotations

import socket
import socketserver
import ssl
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.environments.server.daemon import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

CUT: Final = 0  # used instead of an HTTP status if there is no answer
_BODY: Final = b'{"kind": "Status", "message": "told to"}'


@dataclass(frozen=True, slots=True)
class Request:
    """One request of the agent."""

    when: float
    method: str
    path: str
    failed_with: int | None
    body: bytes


class Proxy(socketserver.ThreadingTCPServer):
    """Speaks plain HTTP with the agent and TLS with the API server, one request per connection."""

    daemon_threads = True
    allow_reuse_address = True
    block_on_close = False

    def __init__(self, port: int, authority: str) -> None:
        self.requests: list[Request] = []
        self.failure: int | None = None
        self.delay = 0.0  # seconds, before a request is passed on
        self.upstream = port
        self.tls = ssl.create_default_context(cafile=authority)
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", free_port()), _Handler)

    @property
    def url(self) -> str:
        """The proxy's URL for the agent."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    @contextmanager
    def failing(self, status: int) -> Iterator[None]:
        """Answer every request with `status`, or not at all for CUT; open connections break at the start."""
        self.failure = status
        self.break_all()
        try:
            yield
        finally:
            self.failure = None

    @contextmanager
    def slow(self, seconds: float) -> Iterator[None]:
        """Delay every request by some seconds; open connections break at the start."""
        self.delay = seconds
        self.break_all()
        try:
            yield
        finally:
            self.delay = 0.0

    @contextmanager
    def counting(self) -> Iterator[list[Request]]:
        """Give a list that holds the requests of the block after it."""
        first, recorded = len(self.requests), list[Request]()
        yield recorded
        recorded += self.requests[first:]

    @contextmanager
    def holding(self, *connections: socket.socket) -> Iterator[None]:
        """Have connections that `break_all` breaks."""
        with self._lock:
            self._open.update(connections)
        try:
            yield
        finally:
            with self._lock:
                self._open.difference_update(connections)

    def break_all(self) -> None:
        """Break every open connection."""
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class _Handler(socketserver.StreamRequestHandler):
    """Serves one connection."""

    server: Proxy

    def handle(self) -> None:
        """Answer one request."""
        with suppress(OSError):
            line, fields, body = self._read()
            failure = self.server.failure
            method, path, _ = line.decode().split(" ", 2)
            self.server.requests.append(Request(time.monotonic(), method, path, failure, body))
            time.sleep(self.server.delay)
            if failure is None:
                self._pass_on(line, fields, body)
            elif failure != CUT:
                head = (
                    f"HTTP/1.1 {failure} told to\r\nContent-Length: {len(_BODY)}\r\nConnection: close\r\n\r\n"
                )
                self.wfile.write(head.encode() + _BODY)

    def _read(self) -> tuple[bytes, list[bytes], bytes]:
        """Return request line, header fields and body."""
        line = self.rfile.readline()
        if not line:
            raise ConnectionResetError
        fields = list(iter(self.rfile.readline, b"\r\n"))
        lengths = [
            int(field.split(b":")[1]) for field in fields if field.lower().startswith(b"content-length:")
        ]
        return line, fields, self.rfile.read(sum(lengths))

    def _pass_on(self, line: bytes, fields: list[bytes], body: bytes) -> None:
        kept = [field for field in fields if not field.lower().startswith(b"connection:")]
        plain = socket.create_connection(("127.0.0.1", self.server.upstream))
        with self.server.tls.wrap_socket(plain, server_hostname="127.0.0.1") as upstream:
            upstream.sendall(b"".join([line, *kept, b"Connection: close\r\n\r\n", body]))
            with self.server.holding(upstream, self.connection):
                while chunk := upstream.recv(2**16):
                    self.connection.sendall(chunk)


@contextmanager
def serve_proxy(port: int, authority: str) -> Iterator[Proxy]:
    """Run a proxy until the block ends."""
    with Proxy(port, authority) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.break_all()
            proxy.shutdown()
            thread.join()


def tally(requests: list[Request]) -> Counter[str]:
    """Return the number of requests of each kind: method and path without its query."""
    return Counter(f"{request.method} {request.path.partition('?')[0]}" for request in requests)
