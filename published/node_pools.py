"""The annotation `status.corepin.io/pools` of a node."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from published.codec import Part, Published, no_members


class Owner(Part, frozen=True):
    """A container, pool or ResourceClaim that holds CPUs."""

    policy: str = msgspec.field(default_factory=str)
    cpus: str = msgspec.field(default_factory=str)
    smt_policy: str = ""
    idle: str = ""


class Sidecars(Part, frozen=True):
    """Number and requests of the injected sidecars whose resources the webhook filled in."""

    containers: int = msgspec.field(default_factory=int)
    cpu: str = msgspec.field(default_factory=str)
    memory: str = msgspec.field(default_factory=str)


class Hidden(Part, frozen=True):
    """Resources that pods with dedicated CPUs use beyond their requests: idle siblings, injected sidecars."""

    idle_cpus: int = msgspec.field(default_factory=int, name="idleCPUs")
    sidecars: Sidecars = msgspec.field(default_factory=Sidecars)


class NearCPUs(Part, frozen=True):
    """Counts of CPUs on the NUMA nodes of the devices of one resource."""

    # Number of free CPUs that are near any device that the kubelet may assign next (the least of all).
    free: int = msgspec.field(default_factory=int)
    # The node's capacity of this resource, which includes CPUs that pods hold; None: not known.
    published: int | None = None


class Sets(Published, frozen=True, kw_only=True):
    """CPU sets of a node, as CPU lists, from which the node is drawn."""

    universe: str = msgspec.field(default_factory=str)
    reserved: str
    shared: str
    set_aside: str
    isolated: str = msgspec.field(default_factory=str)
    free: str = msgspec.field(default_factory=str)
    reserved_by: str = ""  # empty: an earlier agent did not publish it
    align_uncore: bool | None = None  # None: an earlier agent did not publish it
    # Counts of CPUs near free devices, by the resource that publishes them (`near.corepin.io/...`).
    near_cpus: dict[str, NearCPUs] = msgspec.field(default_factory=dict, name="nearCPUs")
    # Number of resources that `near_cpus` leaves out.
    more_near_cpus: int = msgspec.field(default=0, name="moreNearCPUs")


class Pools(Sets, frozen=True, kw_only=True):
    """The CPU sets of a node and their owners, by namespace/pod/container."""

    NAME: ClassVar = "the agent's annotation of CPU sets"
    VERSION: ClassVar = 1

    observes: bool = msgspec.field(default_factory=bool)
    owners: dict[str, Owner] = msgspec.field(default_factory=no_members)
    more_owners: int = 0  # number of owners that are left out
    hidden: Hidden = msgspec.field(default_factory=Hidden)
