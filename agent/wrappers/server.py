"""Server of `cmk.sock`: its socket file, connections, turns and answers.

The directory is mounted into every CMK pod, so its content is not trusted, and links in it are not followed: the socket
is created under another name and then renamed over any file of its name.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from agent.errors import AgentError, Gone, Refused
from agent.wrappers.bounds import Origin
from agent.wrappers.peer import connected, pid_of
from agent.wrappers.protocol import (
    ANSWER_SECONDS,
    END,
    REQUEST_LIMIT,
    SEND_SECONDS,
    Crowded,
    Denied,
    Verb,
    denied,
    read_request,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent.wrappers.bounds import Bounds, Turns
    from agent.wrappers.peer import Peer
    from agent.wrappers.protocol import Request

MODE: Final = 0o666  # containers may run as any user
BACKLOG: Final = 64  # length of listen(2)'s queue; one process cannot fill it for long
ACCEPT_SECONDS: Final = 0.001  # seconds of CPU time for new connections per loop iteration
REST: Final = 12.0  # seconds of rest per second of CPU time for refused connections: at most 1/13 of a core
PAUSE_SECONDS: Final = 0.1  # pause while there is no file descriptor for another connection
SEND_BUFFER: Final = 8192  # bytes of an unread answer that the kernel stores; it allocates twice as many
# Turns charged for a report of the node, which takes the agent that many times longer than `isolate`.
REPORT_TURNS: Final = 8
UNKNOWN: Final = Origin("", "")  # origin of processes that exited or are not visible
TOO_LATE: Final = Denied(f"the agent was not ready within {ANSWER_SECONDS:.0f} seconds: try again")

logger = logging.getLogger(__name__)


class Listener:
    """A listening socket and its name in a directory."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._name = name
        self._place = folder / name
        try:
            self.socket, self._file = self._made()
        except BaseException:
            os.close(self._folder)
            raise

    def _made(self) -> tuple[socket.socket, os.stat_result]:
        """Create the socket and rename it into place; return the listening socket and its file's status."""
        beside = f".{self._name}.{secrets.token_hex(8)}"
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            # a path by descriptor may have any length, and cannot leave this directory
            made.bind(f"/proc/self/fd/{self._folder}/{beside}")
            file = self._open_to_all(beside)
            made.listen(BACKLOG)
            os.rename(beside, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError:
            made.close()
            with suppress(OSError):
                os.unlink(beside, dir_fd=self._folder)
            raise
        return made, file

    def _open_to_all(self, name: str) -> os.stat_result:
        """Let all users connect to the new socket file; return its status; raise PermissionError if it was replaced."""
        file = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder)
        try:
            found = os.fstat(file)
            if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
                raise PermissionError(f"another program writes to {self._place.parent}")
            os.chmod(f"/proc/self/fd/{file}", MODE)  # noqa: PTH101 the file itself, whatever its name stands for now
            return found
        finally:
            os.close(file)

    def is_in_place(self) -> bool:
        """Return whether the path still leads to this socket, also if its directory was replaced."""
        try:
            return os.path.samestat(self._place.lstat(), self._file)
        except OSError:
            return False

    def close(self) -> None:
        """Stop listening; the file stays, so that a shim gets ECONNREFUSED and retries."""
        self.socket.close()
        os.close(self._folder)


def listen(folder: Path, name: str) -> Listener:
    """Listen in a directory, which is created if missing; raise Refused."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return Listener(folder, name)
    except OSError as error:
        raise Refused(
            f"no socket in {folder}: {error.strerror or error}; name another --cmk-install-dir"
        ) from error


class Answering(Protocol):
    """Source of the answers, and of the container that a connection is charged to."""

    def origin_of(self, pid: int) -> Origin:
        """Return the pod and container to which a process's requests are charged; raise Gone."""
        ...

    async def answer(self, peer: Peer, request: Request) -> bytes:
        """Return the encoded answer to a request; raise Denied, Gone."""
        ...


class TurnQueue:
    """Wakes waiting connections when their turn begins."""

    def __init__(self, turns: Turns[asyncio.Future[None]]) -> None:
        self._turns = turns
        self._timer: asyncio.TimerHandle | None = None

    async def turn(self, origin: Origin, turns: int = 1) -> None:
        """Wait for a number of turns of a container."""
        loop = asyncio.get_running_loop()
        begun = loop.create_future()
        if not self._turns.ask(origin, begun, turns):
            self._timer = self._timer or loop.call_later(0, self._begin)
            await begun

    def _begin(self) -> None:
        for begun in self._turns.begin():
            if not begun.done():
                begun.set_result(None)
        wait = self._turns.wait()
        self._timer = None if wait is None else asyncio.get_running_loop().call_later(wait, self._begin)


