"""A gRPC server on a unix socket, for fakes of the runtime and the kubelet."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path


@asynccontextmanager
async def grpc_service(
    socket: Path, service: str, handlers: Mapping[str, grpc.RpcMethodHandler]
) -> AsyncIterator[None]:
    """Serve the methods of a service on a socket until the block ends."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    server.add_insecure_port(f"unix://{socket}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)
