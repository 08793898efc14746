"""The sockets of the kubelet plugin: registration, and the service that prepares claims.

The service listens first: the kubelet connects to it as soon as it finds the registration socket.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol

from agent.dra import dra_pb2 as dra
from agent.dra import registration_pb2 as registration
from agent.dra.refusals import Cause, RefusedPrepare
from agent.grpc_server import GrpcServer, Method
from pinning.contract import CDI_KIND, DRA_DRIVER
from pinning.dra.claims import ClaimGrant, device_name, is_uid

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping
    from pathlib import Path

    from agent.dra.cdi import CDIFiles
    from agent.dra.claim_metrics import ClaimMetrics
    from pinning.dra.claims import ClaimPart, DeviceClaim

SERVICE: Final = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
# Served by Kubernetes 1.34 and later: earlier allocations lack consumed capacity.
VERSION: Final = "v1.DRAPlugin"
PLUGIN_TYPE: Final = "DRAPlugin"
MOST_CLAIMS: Final = 256  # claims in one request; a pod has at most 32
# Maximum number of files that are written concurrently; few suffice, because the files are in memory. Each thread that
# ever wrote one keeps 0.1 MB, and the executor would start up to 32 for a pod with many claims, or many pods.
FILES_AT_ONCE: Final = 4
TOO_MANY: Final = f"a request has at most {MOST_CLAIMS} claims: ask for the others in another one"

logger = logging.getLogger(__name__)


class Book(Protocol):
    """Answers the kubelet's Prepare and Unprepare calls."""

    async def prepare(self, namespace: str, uid: str, name: str) -> ClaimGrant | DeviceClaim | RefusedPrepare:
        """Return the CPUs of a claim, the claim itself if it has no device of this driver, or a refusal."""
        ...

    def served(self, uid: str) -> ClaimGrant | None:
        """Return the CPUs of a claim that is prepared, or was unprepared while its containers still run."""
        ...

    async def unprepare(self, uid: str) -> str:
        """Unprepare a claim; return an error, or "" if that is done or containers still run on its CPUs."""
        ...


