"""The ResourceSlice of a node: with the feature gate off, and beside another driver."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from agent.report.resource_slices import Slice, SliceReport
from apiserver.errors import Unavailable


class GateOff:
    """An API server that drops `allowMultipleAllocations` and fails the first deletes."""

    def __init__(self, failures: int) -> None:
        self.stored: Any = None
        self.failures = failures
        self.writes = 0

    async def get(self, _path: str) -> bytes:
        """Return the node."""
        return b'{"metadata":{"uid":"u"}}'

    async def create(self, _path: str, body: Any) -> bytes:
        """Store a slice."""
        self.writes += 1
        self.stored = json.loads(json.dumps(body))
        for device in self.stored["spec"]["devices"]:
            del device["allowMultipleAllocations"]
        return json.dumps(self.stored).encode()

    async def delete(self, _path: str) -> None:
        """Delete the slice, or fail."""
        if self.failures:
            self.failures -= 1
            raise Unavailable("down")
        self.stored = None


@pytest.mark.parametrize(
    ("driver", "device", "offers_cpus"),
    [
        pytest.param(
            "dra.cpu", {"capacity": {"dra.cpu/cpu": {"value": "8"}}}, True, id="upstream's, grouped"
        ),
        pytest.param("dra.cpu", {"attributes": {"dra.cpu/cpuID": {"int": 3}}}, True, id="individual"),
        pytest.param(
            "x.example", {"capacity": {"dra.cpu/cpu": {"value": "8"}}}, True, id="another with CPUs"
        ),
        pytest.param("x.example", {"capacity": {"memory": {"value": "8Gi"}}}, False, id="no CPUs"),
        pytest.param("cpu.corepin.io", {"capacity": {"dra.cpu/cpu": {"value": "8"}}}, False, id="our own"),
    ],
)
def test_driver_that_offers_the_same_cpus_is_recognised(
    caplog: pytest.LogCaptureFixture, driver: str, device: dict[str, Any], offers_cpus: bool
) -> None:
    """No slice is published beside another driver of the same CPUs, because both would allocate them."""
    there = {"metadata": {"name": "s"}, "spec": {"driver": driver, "devices": [{"name": "d", **device}]}}
    report: Any = SliceReport(None, "node-1")  # type: ignore[arg-type]
    report._slices = SimpleNamespace(items={"s": msgspec.convert(there, Slice)}, complete=True)
    assert report._other_driver() is offers_cpus
    assert bool(caplog.records) is offers_cpus


async def test_slice_without_its_fields_is_deleted_with_retries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slice without the field is deleted with retries and not written again."""
    devices = [{"name": "cpudevnuma000", "allowMultipleAllocations": True}]
    monkeypatch.setattr("agent.report.resource_slices.slice_devices", lambda _: devices)
    monkeypatch.setattr("agent.report.resource_slices.offer_of", lambda *_: None)
    api = GateOff(failures=2)
    report: Any = SliceReport(api, "node-1")  # type: ignore[arg-type]
    report._slices = SimpleNamespace(items={}, complete=True)
    report._state = SimpleNamespace(observes=False, sets=None, ledger=None)
    for _ in range(2):
        with pytest.raises(Unavailable):
            await report._write()
        assert api.stored
    assert await report._write()
    assert not await report._write()
    assert (api.stored, api.writes) == (None, 1)


class Filling:
    """An API server of a later version, which sets a field of devices that this agent does not know."""

    def __init__(self) -> None:
        self.stored: Any = None
        self.node = "u"  # uid of the Node

    async def get(self, _path: str) -> bytes:
        """Return the node."""
        return json.dumps({"metadata": {"uid": self.node}}).encode()

    async def create(self, _path: str, body: Any) -> bytes:
        """Store a slice."""
        return self.store(body)

    async def replace(self, _path: str, body: Any) -> bytes:
        """Store another slice in place of one."""
        return self.store(body)

    def store(self, body: Any) -> bytes:
        """Store a slice, with the field."""
        self.stored = json.loads(json.dumps(body))
        for device in self.stored["spec"]["devices"]:
            device["fresh"] = True
        return json.dumps(self.stored).encode()


def reporting(api: Filling, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a report of one device, to an API server without slices."""
    sent = [{"name": "cpudevnuma000", "allowMultipleAllocations": True, "capacity": {}}]
    monkeypatch.setattr("agent.report.resource_slices.slice_devices", lambda _: sent)
    monkeypatch.setattr("agent.report.resource_slices.offer_of", lambda *_: None)
    report: Any = SliceReport(api, "node-1")  # type: ignore[arg-type]
    report._slices = SimpleNamespace(items={}, complete=True)
    report._state = SimpleNamespace(observes=False, sets=None, ledger=None)
    return report


async def test_field_that_the_api_server_sets_does_not_make_the_slice_different(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slice with a field that the API server sets counts as equal, because it would be rewritten each second.

    Changes by another writer are still corrected.
    """
    api = Filling()
    report = reporting(api, monkeypatch)

    def watch() -> None:
        report._slices.items = {"s": msgspec.convert(api.stored, Slice)}

    wrote = [await report._write()]
    watch()
    wrote.append(await report._write())
    api.stored["spec"]["devices"][0]["capacity"] = {"dra.cpu/cpu": {"value": "64"}}
    watch()
    wrote.append(await report._write())
    watch()
    assert [*wrote, await report._write()] == [True, False, True, False]
    assert api.stored["spec"]["pool"]["generation"] == 2


@pytest.mark.parametrize(
    ("pool", "driver", "generation"),
    [
        pytest.param("node-1", "cpu.corepin.io", 8, id="in its pool"),
        pytest.param("node-1", "x.example", 1, id="of another driver"),
        pytest.param("other", "cpu.corepin.io", 1, id="in another pool"),
    ],
)
async def test_slice_is_the_newest_of_its_pool(
    monkeypatch: pytest.MonkeyPatch, pool: str, driver: str, generation: int
) -> None:
    """The scheduler ignores slices of lower generations, and a pool with too many slices of the highest one."""
    api = Filling()
    report = reporting(api, monkeypatch)
    spec = {"driver": driver, "pool": {"name": pool, "generation": 7}, "devices": []}
    other = msgspec.convert({"metadata": {"name": "restored"}, "spec": spec}, Slice)

    wrote = []
    for others in ({}, {"o": other}, {"o": other}):
        own = {"s": msgspec.convert(api.stored, Slice)} if api.stored else {}
        report._slices.items = own | others
        wrote.append(await report._write())

    assert wrote == [True, generation > 1, False]
    assert api.stored["spec"]["pool"]["generation"] == generation


async def test_slice_belongs_to_the_node_that_was_registered_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the Node was recreated the slice has the new Node as owner, so that it is not garbage collected."""
    api = Filling()
    report = reporting(api, monkeypatch)
    uids = []
    for api.node in ("first", "second"):
        assert await report._write()
        uids += [owner["uid"] for owner in api.stored["metadata"]["ownerReferences"]]
    assert uids == ["first", "second"]
