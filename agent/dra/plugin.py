"""The sockets of the kubelet plugin: registration, and the service that prepares claims.

The service listens first: the kubelet connects to it as soon as it finds the registration socket.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol

from agent.dra import dra_pb2 as dra
from agent.dra import registration_pb2 as registration
from agent.grpc_server import GrpcServer, Method
from pinning.contract import CDI_KIND, DRA_DRIVER
from pinning.dra.claims import ClaimGrant, device_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from agent.dra.cdi import CDIFiles
    from agent.dra.claim_metrics import ClaimMetrics
    from pinning.dra.claims import ClaimPart, DeviceClaim

SERVICE: Final = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
VERSION: Final = "v1.DRAPlugin"  # of Kubernetes 1.34 and later: before, allocations say no consumed capacity
PLUGIN_TYPE: Final = "DRAPlugin"
MOST_CLAIMS: Final = 256  # of one request; a pod has at most 32

logger = logging.getLogger(__name__)


class Book(Protocol):
    """Decides what the kubelet asks."""

    async def prepare(self, namespace: str, uid: str, name: str) -> ClaimGrant | DeviceClaim | str:
        """Return the CPUs of a claim, the claim itself if it has none of ours, or the reason why it is not prepared."""
        ...

    async def unprepare(self, uid: str) -> str:
        """Give the CPUs of a claim back; return why that is not done yet, empty if it is."""
        ...


class KubeletPlugin:
    """Registers at the kubelet, and answers it."""

    def __init__(
        self,
        kubelet_root: Path,
        node: str,
        book: Book,
        files: CDIFiles,
        metrics: ClaimMetrics | None = None,
    ) -> None:
        self._folder = kubelet_root / "plugins" / DRA_DRIVER
        self._registration = kubelet_root / "plugins_registry" / f"{DRA_DRIVER}-reg.sock"
        self._node = node
        self._book = book
        self._files = files
        self._metrics = metrics
        self.is_registered = False
        # Called when the kubelet has registered the driver.
        self.registered: Callable[[], None] = lambda: None
        self._trouble = ""

    @property
    def endpoint(self) -> Path:
        """The socket of the service."""
        return self._folder / "dra.sock"

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Serve until the block ends; raise AgentError and OSError."""
        service = GrpcServer(
            {
                f"/{SERVICE}/NodePrepareResources": Method(dra.NodePrepareResourcesRequest, self._prepare),
                f"/{SERVICE}/NodeUnprepareResources": Method(
                    dra.NodeUnprepareResourcesRequest, self._unprepare
                ),
            }
        )
        register = GrpcServer(
            {
                "/pluginregistration.Registration/GetInfo": Method(registration.InfoRequest, self._info),
                "/pluginregistration.Registration/NotifyRegistrationStatus": Method(
                    registration.RegistrationStatus, self._notified
                ),
            }
        )
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            async with service.listening(self.endpoint), register.listening(self._registration):
                yield
        finally:
            self.is_registered = False

    async def _info(self, _request: registration.InfoRequest) -> registration.PluginInfo:
        return registration.PluginInfo(
            type=PLUGIN_TYPE, name=DRA_DRIVER, endpoint=str(self.endpoint), supported_versions=[VERSION]
        )

    async def _notified(
        self, status: registration.RegistrationStatus
    ) -> registration.RegistrationStatusResponse:
        self.is_registered = status.plugin_registered
        if status.plugin_registered:
            logger.info("registered at the kubelet", extra={"facts": {"driver": DRA_DRIVER}})
            self._trouble = ""
            self.registered()
        elif status.error != self._trouble:
            facts = {"reason": status.error, "remedy": "claims need a kubelet of Kubernetes 1.36 or later"}
            logger.error("the kubelet does not take the driver", extra={"facts": facts})
            self._trouble = status.error
        return registration.RegistrationStatusResponse()

    async def _prepare(self, request: dra.NodePrepareResourcesRequest) -> dra.NodePrepareResourcesResponse:
        """Prepare all claims of a pod together; each has an answer of its own."""
        claims = request.claims[:MOST_CLAIMS]
        found = await asyncio.gather(*(self._timed(claim) for claim in claims))
        answer = dra.NodePrepareResourcesResponse()
        for claim, prepared in zip(claims, found, strict=True):
            answer.claims[claim.uid].CopyFrom(prepared)
        return answer

    async def _timed(self, claim: dra.Claim) -> dra.NodePrepareResourceResponse:
        begun = monotonic()
        answer = await self._prepared(claim)
        if self._metrics:
            self._metrics.prepared(monotonic() - begun, is_refused=bool(answer.error))
        return answer

    async def _prepared(self, claim: dra.Claim) -> dra.NodePrepareResourceResponse:
        grant = await self._book.prepare(claim.namespace, claim.uid, claim.name)
        if isinstance(grant, str):
            facts = {"claim": f"{claim.namespace}/{claim.name}", "reason": grant}
            logger.warning("claim not prepared", extra={"facts": facts})
            return dra.NodePrepareResourceResponse(error=grant)
        if not isinstance(grant, ClaimGrant):  # all of it is another driver's
            return dra.NodePrepareResourceResponse()
        try:
            await asyncio.to_thread(self._files.write, grant)
        except OSError as error:
            reason = f"the CDI file of claim {grant.claim.full_name} cannot be written: {error}"
            logger.error("claim not prepared", extra={"facts": {"reason": reason}})  # noqa: TRY400 - that says it all
            return dra.NodePrepareResourceResponse(error=reason)
        facts = {"claim": grant.claim.full_name, "cpus": str(grant.footprint)}
        logger.info("claim prepared", extra={"facts": facts})
        return dra.NodePrepareResourceResponse(
            devices=[self._device(grant.claim.uid, part) for part in grant.claim.parts]
        )

    def _device(self, uid: str, part: ClaimPart) -> dra.Device:
        return dra.Device(
            request_names=[part.request],
            pool_name=self._node,
            device_name=part.device,
            cdi_device_ids=[f"{CDI_KIND}={device_name(uid, part.request)}"],
            share_id=part.share or None,
        )

    async def _unprepare(
        self, request: dra.NodeUnprepareResourcesRequest
    ) -> dra.NodeUnprepareResourcesResponse:
        claims = request.claims[:MOST_CLAIMS]
        errors = await asyncio.gather(*(self._unprepared(claim) for claim in claims))
        answer = dra.NodeUnprepareResourcesResponse()
        for claim, error in zip(claims, errors, strict=True):
            answer.claims[claim.uid].error = error
        return answer

    async def _unprepared(self, claim: dra.Claim) -> str:
        error = await self._book.unprepare(claim.uid)
        if error:
            return error
        try:
            await asyncio.to_thread(self._files.remove, claim.uid)
        except OSError as problem:
            return f"its CDI file cannot be deleted: {problem}"
        facts = {"claim": f"{claim.namespace}/{claim.name}"}
        logger.info("claim given back", extra={"facts": facts})
        return ""
