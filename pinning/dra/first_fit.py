"""The scheduler's allocation of a claim with one request, from the devices that a node publishes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pinning.contract import DRA_CAPACITY
from pinning.truncate import listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Allocated(NamedTuple):
    """The device of a claim, and the number of CPUs consumed there: the request, rounded up to whole cores."""

    device: str
    cpus: int


def first_fit(
    devices: Iterable[Mapping[str, Any]], consumed: Mapping[str, int], wanted: int
) -> Allocated | str:
    """Return the first device of a ResourceSlice with room for a claim, or why none has.

    `consumed` are the numbers of CPUs of other claims by device; the scheduler subtracts them from the published ones.
    """
    rooms = {}
    for device in devices:
        name, capacity = device["name"], device["capacity"][DRA_CAPACITY]
        step = int(capacity["requestPolicy"]["default"])
        count = -(-wanted // step) * step
        rooms[name] = int(capacity["value"]) - consumed.get(name, 0)
        if count <= rooms[name]:
            return Allocated(name, count)
    return _no_room({name: room for name, room in rooms.items() if room > 0}, wanted)


def _no_room(rooms: Mapping[str, int], wanted: int) -> str:
    """Return why a claim fits no device, with the room of each and the remedy."""
    if not rooms:
        return "no device of this node has room for claims: free whole cores, or choose another node"
    found = listed(f"{room} on {name}" for name, room in rooms.items())
    remedy = f"ask for at most {max(rooms.values())}"
    if sum(rooms.values()) >= wanted:
        remedy += ", or by several requests, because a request gets CPUs of a single device"
    return f"no device of this node has room for {wanted} CPUs, free are {found}: {remedy}"