class KubeletPlugin:
    """Registers with the kubelet, and serves its calls."""

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
        # The newest task that writes or deletes the file of a claim, by uid.
        self._writing: dict[str, asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(FILES_AT_ONCE)

    @property
    def endpoint(self) -> Path:
        """The path of the unix socket on which the kubelet calls the driver."""
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
            logger.error("the kubelet refuses the driver", extra={"facts": facts})
            self._trouble = status.error
        return registration.RegistrationStatusResponse()

    async def _prepare(self, request: dra.NodePrepareResourcesRequest) -> dra.NodePrepareResourcesResponse:
        """Prepare all claims of a pod concurrently; claims above the limit get an error."""
        claims = {claim.uid: claim for claim in request.claims}
        served, others = _split(claims)
        found = await asyncio.gather(*(self._timed(claims[uid]) for uid in served))
        answer = dra.NodePrepareResourcesResponse()
        for uid, prepared in zip(served, found, strict=True):
            answer.claims[uid].CopyFrom(prepared)
        for uid in others:
            answer.claims[uid].error = TOO_MANY
            self._count(0.0, Cause.TOO_MANY)
        return answer

    async def _timed(self, claim: dra.Claim) -> dra.NodePrepareResourceResponse:
        begun = monotonic()
        found = await self._prepared(claim)
        if not isinstance(found, RefusedPrepare):
            self._count(monotonic() - begun, None)
            return found
        self._count(monotonic() - begun, found.cause)
        facts = {"claim": f"{claim.namespace}/{claim.name}", "reason": found.message}
        logger.warning("claim not prepared", extra={"facts": facts})
        return dra.NodePrepareResourceResponse(error=found.message)

    def _count(self, seconds: float, refused: Cause | None) -> None:
        if self._metrics:
            self._metrics.prepared(seconds, refused)

    async def _prepared(self, claim: dra.Claim) -> dra.NodePrepareResourceResponse | RefusedPrepare:
        grant = await self._book.prepare(claim.namespace, claim.uid, claim.name)
        if isinstance(grant, RefusedPrepare):
            return grant
        if not isinstance(grant, ClaimGrant):  # it has no device of this driver
            return dra.NodePrepareResourceResponse()
        try:
            await self._on_file(claim.uid, partial(self._files.write, grant))
        except OSError as error:
            problem = f"the CDI file of claim {grant.claim.full_name} cannot be written: {error}"
            return RefusedPrepare(Cause.CDI_FILE, problem)
        facts = {"claim": grant.claim.full_name, "cpus": str(grant.footprint)}
        logger.info("claim prepared", extra={"facts": facts})
        return dra.NodePrepareResourceResponse(
            devices=[self._device(grant.claim.uid, part) for part in grant.claim.parts]
        )

    async def keep_files(self, grants: Iterable[ClaimGrant]) -> None:
        """Restore the files of prepared claims that another program deleted or changed; delete those of other claims.

        The kubelet prepares a claim once, so without its file no container of the claim could be restarted. The file of
        a claim that was unprepared while in use is deleted here, after its release. Raise OSError.
        """
        prepared, problem = tuple(grants), None
        for grant in await asyncio.to_thread(self._files.wrong, prepared):
            if self._book.served(grant.claim.uid) == grant:
                problem = await self._tried(grant.claim.uid, partial(self._write_again, grant)) or problem
        for uid in await asyncio.to_thread(self._files.besides, prepared):
            if self._book.served(uid) is None:
                problem = await self._tried(uid, partial(self._files.remove, uid)) or problem
        if problem:
            raise problem

    async def _tried(self, uid: str, work: Callable[[], object]) -> OSError | None:
        """Write or delete the file of a claim; return the error, which must not keep the files of others from their turn."""
        try:
            await self._on_file(uid, work)
        except OSError as error:
            return error
        return None

    def _write_again(self, grant: ClaimGrant) -> None:
        has_served = self._files.serves(grant)  # only the pods of the claim have changed
        if self._files.write(grant) and not has_served:
            facts = {"claim": grant.claim.full_name, "reason": "it was missing, or had been changed"}
            logger.warning("CDI file written again", extra={"facts": facts})

    async def _on_file(self, uid: str, work: Callable[[], object]) -> None:
        """Write or delete the file of a claim, after earlier calls for this claim; raise OSError.

        A call that the kubelet cancels still runs to its end before the next call for this claim begins; otherwise
        a late write could restore the file of an unprepared claim.
        """
        task = asyncio.create_task(self._after(self._writing.get(uid), work))
        self._writing[uid] = task
        task.add_done_callback(partial(self._written, uid))
        await asyncio.shield(task)

    async def _after(self, before: asyncio.Task[None] | None, work: Callable[[], object]) -> None:
        if before:
            await asyncio.wait([before])
        async with self._turns:
            await asyncio.to_thread(work)

    def _written(self, uid: str, task: asyncio.Task[None]) -> None:
        """Forget a finished task; retrieve its error, which asyncio would log if the caller was cancelled."""
        if not task.cancelled():
            task.exception()
        if self._writing.get(uid) is task:
            del self._writing[uid]

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
        claims = {claim.uid: claim for claim in request.claims}
        served, others = _split(claims)
        errors = await asyncio.gather(*(self._unprepared(claims[uid]) for uid in served))
        answer = dra.NodeUnprepareResourcesResponse()
        for uid, error in zip([*served, *others], [*errors, *[TOO_MANY] * len(others)], strict=True):
            answer.claims[uid].error = error
        return answer

    async def _unprepared(self, claim: dra.Claim) -> str:
        if not is_uid(claim.uid):  # it was never prepared
            return ""
        error = await self._book.unprepare(claim.uid)
        if error:
            return error
        if grant := self._book.served(claim.uid):
            facts = {"claim": grant.claim.full_name, "kept": str(grant.footprint)}
            logger.warning("claim unprepared while in use", extra={"facts": facts})
            return ""
        try:
            await self._on_file(claim.uid, partial(self._files.remove, claim.uid))
        except OSError as problem:
            return f"its CDI file cannot be deleted: {problem}"
        facts = {"claim": f"{claim.namespace}/{claim.name}"}
        logger.info("claim unprepared", extra={"facts": facts})
        return ""


def _split(claims: Mapping[str, dra.Claim]) -> tuple[list[str], list[str]]:
    """Return the uids of the claims that are served, and of the claims above the limit."""
    uids = list(claims)
    return uids[:MOST_CLAIMS], uids[MOST_CLAIMS:]
