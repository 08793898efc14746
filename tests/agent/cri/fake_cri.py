"""A fake CRI runtime with answers shaped like CRI-O's and Kata's, errors, and call counts."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from cri_api.v1 import api_pb2

from tests.agent.grpc_serving import grpc_service


class FakeRuntime:
    """The pods of a node, which the test changes; calls are counted in `asked`."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.name, self.version = "cri-o", "1.31.0"
        self.sandboxes: list[api_pb2.PodSandbox] = []
        self.containers: list[api_pb2.Container] = []
        self.infos: dict[str, Any] = {}
        self.started: dict[str, int] = {}  # start time of each container in nanoseconds
        # Exit code, reason and time in nanoseconds, by container.
        self.exits: dict[str, tuple[int, str, int]] = {}
        # Error with which a method answers, by name of the method.
        self.errors: dict[str, tuple[grpc.StatusCode, str]] = {}
        self.asked: Counter[str] = Counter()
        self.updates: list[tuple[str, str]] = []
        self.mems: list[str] = []  # memory nodes of each update; empty leaves them unchanged
        self.in_flight = self.most_in_flight = 0
        self.release = asyncio.Event()
        self.release.set()
        self.events: asyncio.Queue[str] | None = None  # None: a runtime without events
        self.padding: dict[str, str] = {}  # annotations of each pod in events

    def send(self, name: str) -> None:
        """Send an event of a container; an empty name ends the stream."""
        assert self.events is not None
        self.events.put_nowait(name)

    def add(self, name: str, info: Any, *, state: int = api_pb2.CONTAINER_RUNNING, handler: str = "") -> None:
        """Add a pod of one container with the same name as its id."""
        metadata = api_pb2.PodSandboxMetadata(name=f"pod-{name}", uid=f"uid-{name}", namespace="ns")
        self.sandboxes.append(api_pb2.PodSandbox(id=f"s-{name}", metadata=metadata, runtime_handler=handler))
        self.containers.append(
            api_pb2.Container(
                id=name,
                pod_sandbox_id=f"s-{name}",
                state=state,  # type: ignore[arg-type]  # an enum of protobuf is a number
                metadata=api_pb2.ContainerMetadata(name=name),
            )
        )
        self.infos[name] = info

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve on the socket until the block ends."""
        async with grpc_service(self.socket, "runtime.v1.RuntimeService", self._handlers()):
            yield

    def _handlers(self) -> dict[str, Any]:
        answers = {
            "Version": self._version,
            "ListContainers": self._list,
            "ListPodSandbox": self._list_sandboxes,
            "ContainerStatus": self._status,
            "PodSandboxStatus": self._sandbox_status,
            "UpdateContainerResources": self._update,
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                self._asked(name, answer),
                request_deserializer=getattr(api_pb2, f"{name}Request").FromString,
                response_serializer=lambda answered: answered.SerializeToString(),
            )
            for name, answer in answers.items()
        }
        if self.events is not None:
            handlers["GetContainerEvents"] = grpc.unary_stream_rpc_method_handler(
                self._follow,
                request_deserializer=api_pb2.GetEventsRequest.FromString,
                response_serializer=lambda answered: answered.SerializeToString(),
            )
        return handlers

    def _asked(self, name: str, answer: Any) -> Any:
        """Return a handler that counts calls and fails on request."""

        async def call(request: Any, context: Any) -> Any:
            self.asked[name] += 1
            if name in self.errors:
                await context.abort(*self.errors[name])
            return await answer(request)

        return call

    async def _version(self, _: Any) -> Any:
        return api_pb2.VersionResponse(runtime_name=self.name, runtime_version=self.version)

    async def _list(self, request: Any) -> Any:
        which, wanted = request.filter, request.filter.id
        found = [container for container in self.containers if not wanted or container.id == wanted]
        if which.HasField("state"):
            found = [container for container in found if container.state == which.state.state]
        return api_pb2.ListContainersResponse(containers=found)

    async def _list_sandboxes(self, _: Any) -> Any:
        return api_pb2.ListPodSandboxResponse(items=self.sandboxes)

    async def _status(self, request: Any) -> Any:
        info = self.infos[request.container_id]
        (state,) = (each.state for each in self.containers if each.id == request.container_id)
        code, reason, finished = self.exits.get(request.container_id, (0, "", 0))
        return api_pb2.ContainerStatusResponse(
            status=api_pb2.ContainerStatus(
                state=state,
                started_at=self.started.get(request.container_id, 0),
                finished_at=finished,
                exit_code=code,
                reason=reason,
            ),
            info={"info": info if isinstance(info, str) else json.dumps(info)},
        )

    async def _sandbox_status(self, request: Any) -> Any:
        info = json.dumps(self.infos.get(request.pod_sandbox_id, {}))
        return api_pb2.PodSandboxStatusResponse(info={"info": info})

    async def _update(self, request: Any) -> Any:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await self.release.wait()
        self.in_flight -= 1
        self.updates.append((request.container_id, request.linux.cpuset_cpus))
        self.mems.append(request.linux.cpuset_mems)
        return api_pb2.UpdateContainerResourcesResponse()

    async def _follow(self, _: Any, context: Any) -> AsyncIterator[Any]:
        self.asked["GetContainerEvents"] += 1
        if "GetContainerEvents" in self.errors:
            await context.abort(*self.errors["GetContainerEvents"])
        assert self.events is not None
        while name := await self.events.get():
            metadata = api_pb2.PodSandboxMetadata(uid=f"uid-{name}", name=f"pod-{name}", namespace="ns")
            state = next((it.state for it in self.containers if it.id == name), api_pb2.CONTAINER_RUNNING)
            status = api_pb2.ContainerStatus(
                id=name, metadata=api_pb2.ContainerMetadata(name=name), state=state
            )
            yield api_pb2.ContainerEventResponse(
                container_id=name,
                container_event_type=api_pb2.CONTAINER_STARTED_EVENT,
                pod_sandbox_status=api_pb2.PodSandboxStatus(
                    id=f"s-{name}", metadata=metadata, annotations=self.padding
                ),
                containers_statuses=[status],
            )
