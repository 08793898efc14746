"""The scheduler's allocation from published devices, to the CPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinning.contract import DRA_CAPACITY
from pinning.dra.first_fit import Allocated, first_fit
from pinning.dra.groups import Offer, slice_devices
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.topology import Topology
from tests.pinning.machines import DUAL
from tests.strategies import topologies


def offer(topology: Topology) -> Offer:
    """Return the offer of a node whose first core is reserved, and whose other CPUs claims may take."""
    usable = topology.online - topology.siblings_of(CPUSet([min(topology.online)]))
    return Offer(topology, usable, EMPTY, EMPTY, topology.online)


@pytest.mark.parametrize(
    ("wanted", "consumed", "found"),
    [
        pytest.param(
            3, {}, Allocated("cpudevnuma000", 4), id="the device with the least room first, whole cores"
        ),
        pytest.param(4, {}, Allocated("cpudevnuma000", 4), id="all of it"),
        pytest.param(5, {}, Allocated("cpudevnuma001", 6), id="the first that has room"),
        pytest.param(
            1, {"cpudevnuma000": 4}, Allocated("cpudevnuma001", 2), id="what claims hold is not free"
        ),
    ],
)
def test_first_device_with_room_is_allocated(wanted: int, consumed: dict[str, int], found: Allocated) -> None:
    """A request is allocated from the first device with room, on NUMA nodes with 4 and 6 CPUs in cores of 2."""
    assert first_fit(slice_devices(offer(DUAL)), consumed, wanted) == found


@pytest.mark.parametrize(
    ("wanted", "consumed", "text"),
    [
        (
            7,
            {},
            "no device of this node has room for 7 CPUs, free are 4 on cpudevnuma000, 6 on cpudevnuma001: ask for at most 6,"
            " or by several requests, because a request gets CPUs of a single device",
        ),
        (
            11,
            {"cpudevnuma000": 4},
            "no device of this node has room for 11 CPUs, free are 6 on cpudevnuma001: ask for at most 6",
        ),
        (
            1,
            {"cpudevnuma000": 4, "cpudevnuma001": 8},  # more than is published, as after CPUs went offline
            "no device of this node has room for claims: free whole cores, or choose another node",
        ),
    ],
)
def test_claim_that_fits_no_device_says_what_would_fit(
    wanted: int, consumed: dict[str, int], text: str
) -> None:
    """The message has the room of each device; several requests are advised only where they would fit."""
    assert first_fit(slice_devices(offer(DUAL)), consumed, wanted) == text


def test_node_without_devices_has_no_room() -> None:
    """A claim is refused if the node publishes no device, as when all cores are reserved."""
    assert "no device of this node has room for claims" in str(first_fit([], {}, 1))


@given(topologies(), st.integers(0, 5), st.integers(1, 40))
def test_allocation_is_the_request_in_whole_cores_of_the_first_device_with_room(
    topology: Topology, taken: int, wanted: int
) -> None:
    """For any machine the allocation is rounded up to whole cores of the first device with room, or refused."""
    devices = slice_devices(offer(topology))
    consumed = {it["name"]: min(taken, int(it["capacity"][DRA_CAPACITY]["value"])) for it in devices}
    room, step = {}, {}
    for it in devices:
        capacity = it["capacity"][DRA_CAPACITY]
        room[it["name"]] = int(capacity["value"]) - consumed[it["name"]]
        step[it["name"]] = int(capacity["requestPolicy"]["default"])
    whole = {name: -(-wanted // by) * by for name, by in step.items()}
    fitting = [name for name in room if whole[name] <= room[name]]
    found = first_fit(devices, consumed, wanted)
    assert found == Allocated(fitting[0], whole[fitting[0]]) if fitting else isinstance(found, str)
