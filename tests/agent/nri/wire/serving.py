"""One connection over a socket pair: the plugin runs in a thread, and the test acts as the runtime."""

from __future__ import annotations

import socket
import threading

from agent.nri.wire import WORKER_EVENTS, Connection, Limits, WireError
from tests.agent.nri.fake_runtime import Plugin
from tests.agent.nri.wire.plugins import NAME, PATIENT, Recorder


class Served:
    """A connection in its own thread, and the runtime's end of it."""

    def __init__(self, limits: Limits = PATIENT, handlers: Recorder | None = None) -> None:
        ours, theirs = socket.socketpair()
        self.handlers = handlers or Recorder()
        self.runtime = Plugin(theirs)
        self.synchronized = done = threading.Event()
        self._reason = ""
        self._connection = Connection(
            ours,
            NAME,
            self.handlers,
            WORKER_EVENTS,
            limits=limits,
            synchronized=lambda _: done.set(),
        )
        self._ours = ours
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        try:
            with self._ours:
                self._connection.serve()
        except WireError as error:
            self._reason = str(error)

    def reason(self) -> str:
        """Wait until the connection has ended; return the reason."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self._reason

    def close(self) -> None:
        """Close the connection."""
        self.runtime.close()
        self.reason()
