"""CPUs of containers on nodes where the kubelet allocates them (interface `ObservedCPUs`).

These are the CPUs that the kubelet reports, or the cpuset of a container that it does not report.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Protocol

from agent.interfaces import HeldCPUs
from pinning.machine.cpuset import EMPTY
from pinning.planning.observed import Owner, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.interfaces import RuntimeContainer
    from pinning.machine.cpuset import CPUSet


class Kubelet(Protocol):
    """Reports the CPUs that the kubelet assigned."""

    async def exclusive(self) -> Mapping[str, CPUSet] | None:
        """Return each container's own CPUs by namespace/pod/container, empty sets included; None if unavailable."""
        ...


class Records(Protocol):
    """CPUs in the runtime's record of containers."""

    async def recorded_cpus(self, container_ids: Iterable[str]) -> Mapping[str, CPUSet]:
        """Return the recorded cpusets by container id; containers without a record are left out."""
        ...


class KubeletAssignments:
    """Caches the kubelet's answer for a container's lifetime: it does not change, and the kubelet may be unavailable."""

    def __init__(self, kubelet: Kubelet, records: Records) -> None:
        self._kubelet = kubelet
        self._records = records
        self._answers: dict[str, CPUSet] = {}  # CPUs that the kubelet assigned, by container id

    async def read(self, containers: Iterable[tuple[RuntimeContainer, CPUSet]]) -> Mapping[Owner, HeldCPUs]:
        """Return the CPUs of live containers, given each one's cpuset; it is empty for containers in VMs.

        For these the runtime's record is read, if the kubelet reports no CPUs.
        """
        live = [(seen, cpus) for seen, cpus in containers if seen.state is not State.EXITED]
        self._remember([seen for seen, _ in live], await self._kubelet.exclusive() or {})
        unread = [seen.id for seen, _ in live if seen.in_vm and not self._answers.get(seen.id)]
        recorded = await self._records.recorded_cpus(unread)
        held = {
            Owner(seen.pod_uid, seen.name): _held(
                self._answers.get(seen.id), cpus or recorded.get(seen.id, EMPTY)
            )
            for seen, cpus in sorted(live, key=lambda pair: (pair[0].state is State.RUNNING, pair[0].id))
        }
        return {owner: found for owner, found in held.items() if found.cpus}

    def _remember(self, live: list[RuntimeContainer], answer: Mapping[str, CPUSet]) -> None:
        """Store the kubelet's answer, except for a name that two pods have: one was force-deleted and still runs."""
        pods = Counter((namespace, pod) for namespace, pod, _ in {_pod(seen) for seen in live})
        known = {
            seen.id: (answer if pods[_pod(seen)[:2]] == 1 else {}).get(
                seen.full_name, self._answers.get(seen.id)
            )
            for seen in live
        }
        self._answers = {key: cpus for key, cpus in known.items() if cpus is not None}


def _pod(container: RuntimeContainer) -> tuple[str, str, str]:
    return container.namespace, container.pod, container.pod_uid


def _held(answer: CPUSet | None, confined: CPUSet) -> HeldCPUs:
    """Return a container's own CPUs, otherwise its cpuset."""
    if answer:
        return HeldCPUs(answer, is_exclusive=True)
    return HeldCPUs(confined, is_exclusive=None if answer is None else False)
