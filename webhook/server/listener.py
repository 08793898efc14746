"""A listening socket and its connections: uvicorn's server with time limits and a graceful drain."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import uvicorn

from webhook.config.reload import Unusable
from webhook.server.connection import Connection, ConnectionRules

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

    from starlette.types import ASGIApp

TICKS_A_SECOND = 10  # uvicorn calls `on_tick` this many times a second
STEP_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of time and connections. Go clients close idle connections after 90 s, and the server must do so later."""

    handshake_seconds: float = 5.0
    request_seconds: float = 10.0  # from the first byte of a request to the last one of its answer
    keep_alive_seconds: int = 120
    linger_seconds: float = 0.5  # wait after SIGTERM for requests just sent on idle connections
    grace_seconds: float = 5.0  # then wait for unfinished answers
    tls_close_seconds: float = 1.0
    connections: int = 1000  # open connections; an API server opens a few dozen; an idle one takes 50 kB


class Address(NamedTuple):
    """A listening address; an empty host means every interface, IPv4 and IPv6."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def bind(self) -> socket.socket:
        """Return a bound socket, or raise `Unusable`."""
        try:
            if not self.host and socket.has_dualstack_ipv6():
                return socket.create_server(("::", self.port), family=socket.AF_INET6, dualstack_ipv6=True)
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            return socket.create_server((self.host, self.port), family=family)
        except OSError as error:
            reason = str(error.strerror).partition(" (")[0]  # the rest of the text repeats the address
            raise Unusable(f"cannot listen on {self} ({reason}): name another address") from error


class Listener(uvicorn.Server):
    """One socket served by one application. Signals are handled by the process."""

    def __init__(
        self,
        app: ASGIApp,
        bound: socket.socket,
        limits: Limits,
        rules: ConnectionRules,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        config = uvicorn.Config(
            cast("Any", app),
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            ssl_context_factory=(lambda _config, _default: tls) if tls is not None else None,
        )
        super().__init__(config)
        self.has_started = asyncio.Event()
        self._bound = bound
        self._limits = limits
        self._rules = rules
        self._tls = tls

    @property
    def address(self) -> Address:
        """The bound address, with the port that the kernel chose for port 0."""
        host, port, *_ = self._bound.getsockname()
        return Address(host, port)

    @property
    def connections(self) -> set[Connection]:
        """The open connections."""
        return cast("set[Connection]", self.server_state.connections)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections."""
        loop = asyncio.get_running_loop()

        def connect() -> Connection:
            return Connection(self._rules, self.config, self.server_state, loop)

        server = await loop.create_server(
            connect,
            sock=self._bound,
            backlog=2048,
            ssl=self._tls,
            ssl_handshake_timeout=self._limits.handshake_seconds if self._tls else None,
            ssl_shutdown_timeout=self._limits.tls_close_seconds if self._tls else None,
        )
        self.servers = [server]
        self.started = True
        self.has_started.set()

    async def on_tick(self, counter: int) -> bool:
        """Drop slow and idle clients, once a second."""
        if counter % TICKS_A_SECOND == 0:
            self._drop_slow()
            self._close_idle()
        return await super().on_tick(counter)

    def drain(self) -> None:
        """Close every connection after its next answer, then stop."""
        self._rules.is_draining = True
        for connection in self.connections:
            if connection.is_answering:
                connection.shutdown()
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish requests in progress and in flight, close idle connections, after a grace period abort the rest."""
        await self._wait_closed(self._limits.linger_seconds)
        for server in self.servers:
            server.close()
        for connection in list(self.connections):
            connection.shutdown()
        await self._wait_closed(self._limits.grace_seconds)
        for connection in list(self.connections):
            connection.transport.abort()

    async def _wait_closed(self, seconds: float) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        while self.connections and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(STEP_SECONDS)

    def _drop_slow(self) -> None:
        moment = asyncio.get_running_loop().time() - self._limits.request_seconds
        for connection in list(self.connections):
            connection.drop_if_busy_since(moment)

    def _close_idle(self) -> None:
        moment = monotonic() - self._limits.keep_alive_seconds
        for connection in list(self.connections):
            connection.close_if_idle_since(moment)
