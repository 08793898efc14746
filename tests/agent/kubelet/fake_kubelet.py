"""A fake kubelet with a PodResources API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from agent.kubelet.podresources_pb2 import (
    ContainerDevices,
    ContainerResources,
    ListPodResourcesResponse,
    NUMANode,
    PodResources,
    TopologyInfo,
)
from tests.agent.grpc_serving import grpc_service

GPU, NIC = "nvidia.com/gpu", "example.com/nic"
CPUsOf = Mapping[str, Iterable[int]]  # the CPUs of containers


def pod(name: str, containers: CPUsOf, cpus: Iterable[int] = ()) -> PodResources:
    """Return a pod in the kubelet's answer; `cpus` are the pod-level CPUs."""
    resources = [ContainerResources(name=key, cpu_ids=list(ids)) for key, ids in containers.items()]
    return PodResources(namespace="ns", name=name, containers=resources, cpu_ids=list(cpus))


def entry(resource: str, device: str, *nodes: int) -> ContainerDevices:
    """Return one entry of the list, without topology if no nodes are given."""
    topology = TopologyInfo(nodes=[NUMANode(ID=node) for node in nodes]) if nodes else None
    return ContainerDevices(resource_name=resource, device_ids=[device], topology=topology)


def listed(
    name: str, *devices: ContainerDevices, container: str = "c", namespace: str = "ns"
) -> PodResources:
    """Return a pod in the list with one container."""
    containers = [ContainerResources(name=container, devices=devices)]
    return PodResources(namespace=namespace, name=name, containers=containers)


class FakeKubelet:
    """Answers with the current pods; `asked` counts the calls."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.answer: bytes = b""
        self.allocatable: bytes = b""  # the answer to GetAllocatableResources
        self.error: tuple[grpc.StatusCode, str] | None = None
        self.hangs = False
        self.asked = 0
        self.limits: list[float] = []  # how long the client of each call waits, in seconds

    def lists(self, *pods: PodResources) -> None:
        """Answer with these pods from now on."""
        self.answer = ListPodResourcesResponse(pod_resources=pods).SerializeToString()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve on the socket until the block ends."""
        handler = grpc.unary_unary_rpc_method_handler(self._list)  # bytes in, bytes out
        there = grpc.unary_unary_rpc_method_handler(self._allocatable)
        handlers = {"List": handler, "GetAllocatableResources": there}
        async with grpc_service(self.socket, "v1.PodResourcesLister", handlers):
            yield

    async def _allocatable(self, _: bytes, context: Any) -> bytes:
        self.asked += 1
        self.limits.append(context.time_remaining())
        return self.allocatable

    async def _list(self, _: bytes, context: Any) -> bytes:
        self.asked += 1
        self.limits.append(context.time_remaining())
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        if self.error:
            await context.abort(*self.error)
        return self.answer
