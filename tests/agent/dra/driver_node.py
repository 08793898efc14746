"""A driver of claims on its sockets, with an API server and passes that are played by the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from agent.dra import dra_pb2 as dra
from agent.dra import registration_pb2 as registration
from agent.dra.claim_metrics import ClaimMetrics
from agent.dra.driver import FILES_SECONDS, DRADriver
from agent.dra.plugin import SERVICE
from agent.dra.reader import ClaimReader
from agent.grpc_calls import Calls
from apiserver.errors import Gone
from pinning.dra.claims import ClaimGrant
from pinning.machine.cpuset import CPUSet
from pinning.planning.ledger import Ledger
from pinning.planning.observed import SeenPod
from tests.environments.waiting import background
from tests.pinning.dra.claiming import NODE, document, result, uid_of


@dataclass
class FakeApi:
    """An API server that keeps claims by name."""

    claims: dict[str, Any] = field(default_factory=dict)
    problem: Exception | None = None
    requests: list[str] = field(default_factory=list)

    async def get(self, path: str) -> bytes:
        """Return a claim."""
        self.requests.append(path)
        await asyncio.sleep(0)
        if self.problem:
            raise self.problem
        name = path.rpartition("/")[2]
        if name not in self.claims:
            raise Gone("404: not found")
        return json.dumps(self.claims[name]).encode()


class Node:
    """A driver, and passes that grant each claim its own CPUs, in order, until none are free."""

    def __init__(
        self,
        folder: Path,
        cpus: int = 8,
        files_seconds: float = FILES_SECONDS,
        leftover_seconds: float = 0.01,
    ) -> None:
        self.api = FakeApi()
        self.folder = folder
        self.slept: list[float] = []
        self.root, self.cdi = folder / "k", folder / "cdi"
        for name in ("plugins", "plugins_registry"):
            (self.root / name).mkdir(parents=True)
        reader = ClaimReader(self.api, NODE, self._sleep)  # type: ignore[arg-type]
        self.registry, self.now = CollectorRegistry(), 0.0
        metrics = ClaimMetrics(self.registry, lambda: self.now)
        self.driver = DRADriver(reader, NODE, self.root, self.cdi, metrics, leftover_seconds, files_seconds)
        self.ledger = Ledger()
        self.pods: list[SeenPod] = []
        self.live: set[str] = set()
        self.in_use: set[str] = set()  # uids of claims with running containers
        self.cpus = cpus
        self.observes = False
        self.passes = 0

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)

    def run_pass(self) -> None:
        """Do what a pass does."""
        self.passes += 1
        seen = self.driver.seen(self.pods, self.live)
        for uid in (seen.released & self.ledger.claims.keys()) - self.in_use:
            self.ledger = self.ledger.release_claim(uid)
        waiting = {}
        for uid, it in seen.known.items():
            held = self.ledger.claims.get(uid)
            if held and uid in seen.prepared and held.claim.parts != it.parts:
                self.ledger = self.ledger.release_claim(uid)
            cpus = [CPUSet([cpu]) for cpu in range(self.cpus) if cpu not in self.ledger.exclusive]
            if uid in self.ledger.claims or uid not in seen.prepared or uid in seen.released:
                continue
            if len(cpus) < len(it.parts):
                waiting[uid] = "request cpu wants 1 CPUs: wait"
                continue
            self.ledger = self.ledger.grant(ClaimGrant(it, tuple(cpus[: len(it.parts)]), is_prepared=True))
        self.driver.passed(self.ledger, waiting, observes=self.observes)

    def request_pass(self) -> None:
        """Run a pass soon, as the loop does."""
        asyncio.get_running_loop().call_soon(self.run_pass)

    async def prepare(self, *names: str, uid: str | None = None) -> Any:
        """Call Prepare as the kubelet does; return the answers by name."""
        claims = [dra.Claim(namespace="test", uid=uid or uid_of(name), name=name) for name in names]
        answer = await self.calls().ask(
            "NodePrepareResources",
            dra.NodePrepareResourcesRequest(claims=claims),
            dra.NodePrepareResourcesResponse,
        )
        assert set(answer.claims) == {it.uid for it in claims}
        return {it.name: answer.claims[it.uid] for it in claims}

    async def add_prepared(self, name: str, *counts: int) -> None:
        """Allocate a claim and prepare it."""
        self.add(name, *counts)
        await self.prepare(name)

    async def unprepare(self, name: str) -> str:
        """Call Unprepare for a claim; return the error."""
        request = dra.NodeUnprepareResourcesRequest(
            claims=[dra.Claim(namespace="test", uid=uid_of(name), name=name)]
        )
        answer = await self.calls().ask("NodeUnprepareResources", request, dra.NodeUnprepareResourcesResponse)
        return answer.claims[uid_of(name)].error

    def calls(self) -> Calls:
        """Return a client of the driver's service."""
        return Calls(self.root / "plugins/cpu.corepin.io/dra.sock", SERVICE, 30)

    def registration(self) -> Calls:
        """Return a client of the registration service."""
        socket = self.root / "plugins_registry/cpu.corepin.io-reg.sock"
        return Calls(socket, "pluginregistration.Registration", 30)

    async def register(self, *, ok: bool = True, error: str = "") -> None:
        """Send the driver the result of its registration."""
        status = registration.RegistrationStatus(plugin_registered=ok, error=error)
        await self.registration().ask(
            "NotifyRegistrationStatus", status, registration.RegistrationStatusResponse
        )

    def add(self, name: str, *counts: int) -> None:
        """Allocate a claim of the API server."""
        results = [result(str(count), request=f"r{at}") for at, count in enumerate(counts)]
        self.api.claims[name] = document(*results, uid=uid_of(name))
        self.api.claims[name]["metadata"]["name"] = name

    def files(self) -> dict[str, Any]:
        """Return the content of the CDI folder, from which the driver's threads delete files."""
        found = {}
        for path in self.cdi.glob("*"):
            with suppress(FileNotFoundError):
                found[path.name] = json.loads(path.read_text())
        return found


@asynccontextmanager
async def driver_at(
    tmp_path: Path, cpus: int = 8, files_seconds: float = FILES_SECONDS, leftover_seconds: float = 0.01
) -> AsyncIterator[Node]:
    """Run a node's driver beside the block."""
    node = Node(tmp_path, cpus, files_seconds, leftover_seconds)
    node.run_pass()
    async with background(node.driver.run(node.request_pass)):
        while not (node.root / "plugins_registry/cpu.corepin.io-reg.sock").exists():
            await asyncio.sleep(0)
        async with asyncio.timeout(60):
            yield node


def pod(uid: str, *names: str) -> SeenPod:
    """Return a pod that names claims."""
    return SeenPod(uid, "test", f"pod-{uid}", "", (), ("c0",), claim_names=frozenset(names))


def many(namespace: str, pods: int) -> list[SeenPod]:
    """Return pods of a namespace that name 32 claims each; none of the claims exists."""
    return [
        replace(
            pod(f"{namespace}-{at}", *(f"{namespace}-{at}-{no}" for no in range(32))), namespace=namespace
        )
        for at in range(pods)
    ]
