"""Cost of ResourceClaims on 256 CPUs: `python -m bench.claims`.

A driver of ResourceClaims on its real sockets prepares 200 claims of 110 pods: real passes, which save the
ledger on disk, and CDI files in memory, where `/var/run` of a node is, too; runtime, cgroups and API server
are in memory. Beside it the answers for new containers are timed with and without claims, because each adds a
variable to them, and the memory of claims is counted. A call's time is what the kubelet waits for it; its CPU time
does not depend on the load. Answers are timed in CPU time.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import tempfile
import time
import tracemalloc
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry

from agent.dra import dra_pb2 as dra
from agent.dra import registration_pb2 as registration
from agent.dra.claim_metrics import ClaimMetrics
from agent.dra.driver import DRADriver
from agent.dra.plugin import SERVICE
from agent.dra.reader import ClaimReader
from agent.grpc_calls import Calls
from bench import percentile
from pinning.machine.cpuset import CPUSet
from pinning.machine.topology import CPUFacts, Topology, assemble
from pinning.planning.observed import Owner
from pinning.planning.start_table import Start, start_table
from tests.agent.fakes import FakeNode
from tests.pinning.dra.claiming import ClaimWorld, claim, document, result, uid_of
from tests.pinning.world import Wish, pod_document

if TYPE_CHECKING:
    from collections.abc import Iterator

CPUS, CPUS_PER_NODE = 256, 32
PODS, CLAIMS = 110, 200
STARTS: Final = 20_000
MILLISECONDS: Final = 1e3
PREPARE_LIMIT: Final = 300.0  # ms, p99
START_LIMIT: Final = 1.0  # ms more than without claims, p99
MEMORY_LIMIT: Final = 0.1  # MB for ten claims
MEMORY: Final = "/dev/shm"  # noqa: S108  # a folder in memory


def machine() -> Topology:
    """Return a machine of cores with one thread each, so that 200 claims of one CPU fit."""
    facts = [CPUFacts(cpu, cpu, 0, cpu // CPUS_PER_NODE, cpu // 8) for cpu in range(CPUS)]
    return assemble(facts, CPUSet(range(CPUS)))


def device(number: int) -> str:
    """Return the device of a claim; they are spread over all NUMA nodes."""
    return f"cpudevnuma{number % (CPUS // CPUS_PER_NODE):03d}"


class Allocations:
    """An API server that generates claims on each read, so that they use no memory of this process."""

    async def get(self, path: str) -> bytes:
        """Return a claim."""
        await asyncio.sleep(0)
        return json.dumps(allocated(path.rpartition("/")[2])).encode()


def allocated(name: str) -> dict[str, Any]:
    """Return an allocated claim, which is reserved for its pod."""
    number, uid = int(name[1:]), f"pod-{int(name[1:]) % PODS}"
    made = document(result("1", device=device(number)), uid=uid_of(name))
    made["metadata"]["name"] = name
    made["status"]["reservedFor"] = [{"resource": "pods", "name": f"pod-{uid}", "uid": uid}]
    return made


class Node:
    """A node whose agent is a driver, with pods that name claims."""

    def __init__(self, folder: Path, cdi: Path, claims: int = CLAIMS) -> None:
        self.root, self.names = folder / "k", [f"c{number:03}" for number in range(claims)]
        for name in ("plugins", "plugins_registry"):
            (self.root / name).mkdir(parents=True)
        self.node = FakeNode(folder / "state", machine())
        reader = ClaimReader(Allocations(), "node-1")  # type: ignore[arg-type]
        self.driver = DRADriver(reader, "node-1", self.root, cdi, ClaimMetrics(CollectorRegistry()))
        self.node.claims = self.driver
        self._add()
        self.node.new_agent()
        self._wanted = asyncio.Event()

    def _add(self) -> None:
        """Create the pods."""
        for pod in range(PODS):
            uid, names = f"pod-{pod}", self.names[pod::PODS]
            made = pod_document(uid, [Wish("500m")], created=pod)
            made["spec"]["resourceClaims"] = [{"name": name, "resourceClaimName": name} for name in names]
            made["spec"]["containers"][0]["resources"]["claims"] = [{"name": name} for name in names]
            self.node.documents[uid] = made

    async def serve(self) -> None:
        """Run a pass at start and for each request."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.driver.run(self._wanted.set))
            while True:
                self._wanted.clear()
                await self.node.agent.reconciler.run_pass()
                await self._wanted.wait()

    async def registered(self) -> None:
        """Register the driver as the kubelet does."""
        socket = self.root / "plugins_registry/cpu.corepin.io-reg.sock"
        while not socket.exists():
            await asyncio.sleep(0.01)
        status = registration.RegistrationStatus(plugin_registered=True)
        calls = Calls(socket, "pluginregistration.Registration", 30)
        await calls.ask("NotifyRegistrationStatus", status, registration.RegistrationStatusResponse)

    async def prepare(self, names: list[str]) -> float:
        """Prepare claims by one call over the socket; return its seconds."""
        calls = Calls(self.root / "plugins/cpu.corepin.io/dra.sock", SERVICE, 45)
        began = time.perf_counter()
        answer = await calls.ask("NodePrepareResources", asking(names), dra.NodePrepareResourcesResponse)
        return checked(answer, began)

    async def prepare_at_once(self, names: list[str]) -> float:
        """Prepare claims by calling the plugin directly, because our client sends no concurrent calls."""
        began = time.perf_counter()
        return checked(await self.driver.plugin._prepare(asking(names)), began)  # noqa: SLF001


