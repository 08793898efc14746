"""Takes the connections of wrappers: tells whose each is, keeps each container within its bounds, frames the answers."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from agent.errors import AgentError, Gone
from agent.wrappers.errors import Denied
from agent.wrappers.peer import connected, pid_of
from agent.wrappers.protocol import (
    ANSWER_SECONDS,
    END,
    REQUEST_LIMIT,
    SEND_SECONDS,
    Verb,
    denied,
    read_request,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.wrappers.bounds import Bounds
    from agent.wrappers.peer import Peer
    from agent.wrappers.protocol import Request

ACCEPTED_AT_ONCE: Final = 64  # connections before the loop does something else
PAUSE_SECONDS: Final = 0.1  # when there is no descriptor left for another connection
REFUSED_SECONDS: Final = (
    0.01  # after connections that were refused: whoever goes on all the same is slowed down
)
SEND_BUFFER: Final = (
    8192  # bytes of an answer that wait in the kernel for one who does not read; it takes it for twice
)
REPORT_TURNS: Final = 10  # of a request for a report of the node, which takes the agent so many times longer
TOO_LATE: Final = Denied(f"the agent was not ready within {ANSWER_SECONDS:.0f} seconds: try again")

logger = logging.getLogger(__name__)


class Answering(Protocol):
    """Who knows the answers."""

    def bounded_as(self, pid: int) -> str:
        """Return by which name the requests of a process are counted: that of its container; raise Gone."""
        ...

    async def answer(self, peer: Peer, request: Request) -> bytes:
        """Return an answer that does what was asked; raise Denied, Gone."""
        ...


class Server:
    """Serves one listening socket."""

    def __init__(
        self,
        answering: Answering,
        bounds: Bounds,
        peer_of: Callable[[socket.socket], Peer] = connected,
    ) -> None:
        self._answering = answering
        self._bounds = bounds
        self._peer_of = peer_of
        self._open: set[asyncio.Task[None]] = set()

    async def serve(self, listening: socket.socket) -> None:
        """Answer until cancelled."""
        try:
            while True:
                await _readable(listening)
                while not await self._accept_some(listening):
                    await asyncio.sleep(0)  # others have their turn, however many connect
        finally:
            for task in self._open:
                task.cancel()

    async def _accept_some(self, listening: socket.socket) -> bool:
        """Take connections that wait; say whether none is left."""
        is_refused = False
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connection, _ = listening.accept()
            except BlockingIOError:
                await self._pause(is_wanted=is_refused)
                return not is_refused
            except OSError as error:  # no descriptor is left: those who wait wait longer
                logger.warning("no wrapper is answered", extra={"facts": {"reason": str(error)}})
                await asyncio.sleep(PAUSE_SECONDS)
                return False
            is_refused |= not self._begin(connection)
        await self._pause(is_wanted=is_refused)
        return False

    async def _pause(self, *, is_wanted: bool) -> None:
        if is_wanted:
            await asyncio.sleep(REFUSED_SECONDS)

    def _begin(self, connection: socket.socket) -> bool:
        """Take a connection, or refuse it by what costs the least; say whether it was taken.

        A flood of them waits in the same line as all others.
        """
        container = ""
        connection.setblocking(False)  # noqa: FBT003 of the standard library
        try:
            if _is_over(connection):
                raise Gone("nobody waits for an answer")
            container = self._answering.bounded_as(pid_of(connection))
            self._bounds.opened(container)
        except (AgentError, OSError) as error:
            self._refuse(connection, error, container)
            return False
        try:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
            peer = self._peer_of(connection)
        except (AgentError, OSError) as error:
            self._bounds.closed(container)
            self._refuse(connection, error, container)
            return False
        task = asyncio.get_running_loop().create_task(self._serve(connection, peer, container))
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        return True

    def _refuse(self, connection: socket.socket, error: Exception, container: str) -> None:
        """Say why not, to a shim that listens, and close: whatever it sends is not read."""
        with suppress(OSError):
            if isinstance(error, Denied) and self._bounds.tells(container):
                connection.send(denied(error))
        connection.close()

    async def _serve(self, connection: socket.socket, peer: Peer, container: str) -> None:
        """Answer one request; whoever is slow, garbled or gone ends its own connection alone."""
        try:
            await self._answer(connection, peer, container)
        except Denied as error:
            self._refuse(connection, error, container)
        except (AgentError, OSError, TimeoutError):
            pass
        except Exception:  # the loop's edge: a bug in one answer must not end the others
            logger.exception("wrapper not answered")
        finally:
            self._bounds.closed(container)
            connection.close()
            peer.close()

    async def _answer(self, connection: socket.socket, peer: Peer, container: str) -> None:
        await asyncio.sleep(self._bounds.turn(container))  # who connects has a turn, whatever comes of it
        content = await _received(connection)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                request = read_request(content)
                if request.verb is not Verb.ISOLATE:
                    await asyncio.sleep(self._bounds.turn(container, REPORT_TURNS - 1))
                answer = await self._answering.answer(peer, request)
        except Denied as error:
            answer = denied(error)
        except TimeoutError:
            answer = denied(TOO_LATE)
        with suppress(TimeoutError):
            async with asyncio.timeout(SEND_SECONDS):
                await asyncio.get_running_loop().sock_sendall(connection, answer)
        await _left(connection)


async def _readable(listening: socket.socket) -> None:
    """Wait for a connection; while none is taken, for a pause, nobody looks for one."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(listening, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(listening)


async def _left(connection: socket.socket) -> None:
    """Wait until whoever asked closes: what it has not read is memory of the agent, so it counts until then."""
    connection.shutdown(socket.SHUT_WR)
    while await asyncio.get_running_loop().sock_recv(connection, REQUEST_LIMIT):
        await asyncio.sleep(SEND_SECONDS)  # it sends on, which nobody asked for


async def _received(connection: socket.socket) -> bytes:
    """Return what is sent up to the empty line; raise Denied for what is too long, and Gone when it never comes."""
    loop, content = asyncio.get_running_loop(), b""
    async with asyncio.timeout(SEND_SECONDS):
        while not content.endswith(END):
            piece = await loop.sock_recv(connection, REQUEST_LIMIT + 1 - len(content))
            content += piece
            if not piece:
                raise Gone("the request has no end")
            if len(content) > REQUEST_LIMIT or END in content[:-1]:
                raise Denied(f"a request has at most {REQUEST_LIMIT} bytes, and ends at its empty line")
    return content


def _is_over(connection: socket.socket) -> bool:
    """Say whether whoever connected has closed already, without a word."""
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
