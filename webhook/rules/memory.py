"""Warnings about pods that bind memory to the NUMA node of their CPUs. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinning.contract import NUMA_MEMORY_POD
from pinning.errors import Cause
from pinning.pods.annotations import annotation_field
from pinning.pods.quantity import parse_quantity
from pinning.pods.resources import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinning.pods.claims import PodClaims
    from webhook.config.settings import NodeShape


def too_much_memory(pod_claims: PodClaims, shapes: tuple[NodeShape, ...]) -> Iterator[Cause]:
    """Warn about a memory limit above the largest NUMA node, because the OOM killer acts before it is reached."""
    bound = [claim for claim in pod_claims.claims if claim.memory_limit]
    sizes = [(parse_quantity(shape.numa_memory), shape) for shape in shapes if shape.numa_memory is not None]
    # A shape without a memory size may have a larger NUMA node.
    if not bound or not sizes or len(sizes) < len(shapes):
        return
    size, largest = max(sizes, key=lambda sized: (sized[0], sized[1].name))
    for claim in bound:
        if claim.memory_limit > size:
            field = f"{pod_claims.member_of(claim).path}.resources.limits[memory]"
            limit = shown(pod_claims.member_of(claim).limits["memory"])
            there = f"{shown(largest.numa_memory)} that a NUMA node of {largest.name} has"
            remedy = f"lower it, or write {NUMA_MEMORY_POD}: free"
            message = f"{limit} is more than the {there}, and the kernel kills the container when that is used up: {remedy}"
            yield Cause(field, message, flaw=("memory", field))


def edited_memory(before: PodClaims, after: PodClaims) -> Iterator[Cause]:
    """Warn that running containers keep their memory nodes until they start again."""
    was = {claim.container: claim.numa_memory for claim in before.claims}
    now = {claim.container: claim.numa_memory for claim in after.claims}
    if any(container in was and was[container] != memory for container, memory in now.items()):
        message = "running containers keep their memory on its NUMA nodes until they restart"
        yield Cause(annotation_field(NUMA_MEMORY_POD), message)