def asking(names: list[str]) -> dra.NodePrepareResourcesRequest:
    """Return the call of the kubelet for the claims of a pod."""
    claims = [dra.Claim(namespace="test", uid=uid_of(name), name=name) for name in names]
    return dra.NodePrepareResourcesRequest(claims=claims)


def checked(answer: dra.NodePrepareResourcesResponse, began: float) -> float:
    """Return the seconds since `began`; raise RuntimeError if a claim is not prepared."""
    seconds = time.perf_counter() - began
    if errors := [it.error for it in answer.claims.values() if len(it.devices) != 1]:
        raise RuntimeError(errors[0])
    return seconds


async def prepared(node: Node, *, at_once: bool) -> list[float]:
    """Prepare the claims of all pods, by a call for each; return the seconds of the calls."""
    pods = [names for pod in range(PODS) if (names := node.names[pod::PODS])]
    serving = asyncio.create_task(node.serve())
    try:
        await node.registered()
        if at_once:
            return await asyncio.gather(*(node.prepare_at_once(names) for names in pods))
        return [await node.prepare(names) for names in pods]
    finally:
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving


def starts(claims: int) -> list[float]:
    """Return the seconds of each NRI answer for new containers, on a node with this many claims."""
    world = ClaimWorld(machine())
    for pod in range(PODS):
        names = [f"c{number:03}" for number in range(pod, claims, PODS)]
        for name in names:
            world.claims(claim(name, 1, pods=(f"pod-{pod}",), device=device(int(name[1:]))))
        world.user(f"pod-{pod}", *names, wish=Wish("500m"))
    world.run_all()
    table, found = start_table(world.plan(), world.observe()), []
    for number in range(STARTS):
        owner = Owner(f"pod-{number % PODS}", "c0")
        began = time.thread_time()
        start = table.start(owner, claims=True)
        if isinstance(start, Start):
            table.environment(start)
        found.append(time.thread_time() - began)
    return found


def milliseconds(seconds: list[float], share: float) -> float:
    """Return a percentile in milliseconds."""
    return percentile(seconds, share) * MILLISECONDS


@contextmanager
def new_node(claims: int = CLAIMS) -> Iterator[Node]:
    """Return a node whose files are removed after the block."""
    with tempfile.TemporaryDirectory(prefix="c-") as disk, tempfile.TemporaryDirectory(dir=MEMORY) as memory:
        node = Node(Path(disk), Path(memory), claims)
        try:
            yield node
        finally:
            node.node.close()


def memory(claims: int) -> int:
    """Return the bytes of memory of this many claims."""
    with new_node(claims) as node:
        gc.collect()
        tracemalloc.start()
        node.node.runner.run(prepared(node, at_once=False))
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return taken


def rows() -> Iterator[tuple[str, float, float | None]]:
    """Yield name, value and limit of each figure."""
    for at_once in (False, True):
        with new_node() as node:
            began = time.process_time()
            seconds = node.node.runner.run(prepared(node, at_once=at_once))
            used = time.process_time() - began
        how = "all pods at once" if at_once else "pod by pod"
        yield f"Prepare, {how}, CPU time of a pod (ms)", used / PODS * MILLISECONDS, None
        for share in (0.5, 0.99, 1.0):
            limit = PREPARE_LIMIT if share == 0.99 else None
            yield f"Prepare, {how}, p{share * 100:g} (ms)", milliseconds(seconds, share), limit
    without, with_claims = (milliseconds(starts(claims), 0.99) for claims in (0, CLAIMS))
    yield "new container without claims, p99 (ms)", without, None
    yield f"new container, {CLAIMS} claims, p99 (ms)", with_claims, without + START_LIMIT
    half = CLAIMS // 2
    taken = memory(CLAIMS) - memory(half)
    yield "memory of ten claims (MB)", taken / (CLAIMS - half) * 10 / 1e6, MEMORY_LIMIT


def main() -> int:
    """Print the figures; return 1 if one is above its limit."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    missed = False
    for name, value, limit in rows():
        missed |= limit is not None and value > limit
        goal = "" if limit is None else f"   limit {limit:.3g}{'' if value <= limit else ': MISSED'}"
        print(f"{name:<44}{value:>10.3f}{goal}", flush=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
