"""QoS class of a pod, and its pod-level resources with the API server's defaults.

Source: Kubernetes "Pod Quality of Service Classes", KEP-2837 for pod-level resources, and the API server 1.37, which
fills in defaults after admission. Servers before 1.37 fill in requests, and no limits.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pinning.contract import QoSClass
from pinning.pods.quantity import parse_quantity
from pinning.pods.resources import COMPUTE, Member, Role, is_quantity, members

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from pinning.pods.types import Pod, ResourceList


class Amounts(NamedTuple):
    """CPU and memory by name; an absent one is not stated."""

    requests: Mapping[str, Fraction]
    limits: Mapping[str, Fraction]

    def is_fixed(self, name: str) -> bool:
        """Return whether the limit is above 0 and equal to the request."""
        limit = self.limits.get(name, Fraction(0))
        return limit > 0 and self.requests.get(name) == limit


def qos_class(pod: Pod) -> QoSClass:
    """Return the QoS class that the API server would compute; pod-level resources decide alone if there are any."""
    pod_level = pod_amounts(pod)
    if pod_level:
        return _qos([pod_level])
    return _qos([Amounts(_read(member.requests), _read(member.limits)) for member in members(pod)])


def pod_amounts(pod: Pod, names: Collection[str] = COMPUTE) -> Amounts | None:
    """Return the pod-level amounts that the API server stores; None if the pod states no pod-level resources.

    A missing request is the containers' requests together, else the limit. A missing limit is the containers' limits
    together, at least the request, if every container has one.
    """
    resources = (pod.get("spec") or {}).get("resources") or {}
    if not (resources.get("requests") or resources.get("limits")):
        return None
    requests, limits = _read(resources.get("requests"), names), _read(resources.get("limits"), names)
    if all(name in requests and name in limits for name in names):
        return Amounts(requests, limits)
    listed = members(pod)
    for name in names:
        if name not in requests and any(name in member.requests for member in listed):
            requests[name] = in_effect(listed, partial(_request, name))
        elif name not in requests and name in limits:
            requests[name] = limits[name]
        if name in requests and name not in limits and all(name in member.limits for member in listed):
            together = in_effect(listed, partial(_limit, name))
            limits[name] = max(requests[name], together)
    return Amounts(requests, limits)


def in_effect(listed: Iterable[Member], amount: Callable[[Member], Fraction]) -> Fraction:
    """Return the highest sum of amounts that are in effect at the same time."""
    running = most = Fraction(0)
    for member in listed:
        if member.role is Role.INIT:
            most = max(most, running + amount(member))
        else:
            running += amount(member)
    return max(most, running)


def _read(given: ResourceList | None, names: Collection[str] = COMPUTE) -> dict[str, Fraction]:
    stated = given or {}
    return {
        name: parse_quantity(stated[name]) for name in names if name in stated and is_quantity(stated[name])
    }


def _request(name: str, member: Member) -> Fraction:
    return parse_quantity(member.requests.get(name, 0))


def _limit(name: str, member: Member) -> Fraction:
    return parse_quantity(member.limits.get(name, 0))


def _qos(stated_by_all: list[Amounts]) -> QoSClass:
    if stated_by_all and all(amounts.is_fixed(name) for amounts in stated_by_all for name in COMPUTE):
        return QoSClass.GUARANTEED
    nothing = not any(amounts.requests.get(name) for amounts in stated_by_all for name in COMPUTE)
    return QoSClass.BEST_EFFORT if nothing else QoSClass.BURSTABLE
