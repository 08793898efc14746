"""A TCP forwarder that can be cut, so that a running server becomes unreachable."""

from __future__ import annotations

import contextlib
import selectors
import socket
import socketserver
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Forwarder(socketserver.ThreadingTCPServer):
    """Forwards connections on loopback in both directions."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.is_cut = threading.Event()
        super().__init__(("127.0.0.1", 0), _Connection)

    @property
    def port(self) -> str:
        """The port that clients use."""
        return str(self.server_address[1])

    def cut(self) -> None:
        """Close all connections, and each new one at once."""
        self.is_cut.set()


class _Connection(socketserver.BaseRequestHandler):
    server: Forwarder

    def handle(self) -> None:
        with (
            socket.create_connection(("127.0.0.1", self.server.upstream)) as upstream,
            _both(self.request, upstream) as ready,
        ):
            while not self.server.is_cut.is_set():
                for key, _ in ready.select(timeout=0.05):
                    if not (data := key.fileobj.recv(65536)):  # type: ignore[union-attr]
                        return
                    key.data.sendall(data)


@contextlib.contextmanager
def _both(client: socket.socket, upstream: socket.socket) -> Iterator[selectors.BaseSelector]:
    """Wait for either side; a side that resets the connection has ended it."""
    with selectors.DefaultSelector() as ready, contextlib.suppress(ConnectionError):
        ready.register(client, selectors.EVENT_READ, upstream)
        ready.register(upstream, selectors.EVENT_READ, client)
        yield ready


@contextlib.contextmanager
def forwarding(upstream: int) -> Iterator[Forwarder]:
    """Forward to a port of loopback until the block ends."""
    with Forwarder(upstream) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.cut()
            server.shutdown()
            thread.join()
