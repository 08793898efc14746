"""An HTTP CONNECT proxy on loopback that connects every tunnel to the same port."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

READY = b"HTTP/1.1 200 Connection established\r\n\r\n"


@dataclass
class ConnectProxy:
    """A running proxy, and the requests it got: `CONNECT host:port` with the client's authorization."""

    url: str
    asked: list[tuple[str, str]] = field(default_factory=list)


@contextmanager
def connect_proxy(port: int) -> Iterator[ConnectProxy]:
    """Run a proxy that connects every tunnel to a port of this machine."""

    class Tunnel(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            line = self.rfile.readline().decode().strip()
            headers = dict(self._headers())
            proxy.asked.append((line.rpartition(" ")[0], headers.get("proxy-authorization", "")))
            with socket.create_connection(("127.0.0.1", port)) as there:
                self.wfile.write(READY)
                back = threading.Thread(target=_copy, args=(there, self.connection))
                back.start()
                _copy(self.connection, there)
                back.join()

        def _headers(self) -> Iterator[tuple[str, str]]:
            while line := self.rfile.readline().decode().strip():
                name, _, value = line.partition(":")
                yield name.lower(), value.strip()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Tunnel) as server:
        proxy = ConnectProxy(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield proxy
        finally:
            server.shutdown()
            thread.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy bytes until one of the connections is closed."""
    with suppress(OSError):
        while data := source.recv(2**16):
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
