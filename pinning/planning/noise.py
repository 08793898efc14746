"""The quiet CPUs of a node, and the CPUs that each interrupt may use in addition. Pure.

Globs come from users. An interrupt that matches a glob keeps those CPUs of the container on which it may already fire,
and gets no other CPUs, so that no container can attract another's interrupts. The interrupts of a container's own
devices fire on its CPUs alone.
"""

from __future__ import annotations

import re
from fnmatch import translate
from functools import lru_cache, reduce
from operator import or_
from typing import TYPE_CHECKING, NamedTuple

from pinning.contract import IrqWord
from pinning.machine.cpuset import CPUSet, union
from pinning.machine.interrupts import Stay
from pinning.truncate import NAME, listed, truncate

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from pinning.machine.near import Device
    from pinning.planning.ledger import Assignment
    from pinning.planning.observed import Observed, Owner
    from pinning.pods.budget import PodPool


class Keep(NamedTuple):
    """The interrupts that stay on the CPUs of a container, or of a pool."""

    owner: Owner
    cpus: CPUSet
    globs: tuple[str, ...] = ()
    # Devices whose interrupts fire on these CPUs; those of a device without an address are not known.
    devices: tuple[Device, ...] = ()
    # Why no interrupts of devices stay although the policy asks for them; empty: `devices` has its devices.
    without: str = ""


def quiet_sharers(ledger: Iterable[Assignment]) -> frozenset[Owner]:
    """Return the containers under `noise-policy: quiet` that may also run on the shared set."""
    return frozenset(it.owner for it in ledger if it.claim.shared_cpus and it.is_quiet(is_crio=True))


def quiet_cpus(ledger: Iterable[Assignment], *, is_crio: bool = False) -> CPUSet:
    """Return the CPUs of exclusive containers and pools under `quiet`, with the siblings that idle for them."""
    return union(it.footprint for it in ledger if it.is_quiet(is_crio=is_crio))


def keeps_of(ledger: Iterable[Assignment], observed: Observed) -> Mapping[Owner, Keep]:
    """Return the interrupts that stay on CPUs of exclusive containers and pools, by owner, whether quiet or not."""
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
    """Return the pool's containers whose `irq-policy` keeps device interrupts, without ordinary init containers."""
    return tuple(name for name in pool.lasting if name in pool.irq_devices)


class Matches(NamedTuple):
    """The interrupts that each glob matches, as bitmasks, because every glob of a node may match thousands."""

    numbers: tuple[str, ...]  # numbers of the interrupts that have a name
    bits: Mapping[str, int]  # by glob: a bit for each of `numbers`

    def of(self, globs: Iterable[str]) -> set[str]:
        """Return the numbers of the interrupts that one of the globs matches."""
        bits = reduce(or_, map(self.bits.__getitem__, globs), 0)
        return {number for at, number in enumerate(self.numbers) if bits >> at & 1} if bits else set()


def match_globs(keeps: Iterable[Keep], names: Mapping[str, str]) -> Matches:
    """Return which interrupts the globs of all containers match; a glob of many containers is matched once.

    `names` has the names of each interrupt's actions by its number, separated by spaces. A glob must match the whole
    text or one name.
    """
    numbers = tuple(number for number, name in names.items() if name)
    words: dict[str, int] = {}
    for at, number in enumerate(numbers):
        for word in {names[number], *names[number].split(" ")}:
            words[word] = words.get(word, 0) | 1 << at
    globs = {glob for keep in keeps for glob in keep.globs}
    return Matches(numbers, {glob: reduce(or_, _bits(glob, words), 0) for glob in globs})


def _bits(glob: str, words: Mapping[str, int]) -> Iterator[int]:
    return map(words.__getitem__, filter(_pattern(glob).match, words))


@lru_cache(maxsize=1024)
def _pattern(glob: str) -> re.Pattern[str]:
    return re.compile(translate(glob))


def stays_of(
    keeps: Iterable[Keep], matches: Matches, devices: Mapping[str, Collection[str]]
) -> dict[str, Stay]:
    """Return the CPUs on which interrupts may stay, by number; interrupts that must leave all quiet CPUs are left out.

    `devices` has the numbers of a device's interrupts by its PCI address.
    """
    stays: dict[str, Stay] = {}
    for keep in keeps:
        own = {number for device in keep.devices for number in devices.get(device.address, ())}
        for number in own:
            stays[number] = stays.get(number, Stay()).at_home(keep.cpus)
        for number in matches.of(keep.globs) - own:
            stays[number] = stays.get(number, Stay()).allowed(keep.cpus)
    return stays


def note_of(keep: Keep, matches: Matches, devices: Mapping[str, Collection[str]]) -> str:
    """Return the parts of a policy that match no interrupt, with the reason; empty if all match some."""
    return "; ".join(filter(None, (_device_note(keep, devices), _glob_note(keep, matches))))


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


def _glob_note(keep: Keep, matches: Matches) -> str:
    unused = [glob for glob in keep.globs if not matches.bits[glob]]
    return f"no interrupt has a name like {listed(truncate(glob, NAME) for glob in unused)}" if unused else ""
