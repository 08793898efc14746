"""The quiet CPUs of a node, and the CPUs that each interrupt may use in addition. Pure.

Globs come from users. An interrupt that matches one keeps its bits of the container's CPUs and gets no
further ones, so that no container can draw another's interrupts to its CPUs. The interrupts of a container's
own devices fire on its CPUs alone.
"""

from __future__ import annotations

import re
from fnmatch import translate
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from pinning.contract import IrqWord
from pinning.machine.cpuset import CPUSet, union
from pinning.machine.interrupts import Stay
from pinning.truncate import NAME, listed, truncate

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from pinning.machine.near import Device
    from pinning.planning.ledger import Assignment
    from pinning.planning.observed import Observed, Owner
    from pinning.pods.budget import PodPool


class Keep(NamedTuple):
    """The interrupts that stay on the CPUs of a container, or of a pool."""

    owner: Owner
    cpus: CPUSet
    globs: tuple[str, ...] = ()
    devices: tuple[
        Device, ...
    ] = ()  # devices whose interrupts fire on these CPUs; one without an address has none
    without: str = ""  # why no devices are known, though their interrupts must stay; empty: they are known


def quiet_sharers(ledger: Iterable[Assignment]) -> frozenset[Owner]:
    """Return the containers under `noise-policy: quiet` that may also run on the shared set."""
    return frozenset(it.owner for it in ledger if it.claim.shared_cpus and it.is_quiet(is_crio=True))


def quiet_cpus(ledger: Iterable[Assignment], *, is_crio: bool = False) -> CPUSet:
    """Return the CPUs of exclusive containers and pools under `quiet`, with the siblings that idle for them."""
    return union(it.footprint for it in ledger if it.is_quiet(is_crio=is_crio))


def keeps_of(ledger: Iterable[Assignment], observed: Observed) -> Mapping[Owner, Keep]:
    """Return the interrupts that stay on CPUs of exclusive containers and pools, by owner, quiet or not."""
    concerned = (it for it in ledger if it.claim.irq and it.is_exclusive and it.cpus)
    return {it.owner: _keep(it, observed) for it in concerned}


def _keep(assignment: Assignment, observed: Observed) -> Keep:
    owner, claim = assignment.owner, assignment.claim
    globs = tuple(name for name in claim.irq if name != IrqWord.DEVICES)
    keep = Keep(owner, assignment.cpus, globs)
    if IrqWord.DEVICES not in claim.irq:
        return keep
    # In a pool only devices of containers that ask for it count, not those of containers with CPUs of their own.
    users = _device_users(claim.pool) if claim.pool else (owner.container,)
    owners = [owner._replace(container=name) for name in users]
    if unknown := next(filter(None, (observed.why_unknown(it, claim.role) for it in owners)), ""):
        return keep._replace(without=f"they are not known: {unknown}")
    devices = tuple(device for it in owners for device in observed.devices_of(it, claim.role))
    return keep._replace(devices=devices, without="" if devices else "it has none")


def _device_users(pool: PodPool) -> tuple[str, ...]:
    """Return the containers of a pool whose devices' interrupts stay; devices of ordinary init containers are not known."""
    return tuple(name for name in pool.lasting if name in pool.irq_devices)


def stays_of(
    keeps: Iterable[Keep], names: Mapping[str, str], devices: Mapping[str, Collection[str]]
) -> dict[str, Stay]:
    """Return the CPUs on which interrupts may stay by number, without those that leave all quiet CPUs.

    `names` are those of the interrupts' actions, several by spaces, and `devices` the interrupts of a device by its
    address.
    """
    stays: dict[str, Stay] = {}
    for keep in keeps:
        own = {number for device in keep.devices for number in devices.get(device.address, ())}
        for number in own:
            stays[number] = stays.get(number, Stay()).at_home(keep.cpus)
        for number in _matching(keep, names) - own:
            stays[number] = stays.get(number, Stay()).allowed(keep.cpus)
    return stays


def _matching(keep: Keep, names: Mapping[str, str]) -> set[str]:
    return {number for number, name in names.items() if _matches(name, keep.globs)} if keep.globs else set()


def _matches(names: str, globs: tuple[str, ...]) -> bool:
    """Return whether a glob matches the names of an interrupt, or one of them: some have several drivers."""
    matches = _pattern(globs).match
    return bool(names) and any(map(matches, (names, *names.split(" "))))


@lru_cache(maxsize=512)
def _pattern(globs: tuple[str, ...]) -> re.Pattern[str]:
    """Return one expression for several globs: every name of a node is compared with it."""
    return re.compile("|".join(map(translate, globs)))


def note_of(keep: Keep, names: Mapping[str, str], devices: Mapping[str, Collection[str]]) -> str:
    """Return the parts of a policy that match no interrupt, with the reason; empty if all match some."""
    return "; ".join(filter(None, (_device_note(keep, devices), _glob_note(keep, names))))


def _device_note(keep: Keep, devices: Mapping[str, Collection[str]]) -> str:
    if keep.without:
        return f"no interrupt of its devices stays on its CPUs: {keep.without}"
    nowhere = {it.resource for it in keep.devices if not it.address}
    silent = {it.resource for it in keep.devices if it.address and not devices.get(it.address)}
    return "; ".join(
        f"interrupts of devices of {listed(resources)} do not stay on its CPUs: {reason}"
        for resources, reason in (
            (nowhere, "their PCI addresses are not known"),
            (silent, "the kernel shows no MSI interrupts of them"),
        )
        if resources
    )


def _glob_note(keep: Keep, names: Mapping[str, str]) -> str:
    known = set(names.values())
    unused = [glob for glob in keep.globs if not any(_matches(name, (glob,)) for name in known)]
    return f"no interrupt has a name like {listed(truncate(glob, NAME) for glob in unused)}" if unused else ""
