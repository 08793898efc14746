"""NUMA nodes of devices of ResourceClaims, from the ResourceSlices that drivers publish for the node.

The kubelet names driver, pool and device. The slices of a driver are listed when a device is not in a known pool, so
a new pool or generation causes one list, and devices of known pools cause none. Lists run outside of passes, at most
once a second. Drivers control the size of their slices, so the size of the answer is limited.
"""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from agent.kubelet.device_answers import HIGHEST_NODE, PCI
from agent.token_bucket import TokenBucket
from apiserver.backoff import Backoff
from apiserver.errors import APIError, Gone, TooLong
from apiserver.pages import decode_any
from pinning.machine.cpuset import EMPTY, CPUSet

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from pathlib import Path

    from agent.kubelet.device_list import ClaimedDevice
    from apiserver.client import Api

SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"
LIST_BYTES: Final = 2**20  # longest list: about 3,000 devices as drivers publish them
LIST_SECONDS: Final = 1.0  # least time between two lists
LONGEST_SECONDS: Final = 30.0  # longest delay after a list that failed
LONGEST_MISSING: Final = 4.0  # longest delay after a list that lacks a device
# A restarted kubelet deletes all slices of its node, and drivers publish them again.
MISSING_SECONDS: Final = 7.0
REMEMBERED_SECONDS: Final = 600.0  # how long a missing device, or one without a NUMA node, is cached
# Drivers of one node; a further one replaces one that was not used for REMEMBERED_SECONDS.
MOST_DRIVERS: Final = 64
MOST_MISSING: Final = 4096  # missing devices of a driver that are remembered
NO_GROUP: Final = (
    "the API server has no resource.k8s.io/v1: devices of claims are known from Kubernetes 1.34 on"
)
_NUMA_NODE: Final = "resource.kubernetes.io/numaNode"
_PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"
# Name of a driver, which becomes part of a field selector.
_DRIVER: Final = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,61}[a-z0-9])?")

logger = logging.getLogger(__name__)


class Place(NamedTuple):
    """The NUMA node and PCI address of a device, as far as its driver publishes them."""

    node: int | None = None
    address: str = ""  # address on the PCI bus; empty: not published


class _Value(msgspec.Struct):
    number: int | None = msgspec.field(name="int", default=None)
    numbers: list[int] | None = msgspec.field(name="ints", default=None)
    text: str | None = msgspec.field(name="string", default=None)


class _Attributes(msgspec.Struct, rename={"numa": _NUMA_NODE, "pci": _PCI_BUS_ID}):
    numa: _Value | None = None
    pci: _Value | None = None


class _Device(msgspec.Struct):
    name: str = ""
    attributes: _Attributes | None = None

    @property
    def place(self) -> Place:
        """Return its NUMA node and its PCI address, as far as the driver publishes them."""
        attributes = self.attributes or _Attributes()
        node = None
        if attributes.numa:
            node = attributes.numa.number
            if node is None and attributes.numa.numbers:
                node = attributes.numa.numbers[0]  # the device's own; the others are close to it
        address = (attributes.pci.text if attributes.pci else None) or ""
        is_node = node is not None and 0 <= node <= HIGHEST_NODE
        return Place(node if is_node else None, address if PCI.fullmatch(address) else "")


class _Pool(msgspec.Struct):
    name: str = ""
    generation: int = 0
    slices: int = msgspec.field(name="resourceSliceCount", default=1)


class _Spec(msgspec.Struct):
    pool: _Pool = msgspec.field(default_factory=_Pool)
    devices: list[_Device] | None = None


class _Slice(msgspec.Struct):
    spec: _Spec = msgspec.field(default_factory=_Spec)


class _List(msgspec.Struct):
    items: list[_Slice] | None = None


_slices = msgspec.json.Decoder(_List)


def places_of(slices: Iterable[_Slice]) -> dict[tuple[str, str], Place]:
    """Return the places of devices by pool and name: of each pool's highest generation, if all its slices exist."""
    newest: dict[str, list[_Spec]] = {}
    for spec in (it.spec for it in slices):
        others = newest.get(spec.pool.name, [])
        if not others or spec.pool.generation > others[0].pool.generation:
            newest[spec.pool.name] = [spec]
        elif spec.pool.generation == others[0].pool.generation:
            others.append(spec)
    return {
        (pool, device.name): device.place
        for pool, specs in newest.items()
        if len(specs) >= specs[0].pool.slices
        for spec in specs
        for device in spec.devices or ()
    }


@dataclass(slots=True)
class _Driver:
    """The known devices of one driver on this node."""

    # Place of each device, by pool and device name.
    places: dict[tuple[str, str], Place] = field(default_factory=dict)
    # Time since which the lists lack a device, by pool and device name.
    missing: dict[tuple[str, str], float] = field(default_factory=dict)
    used_at: float = 0.0
    listed_at: float = 0.0
    not_before: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(LIST_SECONDS, LONGEST_SECONDS))
    reason: str = ""  # why the last list failed


