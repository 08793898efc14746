"""Causes that refuse a container's number of cores or CPUs. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinning.contract import CPUPolicy
from pinning.errors import Cause
from pinning.pods.quantity import rounded_up, whole
from pinning.pods.resources import MOST_CPUS, shown, whole_cpus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinning.pods.annotations import PolicyAnnotations
    from pinning.pods.resources import Member


def bad_count(member: Member) -> Iterator[Cause]:
    """Refuse a number that is not whole, or a limit that differs from the request."""
    resource = member.cores[0]
    request, limit = member.requests[resource], member.limits.get(resource)
    count = whole(request)
    if count is None or count < 1:
        where = "limits" if request == limit else "requests"
        message = f"{shown(request)} is not a number of cores: write a whole number of 1 or more"
        yield Cause(
            f"{member.path}.resources.{where}[{resource}]", message, flaw=("count", member.path, resource)
        )
    elif count <= MOST_CPUS and limit is not None and whole(limit) != count:  # a missing limit is added
        message = f"is {shown(limit)} but the request is {shown(request)}: set both to {count}"
        yield Cause(
            f"{member.path}.resources.limits[{resource}]", message, flaw=("unequal", member.path, resource)
        )


def claimed_twice(member: Member, policies: PolicyAnnotations) -> Iterator[Cause]:
    """Refuse an annotation that claims CPUs for a container with cores."""
    annotation = policies.cpu.of(member.name)
    meant = annotation and (policies.cpu.is_named(member.name) or whole_cpus(member))
    if annotation and meant and annotation.value is not CPUPolicy.NONE:
        claims = f"claims CPUs for container {member.called}, which claims cores by {member.cores[0]}"
        flaw = ("twice", annotation.key, member.name, annotation.value)
        yield Cause(annotation.field, f"{annotation.value} {claims}; remove one", flaw=flaw)


def advice(member: Member) -> str:
    """Return an example of amounts with which a container can own CPUs."""
    given = member.limits.get("cpu", member.requests.get("cpu"))
    if given is None:
        return ", e.g. limits.cpu: 2"
    return f", e.g. {min(max(1, rounded_up(given)), MOST_CPUS)} for both"


def beyond_any_machine(member: Member, claimed: str | None) -> Cause:
    """Return the cause for a count above the size of any machine, with the field where the user wrote it.

    `claimed` is the CMK resource of the claim; None: CPUs.
    """
    resource, what = (claimed, "cores") if claimed else ("cpu", "CPUs")
    request, limit = member.requests[resource], member.limits.get(resource)
    part, given = ("requests", request) if claimed and request != limit else ("limits", limit)
    problem = f"{shown(given)} {what} are more than any machine has"
    field = f"{member.path}.resources.{part}[{resource}]"
    flaw = ("beyond", member.path, resource)
    return Cause(field, f"{problem}: write a whole number from 1 to {MOST_CPUS}", flaw=flaw)
