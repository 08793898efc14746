"""Publish the CPUs for ResourceClaims in one ResourceSlice, from which the scheduler allocates claims.

The kubelet deletes all slices of its node when it starts, and those of a driver that is disconnected for 30 s, so the
slice is watched, and written again. An API server silently drops fields whose feature gate is off, so the stored slice
is read back: without `allowMultipleAllocations` a claim for 4 CPUs would get a whole NUMA node.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec

from apiserver.backoff import Backoff
from apiserver.errors import APIError, Conflict, Gone
from apiserver.list_watch import ListWatch
from apiserver.pages import decode_any
from pinning.contract import DRA_DRIVER
from pinning.dra.groups import cpus_of_device, slice_devices
from pinning.planning.claim_grants import offer_of

if TYPE_CHECKING:
    from agent.node_state import NodeState
    from apiserver.client import Api

API_VERSION: Final = "resource.k8s.io/v1"
SLICES: Final = f"/apis/{API_VERSION}/resourceslices"
INTERVAL_SECONDS: Final = 1.0  # least time between two writes
LONGEST_NAME: Final = 253
GATE_OFF: Final = (
    "the API server drops allowMultipleAllocations: switch on its feature gate DRAConsumableCapacity, and the"
    " scheduler's; on by default from Kubernetes 1.36 on"
)
NO_GROUP: Final = (
    f"the API server knows no {API_VERSION}: claims need Kubernetes 1.36 or later; write COREPIN_DRA=off"
)

logger = logging.getLogger(__name__)


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    owner_references: list[dict[str, Any]] | None = None


class _Pool(msgspec.Struct):
    name: str = ""
    generation: int = 0


class _Spec(msgspec.Struct, rename="camel"):
    driver: str = ""
    pool: _Pool = msgspec.field(default_factory=_Pool)
    devices: list[dict[str, Any]] | None = None


class Slice(msgspec.Struct):
    """The fields of a ResourceSlice that the agent reads."""

    metadata: _Meta
    spec: _Spec

    @property
    def has_cpus(self) -> bool:
        """Return whether any device of the slice has CPUs."""
        driver = self.spec.driver
        return any(cpus_of_device(driver, device) is not None for device in self.spec.devices or ())


class _Node(msgspec.Struct):
    metadata: _Meta


_slice = msgspec.json.Decoder(Slice)
_node = msgspec.json.Decoder(_Node)


def slice_name(node: str) -> str:
    """Return the name of a node's slice, which is the same after each restart."""
    name = f"{node}-{DRA_DRIVER}"
    if len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(node.encode()).hexdigest()[:16]
    return f"{name[: LONGEST_NAME - len(digest) - 1 - len(DRA_DRIVER) - 1]}-{digest}-{DRA_DRIVER}"