class ClaimedDevices:
    """The places of claimed devices. `nodes_of` never waits; `run` lists the slices."""

    def __init__(
        self,
        api: Api,
        node: str,
        root: Path,
        clock: Callable[[], float] = monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._node = node
        self._devices = root / "sys/bus/pci/devices"
        self._clock = clock
        self._sleep = sleep
        self._drivers: dict[str, _Driver] = {}
        self._wanted: dict[str, None] = {}  # drivers whose devices are to be listed, in order
        self._bucket = TokenBucket(1, LIST_SECONDS)
        self._wake = asyncio.Event()

    def nodes_of(self, device: ClaimedDevice) -> CPUSet | None:
        """Return the NUMA node of a device, empty if it has none; None: its slices must be listed first."""
        key, now = (device.pool, device.name), self._clock()
        driver = self._driver(device.driver, now)
        if driver is None:
            return EMPTY
        if key in driver.places:
            place = driver.places[key]
            if place == Place() and now - driver.listed_at >= REMEMBERED_SECONDS:
                self._want(device.driver, driver, now)
            return self._nodes(place)
        since = driver.missing.get(key, now)
        if driver.listed_at - since >= MISSING_SECONDS and now - since < REMEMBERED_SECONDS:
            return EMPTY
        driver.missing.setdefault(key, now)
        self._want(device.driver, driver, now)
        return None

    def address_of(self, device: ClaimedDevice) -> str:
        """Return the PCI address of a device whose node is known; empty if its driver publishes none."""
        driver = self._drivers.get(device.driver)
        place = driver.places.get((device.pool, device.name)) if driver else None
        return place.address if place else ""

    def reason(self, device: ClaimedDevice) -> str:
        """Return why the slices of a device's driver are not known; empty if no list failed."""
        driver = self._drivers.get(device.driver)
        return driver.reason if driver else ""

    def _driver(self, name: str, now: float) -> _Driver | None:
        """Return the known devices of a driver; None for a name that no driver can have, or if there is no room."""
        driver = self._drivers.get(name)
        if driver is None:
            if not _DRIVER.fullmatch(name) or not self._makes_room(now):
                return None
            driver = self._drivers[name] = _Driver()
        driver.used_at = now
        return driver

    def _makes_room(self, now: float) -> bool:
        """Return whether another driver can be added; if necessary, evict one not used for REMEMBERED_SECONDS."""
        if len(self._drivers) < MOST_DRIVERS:
            return True
        name, oldest = min(self._drivers.items(), key=lambda item: item[1].used_at)
        if name in self._wanted or now - oldest.used_at < REMEMBERED_SECONDS:
            return False
        del self._drivers[name]
        return True

    def _want(self, name: str, driver: _Driver, now: float) -> None:
        if driver.not_before <= now:
            self._wanted[name] = None
            self._wake.set()

    def _nodes(self, place: Place) -> CPUSet:
        node = place.node
        if node is None and place.address:
            node = _numa_node(self._devices / place.address / "numa_node")
        return EMPTY if node is None else CPUSet([node])

    async def run(self, changed: Callable[[], None]) -> None:
        """List the slices of the wanted drivers until cancelled; call `changed` after each list."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._wanted:
                while not self._bucket.take(self._clock()):
                    await self._sleep(max(0.0, self._bucket.wait(self._clock())))
                name = next(iter(self._wanted))
                await self._list(name, self._drivers[name])
                del self._wanted[name]
                changed()

    async def _list(self, name: str, driver: _Driver) -> None:
        """List the slices of one driver on this node."""
        params = {"fieldSelector": f"spec.nodeName={self._node},spec.driver={name}"}
        try:
            body = await self._api.page(SLICES, params, LIST_BYTES)
            places = places_of((await decode_any(_slices, body)).items or ())
        except APIError as error:
            self._failed(name, driver, error)
            return
        now = self._clock()
        driver.places, driver.listed_at, driver.reason = places, now, ""
        driver.missing = {
            key: since
            for key, since in list(driver.missing.items())[-MOST_MISSING:]
            if key not in places and now - since < REMEMBERED_SECONDS
        }
        if any(now - since < MISSING_SECONDS for since in driver.missing.values()):
            driver.not_before = now + min(driver.backoff.next(), LONGEST_MISSING)
        else:
            driver.backoff.reset()

    def _failed(self, name: str, driver: _Driver, error: APIError) -> None:
        now = self._clock()
        reason = _reason_of(error)
        if not driver.reason:
            logger.warning("devices of claims not known", extra={"facts": {"driver": name, "reason": reason}})
        driver.reason = f"the ResourceSlices of driver {name} cannot be read: {reason}"
        # A device counts as missing for the time over which lists succeed.
        driver.missing = dict.fromkeys(list(driver.missing)[-MOST_MISSING:], now)
        driver.not_before = now + (
            LONGEST_SECONDS if isinstance(error, TooLong) else driver.backoff.after(error)
        )


def _reason_of(error: APIError) -> str:
    if isinstance(error, Gone):
        return NO_GROUP
    return f"they exceed {LIST_BYTES >> 20} MiB" if isinstance(error, TooLong) else str(error)


def _numa_node(file: Path) -> int | None:
    """Return the kernel's NUMA node of a device; None if it has none, or is absent."""
    try:
        node = int(file.read_text())
    except (OSError, ValueError):
        return None
    return node if 0 <= node <= HIGHEST_NODE else None
