"""Affinities of a machine's threads by role: masks from the kernel, roles from QEMU."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pinning.machine.cpuset import CPUSet, union
from tests.environments.vm.threads import allowed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.environments.vm.threads import Truth


@dataclass(frozen=True, slots=True)
class Seen:
    """Affinity masks at one time, as texts, so that a guest can report them to the host."""

    vcpus: tuple[str, ...]  # in the order of the guest's indexes
    iothreads: Mapping[str, str]
    vhost: tuple[str, ...]
    others: tuple[str, ...]  # different masks of the other threads

    def one_each(self) -> list[int] | None:
        """Return the CPU of each vCPU; None unless each has exactly one, and all differ."""
        sets = [CPUSet.parse(text) for text in self.vcpus]
        cpus = [next(iter(cpus)) for cpus in sets if len(cpus) == 1]
        return cpus if len(set(cpus)) == len(sets) else None

    def all(self) -> CPUSet:
        """Return the union of all masks."""
        return union(map(CPUSet.parse, (*self.vcpus, *self.iothreads.values(), *self.vhost, *self.others)))

    def is_all_on(self, cpus: CPUSet) -> bool:
        """Return whether the mask of every thread is exactly this set."""
        texts = {*self.vcpus, *self.iothreads.values(), *self.vhost, *self.others}
        return texts == {str(cpus)}

    def to_dict(self) -> dict[str, Any]:
        """Return the masks as JSON values."""
        return asdict(self)

    @staticmethod
    def of(fields: Mapping[str, Any]) -> Seen:
        """Decode the result of `to_dict`."""
        texts = {name: tuple(fields[name]) for name in ("vcpus", "vhost", "others")}
        return Seen(iothreads=dict(fields["iothreads"]), **texts)


def see(truth: Truth) -> Seen:
    """Read the mask of every thread."""
    return Seen(
        tuple(str(allowed(tid)) for tid in truth.vcpus),
        {name: str(allowed(tid)) for name, tid in truth.iothreads.items()},
        tuple(str(allowed(tid)) for tid in truth.vhost),
        tuple(sorted({str(allowed(tid)) for tid in truth.others})),
    )
