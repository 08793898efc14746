"""Parse the shape of a guest from QEMU's command line. Pure.

Options are parsed as QEMU parses them (QemuOpts, keyval, JSON): "-smp 2,cores=2", "--smp cpus=2"; a comma in a value is
doubled. Configuration files (-readconfig) are not read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final

from pinning.errors import BadJSON
from pinning.guests.threads import GuestShape
from pinning.json_text import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MOST_VCPUS: Final = 65_536  # vCPUs of a guest: above KVM's limit, so a larger number is invalid
_MOST_JSON: Final = 2**20  # bytes of one option in JSON
_SOCKET_PARTS: Final = ("dies", "clusters", "modules")  # parts of a socket that contain cores
_MACHINE_PARTS: Final = ("drawers", "books", "sockets")
_NUMBERS: Final[tuple[str, ...]] = ("cpus", "maxcpus", "cores", "threads", *_MACHINE_PARTS, *_SOCKET_PARTS)
# default key of a value without one
_FIRST: Final = {
    "smp": "cpus",
    "name": "guest",
    "machine": "type",
    "M": "type",
}
# -append is included because its value may look like an option
_TAKEN: Final = frozenset({"object", "device", "append", *_FIRST})
_VERSION: Final = re.compile(
    r"(?:pc|pc-q35|pc-i440fx|virt|s390-ccw-virtio|pseries)-([0-9]{1,2})\.([0-9]{1,2})"
)
# Machine types before this version turn CPUs without a given part into sockets.
_PREFERS_CORES: Final = (6, 2)
_BACKEND: Final = "memory-backend-"
_ON: Final = frozenset({"on", "yes", "true", "y", True})


@dataclass(frozen=True, slots=True)
class QEMUArgs:
    """QEMU's options for the guest's CPUs, memory and iothreads; if a key is repeated, its last value applies."""

    name: Mapping[str, str]
    machine: Mapping[str, str]
    smp: Mapping[str, str]
    objects: tuple[Mapping[str, Any], ...]
    devices: tuple[Mapping[str, Any], ...]


def read_args(arguments: Sequence[str]) -> QEMUArgs:
    """Parse a command line whose first word is the program."""
    merged: dict[str, dict[str, str]] = {"name": {}, "machine": {}, "smp": {}}
    listed: dict[str, list[Mapping[str, Any]]] = {"object": [], "device": []}
    for option, value in _options(arguments):
        if option in listed:
            listed[option].append(_read_json(value) if value.startswith("{") else dict(_pairs(value, "type")))
        elif option in _FIRST:
            merged["machine" if option == "M" else option].update(_pairs(value, _FIRST[option]))
    return QEMUArgs(
        merged["name"], merged["machine"], merged["smp"], tuple(listed["object"]), tuple(listed["device"])
    )


def read_shape(args: QEMUArgs) -> GuestShape | None:
    """Return the guest's topology and its options for pinning; None if a number is invalid."""
    numbers = _numbers(args)
    topology = None if numbers is None else _complete(numbers, prefers_sockets=_prefers_sockets(args.machine))
    if topology is None:
        return None
    return GuestShape(
        vcpus=topology["cpus"],
        cores=topology["cores"] * prod(topology[part] for part in _SOCKET_PARTS),
        threads=topology["threads"],
        most_vcpus=topology["maxcpus"],
        strict=any(_is_bound(backend) for backend in args.objects),
        iothreads=tuple(_ids(args.objects, "iothread")),
        iothread_pool=any(_has_pool(device) for device in args.devices),
        names_threads=args.name.get("debug-threads") in _ON,
    )


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each option in `_TAKEN` with its value, the next word."""
    words = iter(arguments[1:])
    for word in words:
        option = word.removeprefix("-").removeprefix("-")
        if word.startswith("-") and option in _TAKEN:
            yield option, next(words, "")


def _pairs(text: str, first: str) -> Iterator[tuple[str, str]]:
    """Yield keys and values of "VALUE,key=value,flag": the key of VALUE is `first`, the value of a flag "on"."""
    for position, part in enumerate(re.findall(r"(?:[^,]+|,,)+", text)):
        key, equals, value = part.replace(",,", ",").partition("=")
        if equals:
            yield key, value
        else:
            yield (key, "on") if position else (first, key)


def _read_json(text: str) -> Mapping[str, Any]:
    """Parse a JSON option; return an empty mapping if it is too long or invalid."""
    if len(text) > _MOST_JSON:
        return {}
    try:
        found = parse_json(text)
    except BadJSON:
        return {}
    return found if isinstance(found, dict) else {}


def _numbers(args: QEMUArgs) -> dict[str, int] | None:
    """Return the topology's numbers in -smp or -machine smp.cpus=..., by key; None if a number is invalid."""
    given = {
        key.removeprefix("smp."): value for key, value in args.machine.items() if key.startswith("smp.")
    } | dict(args.smp)
    numbers = {key: _number(given[key]) for key in _NUMBERS if key in given}
    found = {key: number for key, number in numbers.items() if number is not None}
    return found if len(found) == len(numbers) else None


def _number(text: str) -> int | None:
    """Parse a positive number, decimal or hexadecimal; None for another text."""
    if not re.fullmatch(r"0[xX][0-9a-fA-F]{1,8}|[1-9][0-9]{0,7}", text):
        return None
    number = int(text, 0)
    return number if 0 < number <= MOST_VCPUS else None


def _prefers_sockets(machine: Mapping[str, str]) -> bool:
    found = _VERSION.fullmatch(machine.get("type", ""))
    return found is not None and (int(found[1]), int(found[2])) < _PREFERS_CORES


def _complete(given: Mapping[str, int], *, prefers_sockets: bool) -> dict[str, int] | None:
    """Fill in the missing parts of the topology as QEMU does (machine_parse_smp_config); None if it is invalid.

    CPUs without a given part become cores of one socket; in machine types before 6.2, sockets of one core.
    """
    every = dict.fromkeys((*_MACHINE_PARTS, *_SOCKET_PARTS, "cores", "threads"), 1) | dict(given)
    most = given.get("maxcpus", given.get("cpus", 0))
    missing = [part for part in ("sockets", "cores", "threads") if part not in given]
    if most and missing:
        rest = [part for part in _filled_first(prefers_sockets=prefers_sockets) if part in missing]
        others = prod(number for part, number in every.items() if part not in ("cpus", "maxcpus"))
        every[rest[0]] = most // others
    total = prod(number for part, number in every.items() if part not in ("cpus", "maxcpus"))
    every["maxcpus"] = most or total
    every["cpus"] = given.get("cpus", every["maxcpus"])
    return every if MOST_VCPUS >= total == every["maxcpus"] >= every["cpus"] else None


def _filled_first(*, prefers_sockets: bool) -> tuple[str, ...]:
    return ("sockets", "cores", "threads") if prefers_sockets else ("cores", "sockets", "threads")


def _is_bound(backend: Mapping[str, Any]) -> bool:
    """Return whether a memory backend is bound to NUMA nodes of the host."""
    kind = str(backend.get("qom-type", backend.get("type", "")))
    return kind.startswith(_BACKEND) and any(key.partition(".")[0] == "host-nodes" for key in backend)


def _ids(objects: Sequence[Mapping[str, Any]], kind: str) -> Iterator[str]:
    for one in objects:
        if kind in (one.get("qom-type"), one.get("type")) and isinstance(one.get("id"), str):
            yield one["id"]


def _has_pool(device: Mapping[str, Any]) -> bool:
    return any(key.partition(".")[0] == "iothread-vq-mapping" for key in device)
