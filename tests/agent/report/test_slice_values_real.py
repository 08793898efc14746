"""Every amount that a device of the node's ResourceSlice can have, written to a real kube-apiserver."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent.report.resource_slices import SLICES
from apiserver.client import Api
from pinning.contract import DRA_CAPACITY, DRA_DRIVER
from pinning.dra.groups import MOST_DEVICES, request_policy
from tests.agent.report.real_cluster import Cluster
from tests.environments.server.catalog import NEWEST

pytestmark = pytest.mark.parametrize("apiserver", [NEWEST], indirect=True)
LARGEST, STEPS = 512, (1, 2, 4, 8)


def device(value: int, step: int) -> dict[str, Any]:
    """Return a device of whole cores."""
    capacity = {DRA_CAPACITY: {"value": str(value), "requestPolicy": request_policy(value, step)}}
    return {"name": f"d{value}", "allowMultipleAllocations": True, "capacity": capacity}


@pytest.mark.parametrize("step", STEPS)
async def test_each_value_is_stored_as_it_is_written(cluster: Cluster, step: int) -> None:
    """Each amount is stored as written; 0 is left out, because a refused write would keep the old, larger amount."""
    values = range(step, LARGEST + 1, step)

    async def write(api: Api, some: list[int]) -> list[dict[str, Any]]:
        name = f"{cluster.node}-{step}-{some[0]}"
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        devices = [device(value, step) for value in some]
        spec = {"driver": DRA_DRIVER, "nodeName": cluster.node, "pool": pool, "devices": devices}
        document = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": name},
            "spec": spec,
        }
        await api.create(SLICES, document)
        stored = await asyncio.to_thread(cluster.get, "resourceslice", name)
        assert stored["spec"]["devices"] == devices
        return devices

    api = cluster.server.api()
    try:
        written = [
            it
            for first in range(0, len(values), MOST_DEVICES)
            for it in await write(api, list(values[first : first + MOST_DEVICES]))
        ]
    finally:
        await api.close()
    assert len(written) == LARGEST // step
