"""The methods that a runtime calls, dispatched to a plugin's handlers. Payloads in, payloads out."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar, Final

from agent.nri.wire import nri_pb2 as pb
from agent.nri.wire.errors import UNIMPLEMENTED, Reject
from agent.nri.wire.handlers import Event
from agent.nri.wire.synchronization import Parts
from agent.nri.wire.ttrpc import decoded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.nri.wire.handlers import Handlers

PLUGIN_SERVICE: Final = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE: Final = "nri.pkg.api.v1alpha1.Runtime"
_NAME_LIMIT: Final = 100  # characters of the runtime's name and version
_LIFECYCLE: Final = {  # notifications; before NRI 0.12 they arrive as StateChange
    "RunPodSandbox": Event.RUN_POD_SANDBOX,
    "StopPodSandbox": Event.STOP_POD_SANDBOX,
    "RemovePodSandbox": Event.REMOVE_POD_SANDBOX,
    "PostCreateContainer": Event.POST_CREATE_CONTAINER,
    "StartContainer": Event.START_CONTAINER,
    "PostStartContainer": Event.POST_START_CONTAINER,
    "PostUpdateContainer": Event.POST_UPDATE_CONTAINER,
    "StopContainer": Event.STOP_CONTAINER,
    "RemoveContainer": Event.REMOVE_CONTAINER,
    "PostUpdatePodSandbox": Event.POST_UPDATE_POD_SANDBOX,
}


class Stage(IntEnum):
    """The stage of a connection."""

    CONNECTED = 0
    CONFIGURED = 1
    SYNCHRONIZING = 2
    SYNCHRONIZED = 3
    ENDED = 4


class PluginService:
    """Answers one connection's calls, and tracks its stage."""

    def __init__(self, handlers: Handlers, events: int) -> None:
        self.stage = Stage.CONNECTED
        self.runtime = ""
        self._handlers = handlers
        self._events = events
        self._parts = Parts()

    def answer(self, service: str, method: str, payload: bytes) -> bytes:
        """Return the answer to a call; raise Reject, ProtocolError, and all errors of handlers."""
        if service == PLUGIN_SERVICE and (event := _LIFECYCLE.get(method)) is not None:
            return self._lifecycle(event, payload)
        if service == PLUGIN_SERVICE and (answering := self._METHODS.get(method)) is not None:
            return answering(self, payload)
        raise Reject(f"{service} has no method {method} here", UNIMPLEMENTED)

    def _configure(self, payload: bytes) -> bytes:
        request = decoded(pb.ConfigureRequest, payload)
        self._handlers.configure(request)
        self.runtime = f"{request.runtime_name} {request.runtime_version}".strip()[:_NAME_LIMIT]
        self.stage = max(self.stage, Stage.CONFIGURED)
        return pb.ConfigureResponse(events=self._events).SerializeToString()

    def _synchronize(self, payload: bytes) -> bytes:
        self.stage = max(self.stage, Stage.SYNCHRONIZING)
        if self._parts.add(payload):
            return pb.SynchronizeResponse(more=True).SerializeToString()
        whole, self._parts = self._parts, Parts()
        updates = self._handlers.synchronize(whole.pods, whole.containers)
        answer = pb.SynchronizeResponse(update=updates).SerializeToString()
        self.stage = max(self.stage, Stage.SYNCHRONIZED)
        return answer

    def _create_container(self, payload: bytes) -> bytes:
        request = decoded(pb.CreateContainerRequest, payload)
        return self._handlers.create_container(request.pod, request.container).SerializeToString()

    def _update_container(self, payload: bytes) -> bytes:
        request = decoded(pb.UpdateContainerRequest, payload)
        answer = self._handlers.update_container(request.pod, request.container, request.linux_resources)
        return answer.SerializeToString()

    def _validate(self, payload: bytes) -> bytes:
        reason = self._handlers.validate(decoded(pb.ValidateContainerAdjustmentRequest, payload))
        answer = pb.ValidateContainerAdjustmentResponse(reject=bool(reason), reason=reason)
        return answer.SerializeToString()

    def _update_pod(self, payload: bytes) -> bytes:
        request = decoded(pb.UpdatePodSandboxRequest, payload)
        return self._pass_event(Event.UPDATE_POD_SANDBOX, request.pod, pb.KnownContainer())

    def _lifecycle(self, event: Event, payload: bytes) -> bytes:
        request = decoded(pb.LifecycleRequest, payload)
        return self._pass_event(event, request.pod, request.container)

    def _state_change(self, payload: bytes) -> bytes:
        change = decoded(pb.StateChangeEvent, payload)
        return self._pass_event(change.event, change.pod, change.container)

    def _pass_event(self, event: int, pod: pb.KnownPodSandbox, container: pb.KnownContainer) -> bytes:
        self._handlers.event(event, pod, container)
        return b""

    def _shutdown(self, _: bytes) -> bytes:
        self.stage = Stage.ENDED
        return b""

    _METHODS: ClassVar[Mapping[str, Callable[[PluginService, bytes], bytes]]] = {
        "Configure": _configure,
        "Synchronize": _synchronize,
        "CreateContainer": _create_container,
        "UpdateContainer": _update_container,
        "ValidateContainerAdjustment": _validate,
        "UpdatePodSandbox": _update_pod,
        "StateChange": _state_change,
        "Shutdown": _shutdown,
    }
