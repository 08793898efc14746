"""containerd's events about processes that enter containers by exec: `kubectl exec`, and exec probes of the kubelet.

CRI has no such event. containerd serves it by its own API on the same socket; CRI-O does not have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.cri import task_events_pb2
from agent.grpc_calls import Calls, decoded
from agent.node_state import StartedExec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

SERVICE: Final = "containerd.services.events.v1.Events"
_FILTER: Final = 'topic=="/tasks/exec-started"'
_EVENT_BYTES: Final = 64 * 2**10  # an event holds two ids, a topic and a number
_TIMEOUT_SECONDS: Final = 10.0  # for unary calls; this client only opens a stream


class ContainerdExecs:
    """The processes that enter containers by exec (interface `ExecEvents` of `agent.quiet.execs`)."""

    def __init__(self, socket: Path) -> None:
        self._calls = Calls(socket, SERVICE, _TIMEOUT_SECONDS)

    async def started(self) -> AsyncIterator[StartedExec]:
        """Yield each process that enters a container by exec from now on.

        Raise Unavailable when the stream ends, Unimplemented by a runtime without such events.
        """
        request = task_events_pb2.SubscribeRequest(filters=[_FILTER])
        async for envelope in self._calls.stream(
            "Subscribe", request, task_events_pb2.Envelope, _EVENT_BYTES
        ):
            event = decoded(task_events_pb2.ExecStarted, bytearray(envelope.event.value))
            yield StartedExec(event.container_id, event.pid)
