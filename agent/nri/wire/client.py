"""A plugin that reconnects: one thread that connects, serves, and retries when the connection ends."""

from __future__ import annotations

import logging
import random
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Final, NoReturn

from agent.nri.wire.connection import Connection, Limits
from agent.nri.wire.errors import Disconnected, EventsRefused, NotListed, WireError
from agent.nri.wire.handlers import GUARD_EVENTS, WORKER_EVENTS, WORKER_EVENTS_OLD

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from agent.nri.wire.handlers import Handlers, PluginName

logger = logging.getLogger(__name__)
FIRST_WAIT: Final = 0.1  # first delay until the next connection, in seconds
# Longest delay; short, because containers start unpinned until then and a connection is cheap.
LONGEST_WAIT: Final = 2.0
# Wait after the runtime refused the events: it will not accept them before it is updated, and logs each try.
REFUSED_WAIT: Final = 60.0
# First delay after a failed list; by then a race with a restarting runtime is over.
NOT_LISTED_WAIT: Final = 4.0
LONGEST_NOT_LISTED_WAIT: Final = 60.0  # longest delay; also the first one if the runtime has crashed
CRASHED: Final = "the runtime crashed"
_EXIT_SECONDS: Final = 0.5  # time in which a crashed runtime closes its socket
_CONNECT_SECONDS: Final = 5.0
_STOP_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Status:
    """Status of the connection to the runtime; without one, the reason.

    `validates`: the runtime asks the plugin to validate. `is_refused`: the runtime does not know the events.
    `is_not_listed`: it ends connections instead of listing its pods and containers.
    """

    is_connected: bool
    runtime: str = ""
    validates: bool = False
    reason: str = ""
    is_not_listed: bool = False
    is_refused: bool = False


class Client:
    """Keeps a plugin registered; `changed` is called in its thread with every new status."""

    def __init__(
        self,
        path: Path | str,
        name: PluginName,
        handlers: Handlers,
        *,
        masks: Sequence[int] = (WORKER_EVENTS, WORKER_EVENTS_OLD),
        changed: Callable[[Status], None] = lambda _: None,
        limits: Limits | None = None,
    ) -> None:
        self.status = Status(is_connected=False, reason="not connected yet")
        self._path = str(path)
        self._name = name
        self._handlers = handlers
        self._masks = masks
        self._changed = changed
        self._limits = limits
        self._mask = 0  # index of the event mask of the next registration
        self._failures = 0
        self._unlisted = 0  # connections, since the last complete Synchronize, that ended before theirs
        self._unlisted_reason = ""
        # Name of the runtime that refused the events of the last connection.
        self._refused_by: str | None = None
        self._longest = LONGEST_WAIT  # upper limit of the next wait in seconds
        self._backoff = 0.0  # lower limit of it, for a runtime that fails to list its containers
        self._stream: socket.socket | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"nri {name}", daemon=True)

    def start(self) -> None:
        """Start the thread that connects to the runtime and serves it."""
        self._thread.start()

    def stop(self) -> None:
        """End the connection and the thread after pending answers; no handler is called afterwards."""
        self._stopping.set()
        if (stream := self._stream) is not None:
            with suppress(OSError):
                stream.shutdown(socket.SHUT_RD)
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)
        self.status = Status(is_connected=False, reason="stopped")

    def _run(self) -> None:
        while not self._stopping.is_set():
            events, self._mask = self._masks[self._mask], 0
            self._refused_by = None
            reason = self._attempt(events)
            self._publish(self._disconnected(reason))
            # A further mask is tried at once, while the same runtime still runs.
            if self._mask == 0 or self._unlisted:
                self._stopping.wait(self._wait())

    def _disconnected(self, reason: str) -> Status:
        """Return the status after a connection; while a crashed runtime is down, with the reason of the crash."""
        if self._unlisted:
            return Status(is_connected=False, reason=self._unlisted_reason, is_not_listed=True)
        if self._refused_by is not None:
            return Status(is_connected=False, runtime=self._refused_by, reason=reason, is_refused=True)
        return Status(is_connected=False, reason=reason)

    def _attempt(self, events: int) -> str:
        """Serve one connection; return why it ended or failed."""
        began, self._longest = monotonic(), LONGEST_WAIT
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as self._stream:
                self._connect(self._stream)
                self._serve(self._stream, events)
        except EventsRefused as error:
            self._mask = (self._masks.index(events) + 1) % len(self._masks)
            self._longest = REFUSED_WAIT
            self._refused_by = error.runtime
            return str(error)
        except NotListed as error:
            self._back_off(str(error))
            return str(error)
        except WireError as error:
            return str(error)
        except Exception as error:
            logger.exception("the connection to the runtime crashed")
            return f"{type(error).__name__}: {error}"
        finally:
            if monotonic() - began > LONGEST_WAIT:
                self._failures = 0

    def _back_off(self, reason: str) -> None:
        """Double the wait, up to a minute, because each try may crash the runtime again."""
        self._unlisted += 1
        self._backoff = min(LONGEST_NOT_LISTED_WAIT, NOT_LISTED_WAIT * 2.0 ** min(self._unlisted - 1, 16))
        self._unlisted_reason = reason
        self._stopping.wait(_EXIT_SECONDS)
        if not self._listens():
            self._backoff = LONGEST_NOT_LISTED_WAIT
            self._unlisted_reason = f"{reason} ({CRASHED})"

    def _listens(self) -> bool:
        """Return whether the runtime still accepts connections.

        The runtime drops a client that does not register, so this probe is harmless.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
            try:
                stream.settimeout(_CONNECT_SECONDS)
                stream.connect(self._path)
            except OSError:
                return False
        return True

    def _connect(self, stream: socket.socket) -> None:
        try:
            stream.settimeout(_CONNECT_SECONDS)
            stream.connect(self._path)
        except OSError as error:
            raise Disconnected(f"{self._path}: {error.strerror or error}") from error
        if self._stopping.is_set():  # `stop` was called before the socket was connected
            raise Disconnected("stopped")

    def _serve(self, stream: socket.socket, events: int) -> NoReturn:
        def synchronized(runtime: str) -> None:
            self._unlisted, self._backoff = 0, 0.0
            self._publish(Status(is_connected=True, runtime=runtime, validates=bool(events & GUARD_EVENTS)))

        Connection(
            stream, self._name, self._handlers, events, limits=self._limits, synchronized=synchronized
        ).serve()

    def _wait(self) -> float:
        """Return the seconds to wait: exponential backoff with jitter."""
        ceiling = min(self._longest, FIRST_WAIT * 2.0 ** min(self._failures, 16))
        self._failures += 1
        if self._unlisted:
            ceiling = max(ceiling, self._backoff)
        return ceiling * random.uniform(0.5, 1)  # noqa: S311 jitter is no secret

    def _publish(self, status: Status) -> None:
        if self._stopping.is_set() or status == self.status:
            return
        self.status = status
        try:
            self._changed(status)
        except Exception:
            logger.exception("a change of the connection could not be handled")
