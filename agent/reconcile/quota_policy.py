"""Take the CFS quota from containers that own their CPUs where the operator wants it (`quota: unset`), and count its stops.

A container with CPU limit 1 on 4 CPUs is stopped for three quarters of its time. The quota of the pod counts too,
and goes when every container of the pod is exclusive. Of one that runs on more than it owns both always go: its
helpers would use them up and stop the threads on its own CPUs. A kubelet that resizes the pod sets both again: so
each pass looks anew.
"""

from __future__ import annotations

import logging
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from agent.errors import AgentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.interfaces import Quotas
    from agent.reconcile.container_record import ContainerRecord
    from pinning.planning.ledger import Ledger
    from pinning.planning.observed import Observed

logger = logging.getLogger(__name__)


def unset_quotas(
    records: Iterable[ContainerRecord],
    ledger: Ledger,
    observed: Observed,
    quotas: Quotas,
    *,
    of_all: bool,
) -> None:
    """Unset what has a quota and shall have none: `of_all` owners, or of those that run on more than they own."""
    unlimited = [record for record in records if _is_unlimited(record, ledger, of_all=of_all)]
    whole = {record.owner.pod_uid for record in unlimited if record.home}
    if of_all:
        whole |= {pod.uid for pod in observed.by_age if _all_exclusive(pod.uid, pod.start_order, ledger)}
    for record in unlimited:
        for cgroup in _cgroups(record, whole):
            _unset(cgroup, record, quotas)


def times_throttled(
    records: Iterable[ContainerRecord], ledger: Ledger, quotas: Quotas
) -> dict[tuple[str, str, str], int]:
    """Return how often quotas stopped each exclusive container that runs: by namespace, pod and container."""
    counts = {}
    for record in records:
        assignment = ledger.of(record.owner)
        if assignment and assignment.is_exclusive and record.cgroup and record.is_running:
            try:
                times = quotas.times_throttled(record.cgroup)
            except AgentError:
                continue
            counts[assignment.namespace, assignment.pod, assignment.owner.container] = times
    return counts


def _all_exclusive(uid: str, start_order: tuple[str, ...], ledger: Ledger) -> bool:
    exclusive = {held.owner.container for held in ledger.pods.get(uid, ()) if held.is_exclusive}
    return exclusive.issuperset(start_order)


def _is_unlimited(record: ContainerRecord, ledger: Ledger, *, of_all: bool) -> bool:
    assignment = ledger.of(record.owner)
    is_owner = assignment is not None and assignment.is_exclusive
    return is_owner and record.is_running and (of_all or bool(record.home))


def _cgroups(record: ContainerRecord, whole: set[str]) -> Iterator[str]:
    """Yield the cgroups that shall have no quota, the container's and its pod's; v1 wants the pod's first."""
    if record.cgroup is None:
        return
    if record.owner.pod_uid in whole:
        yield str(PurePosixPath(record.cgroup).parent)
    yield record.cgroup


def _unset(cgroup: str, record: ContainerRecord, quotas: Quotas) -> None:
    facts = {"container": record.name, "cgroup": cgroup}
    try:
        if quotas.quota(cgroup) is not None:
            quotas.unset_quota(cgroup)
            logger.info("quota unset", extra={"facts": facts})
    except AgentError as error:
        logger.debug("quota stays", extra={"facts": {**facts, "reason": str(error)}})
