"""Extended resources that count the CPUs near devices, by the names of the devices' resources. Pure."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from pinning.contract import NEAR_CPUS
from pinning.pods.quantity import parse_quantity
from pinning.pods.resources import is_foreign, is_quantity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pinning.pods.resources import Member

MOST_KINDS: Final = 16  # device resources whose near CPUs are counted for one container
MOST_NEAR: Final = 256  # resources of a node that count CPUs near devices
LONGEST_NAME: Final = 63  # characters that the API server allows after the slash
LONGEST_DOMAIN: Final = 253
_DIGEST: Final = 10  # number of hexadecimal digits
_WORD: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_RESOURCE: Final = re.compile(
    rf"{_WORD}(\.{_WORD})*/[A-Za-z0-9]([-A-Za-z0-9_.]{{0,{LONGEST_NAME - 2}}}[A-Za-z0-9])?"
)


def near_resource(resource: str) -> str:
    """Return the resource that counts the CPUs near devices of `resource`; empty if there is none.

    `nvidia.com/gpu` gives `near.corepin.io/nvidia.com.gpu`. A name that would be too long for the API server is cut,
    and a digest of the whole name is added. Two resources with the same result (`a.b/c.d` and `a.b.c/d`) are counted
    together.
    """
    domain = resource.partition("/")[0]
    if len(domain) > LONGEST_DOMAIN or not is_foreign(resource) or not _RESOURCE.fullmatch(resource):
        return ""
    name = resource.replace("/", ".")
    if len(name) > LONGEST_NAME:
        digest = sha256(resource.encode()).hexdigest()[:_DIGEST]
        name = f"{name[: LONGEST_NAME - _DIGEST - 1]}.{digest}"
    return NEAR_CPUS + name


def device_resources(having: Iterable[Member]) -> tuple[str, ...]:
    """Return the resources of the devices that containers have, sorted.

    The kubelet names no devices of an ordinary init container, which is placed near those of all containers of its pod.
    """
    return tuple(
        sorted(
            {
                name
                for member in having
                for name, amount in ((member.container.get("resources") or {}).get("limits") or {}).items()
                if is_foreign(name) and is_quantity(amount) and parse_quantity(amount) > 0
            }
        )
    )


def near_counts(rooms: Mapping[str, int]) -> dict[str, int]:
    """Return the number of free CPUs near each resource's free devices, by the name of the resource that counts them.

    Without a published number the scheduler places no pod that requests the resource, and a restarting kubelet ignores
    the request. Names come from the kubelet alone, because pods may request any number of names. If there are more than
    MOST_NEAR resources, only the first ones by name are counted, because the size of a Node and the number of
    resources that admission policies read are limited.
    """
    found: dict[str, int] = {}
    for resource, room in sorted(rooms.items()):
        if (name := near_resource(resource)) and (name in found or len(found) < MOST_NEAR):
            found[name] = min(room, found.get(name, room))
    return found
