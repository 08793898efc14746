"""One connection to a runtime over its socket, from registration to its end. Blocks; belongs to one thread."""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from agent.nri.wire import nri_pb2 as pb
from agent.nri.wire.errors import INTERNAL, Disconnected, EventsRefused, NotListed, Reject, WireError
from agent.nri.wire.handlers import may_be_unknown
from agent.nri.wire.service import RUNTIME_SERVICE, PluginService, Stage
from agent.nri.wire.session import Session
from agent.nri.wire.ttrpc import Request, Response

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from agent.nri.wire.handlers import Handlers, PluginName

logger = logging.getLogger(__name__)
_RECEIVE_BYTES: Final = 64 * 1024
NOT_LISTED: Final = (
    "the runtime closed the connection instead of listing its containers: it sends them with their environments in"
    " messages of 4 MiB, and gives up when 8 pods and containers do not fit into one: delete the pods with the largest"
    " environments"
)


class Limits(NamedTuple):
    """Time limits for the runtime, in seconds."""

    register: float = 10.0  # the runtime registers one plugin after the other, each for five seconds at most
    configure: float = 5.0
    # The runtime waits for containers that are being created, and for other plugins.
    synchronize: float = 30.0
    message: float = 10.0  # between the first byte of a message and its last
    write: float = 5.0


class _Deadline(NamedTuple):
    what: str
    seconds: float
    at: float


class Connection:
    """Registers a plugin with a runtime and answers its calls.

    `synchronized` is called with the runtime's name and version once it has listed its pods and containers.
    """

    def __init__(
        self,
        stream: socket.socket,
        name: PluginName,
        handlers: Handlers,
        events: int,
        *,
        limits: Limits | None = None,
        synchronized: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._stream = stream
        self._name = name
        self._limits = limits or Limits()
        self._synchronized = synchronized
        self._session = Session()
        self._service = PluginService(handlers, events)
        self._events = events
        self._stage = Stage.CONNECTED
        self._step: _Deadline | None = None
        self._message: _Deadline | None = None

    def serve(self) -> NoReturn:
        """Register and answer calls until the connection ends; raise ProtocolError or Disconnected."""
        self._register()
        while True:
            self._receive()
            while (message := self._session.take()) is not None:
                self._message = None
                if isinstance(message, Request):
                    self._answer(message)
                else:
                    self._registered(message)
            self._expect_rest()

    def _register(self) -> None:
        seconds = self._limits.register
        self._step = _deadline("answer the registration", seconds)
        request = pb.RegisterPluginRequest(plugin_name=self._name.name, plugin_idx=f"{self._name.index:02}")
        self._send(
            self._session.call(RUNTIME_SERVICE, "RegisterPlugin", request.SerializeToString(), seconds)
        )

    def _registered(self, response: Response) -> None:
        if response.code:
            raise Disconnected(f"the runtime refuses the plugin: {response.message} (code {response.code})")
        if self._stage is Stage.CONNECTED:
            self._step = _deadline("configure the plugin", self._limits.configure)

    def _receive(self) -> None:
        self._stream.settimeout(self._seconds_left())
        try:
            data = self._stream.recv(_RECEIVE_BYTES)
        except TimeoutError:
            return
        except OSError as error:
            raise self._lost(error) from error
        if not data:
            raise self._closed()
        self._session.add(data)

    def _seconds_left(self) -> float | None:
        """Return the seconds to wait for the runtime, None for no limit; raise Disconnected when the time is over."""
        running = [deadline for deadline in (self._step, self._message) if deadline is not None]
        if not running:
            return None
        first = min(running, key=lambda deadline: deadline.at)
        left = first.at - monotonic()
        if left <= 0:
            raise Disconnected(f"the runtime did not {first.what} in {first.seconds:g} s")
        return left

    def _expect_rest(self) -> None:
        """Keep the deadline of a message that has begun, even if it arrives byte by byte."""
        if not self._session.is_partial:
            self._message = None
        elif self._message is None:
            self._message = _deadline("finish a message", self._limits.message)

    def _answer(self, request: Request) -> None:
        self._send(self._answered(request))
        if self._service.stage is Stage.ENDED:
            raise Disconnected("the runtime shuts down")
        self._advance()

    def _answered(self, request: Request) -> bytes:
        """Return the encoded answer; an error in a handler fails this request only."""
        try:
            payload = self._service.answer(request.service, request.method, request.payload)
            return self._session.answer(request.stream, payload)
        except WireError:
            raise
        except Reject as reject:
            return self._session.refuse(request.stream, reject.code, reject.message)
        except Exception as error:
            logger.exception("a request of the runtime failed", extra={"facts": {"method": request.method}})
            text = f"{self._name}: {type(error).__name__} in {request.method}"
            return self._session.refuse(request.stream, INTERNAL, text)

    def _advance(self) -> None:
        if self._service.stage is self._stage:
            return
        self._stage = self._service.stage
        if self._stage is Stage.CONFIGURED:
            self._step = _deadline("synchronize the plugin", self._limits.synchronize)
        elif self._stage is Stage.SYNCHRONIZED:
            self._step = None
            self._synchronized(self._service.runtime)

    def _send(self, data: bytes) -> None:
        self._stream.settimeout(self._limits.write)
        try:
            self._stream.sendall(data)
        except TimeoutError as error:
            raise Disconnected(f"the runtime did not read in {self._limits.write:g} s") from error
        except OSError as error:
            raise self._lost(error) from error

    def _lost(self, error: OSError) -> Disconnected:
        if isinstance(error, ConnectionResetError | BrokenPipeError):
            return self._closed()
        return Disconnected(f"the connection failed: {error.strerror or error}")

    def _closed(self) -> Disconnected:
        if self._stage is Stage.SYNCHRONIZING:
            return NotListed(NOT_LISTED)
        if self._stage is Stage.CONFIGURED:
            if not may_be_unknown(self._events, self._service.runtime):
                return NotListed(NOT_LISTED)
            return EventsRefused(self._service.runtime, self._events)
        return Disconnected("the runtime closed the connection")


def _deadline(what: str, seconds: float) -> _Deadline:
    return _Deadline(what, seconds, monotonic() + seconds)