class SliceReport:
    """Keeps the ResourceSlice of the agent's node up to date, one write per interval; observing agents have none."""

    def __init__(self, api: Api, node: str, interval_seconds: float = INTERVAL_SECONDS) -> None:
        self._api = api
        self._node = node
        self._name = slice_name(node)
        self._path = f"{SLICES}/{self._name}"
        self._interval = interval_seconds
        self._slices = ListWatch(api, SLICES, f"spec.nodeName={node}", _slice)
        self._owner: dict[str, Any] | None = None
        self._state: NodeState | None = None
        self._generation = 0
        # Devices as sent last and as the API server stored them, which may set fields that the agent does not know.
        self._sent: list[dict[str, Any]] = []
        self._stored: list[dict[str, Any]] = []
        self._complaint = ""  # why the agent publishes no ResourceSlice
        self._is_served = True  # the API server has the group resource.k8s.io/v1, and stores all fields
        self._is_cut = False  # the API server dropped fields: the slice is removed, with retries
        self._changed = asyncio.Event()
        self._turn = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None
        self.writes = 0

    def look_again(self) -> None:
        """Compare the slice with the desired one soon, because the kubelet has just registered the driver."""
        self._changed.set()

    async def publish(self, state: NodeState) -> None:
        """Store the state, and start or wake the task that writes the slice."""
        if not state.is_synchronised or not self._is_served:
            return  # keep the slice that was written before
        self._state = state
        if self._following is None and not await self._has_group():
            return
        if self._following is None or self._following.done():  # done: the task crashed
            self._following = asyncio.create_task(self._follow())
        self._changed.set()

    async def reset(self) -> None:
        """Remove the ResourceSlice of this node."""
        if self._following:
            self._following.cancel()
            await asyncio.wait([self._following])
        await self._remove()

    async def _has_group(self) -> bool:
        """Return whether the API server has the resource ResourceSlice; log it if not."""
        try:
            await self._api.get(SLICES, {"limit": "1", "fieldSelector": f"spec.nodeName={self._node}"})
        except Gone:
            self._is_served = False
            self._complain(NO_GROUP)
        return self._is_served

    async def _follow(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._slices.watch(self._changed.set))
            group.create_task(self._keep())

    async def _keep(self) -> None:
        """Write the slice whenever it differs from the desired one, until cancelled."""
        backoff = Backoff()
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                wrote = self._slices.complete and await self._write()
            except APIError as error:
                logger.warning("slice not written", extra={"facts": {"reason": str(error)}})
                wait = backoff.after(error)
            except Exception:  # a bug must not end this task: retry with backoff
                logger.exception("writing the slice crashed")
                wait = backoff.next()
            else:
                backoff.reset()
                if wrote:
                    await asyncio.sleep(self._interval)
                continue
            self._changed.set()
            await asyncio.sleep(wait)

    async def _write(self) -> bool:
        """Create, replace or remove the slice if it differs from the state; return whether it was written."""
        state = self._state
        if state is None or not self._is_served:
            return False
        if self._is_cut:
            return await self._withdraw()
        there = self._there()
        devices = (
            []
            if state.observes or self._other_driver()
            else slice_devices(offer_of(state.sets, state.ledger))
        )
        if not devices:
            return there is not None and await self._remove()
        if there is None:  # deleted together with its Node, which may be registered again
            self._owner = None
        owner = await self._node_reference()
        if there and self._is_right(there, devices, owner):
            return False
        await self._replace(there, devices, owner)
        return True

    def _is_right(self, there: Slice, devices: list[dict[str, Any]], owner: dict[str, Any]) -> bool:
        expected = (devices, self._stored) if devices == self._sent else (devices,)
        is_newest = there.spec.pool.generation > self._other_generation()
        return is_newest and there.metadata.owner_references == [owner] and there.spec.devices in expected

    def _other_generation(self) -> int:
        """Return the highest generation of slices of other names in the pool, e.g. restored from a backup; 0: none.

        The scheduler uses the slices of a pool's highest generation alone, and none if their number is wrong.
        """
        specs = (it.spec for it in self._slices.items.values() if it.metadata.name != self._name)
        pools = (spec.pool for spec in specs if spec.driver == DRA_DRIVER)
        return max((pool.generation for pool in pools if pool.name == self._node), default=0)

    def _there(self) -> Slice | None:
        return next((it for it in self._slices.items.values() if it.metadata.name == self._name), None)

    def _other_driver(self) -> bool:
        """Return whether another driver publishes CPUs of this node; log it, as CPUs could be assigned twice."""
        others = sorted(
            it.spec.driver
            for it in self._slices.items.values()
            if it.spec.driver != DRA_DRIVER and it.has_cpus
        )
        if others:
            self._complain(f"driver {others[0]} offers the CPUs of this node too: uninstall one of the two")
        else:
            self._complaint = ""
        return bool(others)

    async def _node_reference(self) -> dict[str, Any]:
        if self._owner is None:
            meta = (await decode_any(_node, await self._api.get(f"/api/v1/nodes/{self._node}"))).metadata
            self._owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": meta.uid}
        return self._owner

    async def _replace(
        self, there: Slice | None, devices: list[dict[str, Any]], owner: dict[str, Any]
    ) -> None:
        """Create or replace the slice; remove it again if the API server dropped fields."""
        before = there.spec.pool.generation if there else 0
        newest = max(self._generation, before, self._other_generation())
        self._generation = newest + 1
        pool = {"name": self._node, "generation": self._generation, "resourceSliceCount": 1}
        document: dict[str, Any] = {
            "apiVersion": API_VERSION,
            "kind": "ResourceSlice",
            "metadata": {"name": self._name, "ownerReferences": [owner]},
            "spec": {"driver": DRA_DRIVER, "nodeName": self._node, "pool": pool, "devices": devices},
        }
        try:
            if there:
                document["metadata"]["resourceVersion"] = there.metadata.resource_version
                answer = await self._api.replace(self._path, document)
            else:
                answer = await self._api.create(SLICES, document)
        except (Conflict, Gone):
            self._owner = None  # the watch will show the newest slice, and the caller retries
            raise
        self.writes += 1
        self._sent, self._stored = devices, (await decode_any(_slice, answer)).spec.devices or []
        if not all(device.get("allowMultipleAllocations") for device in self._stored):
            self._is_cut = True
            await self._withdraw()

    async def _withdraw(self) -> bool:
        """Remove the slice and publish no more; return whether there was one."""
        self._complain(GATE_OFF)
        removed = await self._remove()
        self._is_served = False
        return removed

    async def _remove(self) -> bool:
        try:
            await self._api.delete(self._path)
        except Gone:
            return False
        return True

    def _complain(self, why: str) -> None:
        """Log once why the agent publishes nothing."""
        if why != self._complaint:
            logger.warning("no CPUs published for claims", extra={"facts": {"reason": why}})
        self._complaint = why
