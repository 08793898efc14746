"""Where the threads of a machine may run, by what they do: as the kernel says, and QEMU says who they are."""

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
    others: tuple[str, ...]  # each mask once

    def one_each(self) -> list[int] | None:
        """Return the CPU of each vCPU, None unless each has one and no two the same."""
        sets = [CPUSet.parse(text) for text in self.vcpus]
        cpus = [next(iter(cpus)) for cpus in sets if len(cpus) == 1]
        return cpus if len(set(cpus)) == len(sets) else None

    def all(self) -> CPUSet:
        """Return where any of its threads may run."""
        return union(map(CPUSet.parse, (*self.vcpus, *self.iothreads.values(), *self.vhost, *self.others)))

    def is_all_on(self, cpus: CPUSet) -> bool:
        """Say whether every thread may run on all of these CPUs, and nowhere else."""
        texts = {*self.vcpus, *self.iothreads.values(), *self.vhost, *self.others}
        return texts == {str(cpus)}

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)

    @staticmethod
    def of(fields: Mapping[str, Any]) -> Seen:
        """Read what `to_dict` wrote."""
        texts = {name: tuple(fields[name]) for name in ("vcpus", "vhost", "others")}
        return Seen(iothreads=dict(fields["iothreads"]), **texts)


def see(truth: Truth) -> Seen:
    """Look at every thread."""
    return Seen(
        tuple(str(allowed(tid)) for tid in truth.vcpus),
        {name: str(allowed(tid)) for name, tid in truth.iothreads.items()},
        tuple(str(allowed(tid)) for tid in truth.vhost),
        tuple(sorted({str(allowed(tid)) for tid in truth.others})),
    )
