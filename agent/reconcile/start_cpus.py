"""CPUs of containers that start between two passes, by the last plan."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from pinning.machine.cpuset import CPUSet, union
from pinning.planning.observed import Owner

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from agent.reconcile.foreign_writes import ForeignWriteLog
    from pinning.planning.observed import SeenPod
    from pinning.planning.run_sets import RunSets


class StartCPUs(NamedTuple):
    """The CPUs on which a container may start."""

    cpus: CPUSet
    # False: the container's name, not known yet, decides which part of the CPUs it gets.
    is_planned: bool = True


class Unplanned(Enum):
    """The CPUs of a new container are unknown, but may be known soon."""

    YET = "no plan includes its pod yet"


class PlannedStarts:
    """Looks up the CPUs of new containers; while the agent writes nothing there are none."""

    def __init__(self, foreign_writes: ForeignWriteLog) -> None:
        self._foreign_writes = foreign_writes
        self._run_sets: RunSets | None = None
        self._pods: Mapping[str, SeenPod] = {}  # pods by uid
        self._host_classes: Collection[str] = ()

    def planned(
        self, run_sets: RunSets | None, pods: Iterable[SeenPod], host_classes: Collection[str] = ()
    ) -> None:
        """Store a plan, with the pods that it was made for; without run sets the agent writes nothing.

        Pods of the runtime classes in `host_classes` run on the host.
        """
        self._run_sets, self._pods = run_sets, {pod.uid: pod for pod in pods}
        self._host_classes = host_classes

    def of(self, owner: Owner) -> CPUSet | None:
        """Return a container's CPUs by the last plan, or the shared set if the plan does not name it.

        None: leave it alone.
        """
        if self._run_sets is None or self._foreign_writes.is_conflict(owner):
            return None
        return self._run_sets.at_creation(owner)

    def of_new(self, owner: Owner | str) -> StartCPUs | Unplanned | None:
        """Return the CPUs of a new container, or of any container of a pod if only that is known.

        None: leave it alone, because it is in a conflict, the agent writes nothing, or its pod has a runtime class of
        which no container was seen on the host: a cgroup of such a pod may belong to a virtual machine.
        """
        if isinstance(owner, Owner):
            cpus = self.of(owner)
            return None if cpus is None else StartCPUs(cpus)
        if self._run_sets is None:
            return None
        pod = self._pods.get(owner)
        if pod is None:
            return Unplanned.YET
        if pod.runtime_class and pod.runtime_class not in self._host_classes:
            return None
        if any(known.pod_uid == owner for known in self._foreign_writes.in_conflict):
            return None
        sets = self._run_sets.starts_in(pod)
        return StartCPUs(union(sets), is_planned=len(sets) == 1)