class Server:
    """Serves one listening socket."""

    def __init__(
        self,
        answering: Answering,
        bounds: Bounds[asyncio.Future[None]],
        peer_of: Callable[[socket.socket], Peer] = connected,
    ) -> None:
        self._answering = answering
        self._connections = bounds.connections
        self._refusals = bounds.refusals
        self._queue = TurnQueue(bounds.turns)
        self._peer_of = peer_of
        self._open: set[asyncio.Task[None]] = set()

    async def serve(self, listening: socket.socket) -> None:
        """Serve until cancelled."""
        try:
            while True:
                await _readable(listening)
                while not await self._accept_some(listening):
                    await asyncio.sleep(0)  # let other tasks run, however many clients connect
        finally:
            for task in self._open:
                task.cancel()

    async def _accept_some(self, listening: socket.socket) -> bool:
        """Accept waiting connections, then pause for the CPU time that refused ones took; return whether none waits."""
        began = last = time.thread_time()
        refused, is_empty = 0.0, False
        while last - began < ACCEPT_SECONDS:
            try:
                connection, _ = listening.accept()
            except BlockingIOError:
                is_empty = True
                break
            except OSError as error:  # out of file descriptors: pending connections must wait
                logger.warning("no wrapper is answered", extra={"facts": {"reason": str(error)}})
                await asyncio.sleep(PAUSE_SECONDS)
                return False
            is_taken = self._begin(connection)
            now = time.thread_time()
            refused += 0.0 if is_taken else now - last
            last = now
        if refused:
            await asyncio.sleep(refused * REST)
        return is_empty and not refused

    def _begin(self, connection: socket.socket) -> bool:
        """Serve a connection, or refuse it as cheaply as possible; return whether it is served.

        Cheap checks come first, because all containers share the kernel's queue of connections, also refused ones.
        """
        try:
            pid = pid_of(connection)
            if _is_over(connection) or self._refusals.ignores(pid):
                connection.close()
                return False
            origin = self._answering.origin_of(pid)
        except (AgentError, OSError) as error:
            self._refuse(connection, error, UNKNOWN)
            return False
        try:
            self._connections.opened(origin)
        except (Crowded, Denied) as error:
            self._refusals.refused(pid)
            self._refuse(connection, error, origin)
            return False
        return self._begin_task(connection, origin)

    def _begin_task(self, connection: socket.socket, origin: Origin) -> bool:
        """Start the task that serves a counted connection; return whether its process could be opened."""
        connection.setblocking(False)  # noqa: FBT003 of the standard library
        try:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
            peer = self._peer_of(connection)
        except (AgentError, OSError) as error:
            self._connections.closed(origin)
            self._refuse(connection, error, origin)
            return False
        task = asyncio.get_running_loop().create_task(self._serve(connection, peer, origin))
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        return True

    def _refuse(self, connection: socket.socket, error: Exception, origin: Origin) -> None:
        """Close a connection without reading the request; send the reason if the container's rate limit allows it."""
        with suppress(OSError):
            if isinstance(error, Denied) and self._refusals.may_explain(origin):
                connection.send(denied(error), socket.MSG_DONTWAIT)
        connection.close()

    async def _serve(self, connection: socket.socket, peer: Peer, origin: Origin) -> None:
        """Answer one request; a slow, invalid or closed connection affects no other."""
        try:
            await self._answer(connection, peer, origin)
        except Denied as error:
            self._refuse(connection, error, origin)
        except (AgentError, OSError, TimeoutError):
            pass
        except Exception:  # a bug in one answer must not end the others
            logger.exception("wrapper not answered")
        finally:
            self._connections.closed(origin)
            connection.close()
            peer.close()

    async def _answer(self, connection: socket.socket, peer: Peer, origin: Origin) -> None:
        await self._queue.turn(origin)  # each connection takes a turn, whatever its request
        content = await _received(connection)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                request = read_request(content)
                if request.verb is not Verb.ISOLATE:
                    await self._queue.turn(origin, REPORT_TURNS - 1)
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
    """Wait for a connection; the listener is polled only during this wait, so that a pause costs no CPU time."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(listening, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(listening)


async def _left(connection: socket.socket) -> None:
    """Wait until the client closes: until then an unread answer uses memory, so the connection stays counted."""
    connection.shutdown(socket.SHUT_WR)
    while await asyncio.get_running_loop().sock_recv(connection, REQUEST_LIMIT):
        await asyncio.sleep(SEND_SECONDS)  # the client still sends, against the protocol


async def _received(connection: socket.socket) -> bytes:
    """Return the request's bytes up to the empty line; raise Denied if there are too many, Gone if it is incomplete."""
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
    """Return whether the other end closed without sending."""
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
