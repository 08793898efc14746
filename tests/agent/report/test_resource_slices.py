"""The ResourceSlice of a node on an API server with the feature gate off."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from agent.report.resource_slices import SliceReport
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


def test_slice_without_its_fields_is_deleted_with_retries(
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

    async def run() -> None:
        for _ in range(2):
            with pytest.raises(Unavailable):
                await report._write()
            assert api.stored
        assert await report._write()
        assert not await report._write()

    asyncio.run(run())
    assert (api.stored, api.writes) == (None, 1)
