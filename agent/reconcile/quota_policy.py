"""Unset the CFS quota of containers that own their CPUs, restore it afterwards, and count throttled periods.

A container with CPU limit 1 that keeps 4 CPUs busy is throttled for three quarters of its time. The pod's own quota
throttles too, and is unset if every container of the pod is exclusive and has its quota unset. For a container that may
use more CPUs than it owns, both quotas are unset unless the pod keeps them: its helper threads on the other CPUs would
use up the quota, and the threads on its own CPUs would be throttled. The kubelet sets both quotas again when it resizes
a pod, so they are checked again after a second. A Kata container has no cgroup on the host, and keeps its quota.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.errors import AgentError, Gone, Refused
from pinning.planning.node_config import Quota
from pinning.planning.quota import Bandwidth, effective_quota, is_unset

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from agent.interfaces import Interfaces, Quotas
    from agent.reconcile.container_record import ContainerRecord
    from agent.reconcile.restorable import Restorable
    from pinning.planning.ledger import Ledger
    from pinning.planning.observed import Observed

LOOK_SECONDS: Final = 1.0  # between two reads of a container's quota

logger = logging.getLogger(__name__)


class _Look(NamedTuple):
    """A decision about one container, with the facts it was based on and its time."""

    facts: tuple[Quota, int, int, bool] | None
    time: float
    is_unset: bool


_NOT_UNSET: Final = _Look(None, -1.0, is_unset=False)


class QuotaKeeper:
    """Unsets quotas and restores them; the originals are saved for the next agent."""

    def __init__(self, interfaces: Interfaces, saved: Restorable, *, keeps_quiet: bool) -> None:
        self._quotas, self._runtime = interfaces.cgroups.quotas, interfaces.runtime
        self._keeps_quiet = keeps_quiet
        self._saved = saved
        saved.require(lambda _, text: _parse(text))
        self._looks: dict[str, _Look] = {}  # the last decision, by cgroup
        self._whole: set[str] = set()  # cgroups of pods whose own quota is unset

    def follow(
        self, records: Iterable[ContainerRecord], ledger: Ledger, observed: Observed, word: Quota, now: float
    ) -> None:
        """Unset the quotas that pods or the operator chose to unset, and restore those no longer chosen."""
        with suppress(Refused):  # while this fails no original can be saved, so no quota is unset
            self._saved.reread()
        known = {record.cgroup: record for record in records if record.cgroup}
        looks = {cgroup: self._look(record, cgroup, ledger, word, now) for cgroup, record in known.items()}
        unset = {cgroup for cgroup, look in looks.items() if look.is_unset}
        whole = {_pod_of(cgroup) for cgroup in _of_whole_pods(known, unset, ledger, observed)}
        due = {cgroup for cgroup, look in looks.items() if look.time == now}
        due |= {_pod_of(cgroup) for cgroup in due} | (whole - self._whole)
        self._looks, self._whole = looks, whole
        self._unset([*sorted(whole & due), *sorted(unset & due)])
        left = self._saved.originals.keys() - unset - whole
        if left:
            self._restore(sorted(left), is_known=known.keys() | set(map(_pod_of, known)))

    def restore_all(self) -> bool:
        """Restore every quota (uninstall); return whether all were restored."""
        try:
            self._saved.reread()
        except Refused as error:
            logger.warning("quotas not restored", extra={"facts": {"reason": str(error)}})
            return False
        self._restore(sorted(self._saved.originals), is_known=self._saved.originals.keys())
        return not self._saved.originals

    def _look(self, record: ContainerRecord, cgroup: str, ledger: Ledger, word: Quota, now: float) -> _Look:
        """Decide whether to unset a container's quota; a decision is reused for a second if its facts are unchanged."""
        held = ledger.of(record.owner)
        if held is None or not held.is_exclusive or not record.is_running:
            return _NOT_UNSET
        is_crio = self._runtime.name.startswith("cri-o ")
        word = effective_quota(
            held.claim, word, uses_pools=bool(record.home), is_crio=is_crio, keeps_quiet=self._keeps_quiet
        )
        facts = (word, len(held.cpus), held.claim.count, bool(record.home))
        last = self._looks.get(cgroup, _NOT_UNSET)
        if last.facts == facts and now < last.time + LOOK_SECONDS:
            return last
        if record.home and word is Quota.UNSET:
            return _Look(facts, now, is_unset=True)
        bandwidth = self._read(cgroup) or self._original(cgroup)
        return _Look(facts, now, bandwidth is not None and is_unset(word, len(held.cpus), bandwidth))

    def _original(self, cgroup: str) -> Bandwidth | None:
        text = self._saved.originals.get(cgroup)
        return _parse(text) if text else None

    def _read(self, cgroup: str) -> Bandwidth | None:
        try:
            return self._quotas.quota(cgroup)
        except AgentError:
            return None

    def _unset(self, cgroups: list[str]) -> None:
        """Unset quotas, a pod's before its containers' as cgroup v1 requires; the originals are saved first."""
        found = {cgroup: bandwidth for cgroup in cgroups if (bandwidth := self._read(cgroup))}
        originals = {cgroup: f"{it.quota} {it.period}" for cgroup, it in found.items()}
        if not self._save(lambda: self._saved.remember(originals)):
            return
        for cgroup in found:
            try:
                self._quotas.unset_quota(cgroup)
                logger.info("quota unset", extra={"facts": {"cgroup": cgroup}})
            except AgentError as error:
                logger.debug("quota not unset", extra={"facts": {"cgroup": cgroup, "reason": str(error)}})

    def _restore(self, cgroups: list[str], is_known: Collection[str]) -> None:
        """Restore quotas that are still unset.

        The records of quotas that another program has set in the meantime, and of removed cgroups, are dropped.
        """
        done = []
        for cgroup in cgroups:
            try:
                if self._quotas.quota(cgroup) is None:
                    if cgroup not in is_known:
                        continue  # the runtime does not list its container now
                    self._give_back(cgroup)
            except Gone:
                pass
            except AgentError as error:
                facts = {"cgroup": cgroup, "reason": str(error)}
                logger.warning("quota not restored", extra={"facts": facts})
                continue
            done.append(cgroup)
        self._save(lambda: self._saved.forget(done))

    def _save(self, change: Callable[[], None]) -> bool:
        """Change the saved originals; return whether that succeeded.

        A quota whose original is not saved is never unset.
        """
        try:
            change()
        except AgentError as error:
            logger.warning("kernel values not saved", extra={"facts": {"reason": str(error)}})
            return False
        return True

    def _give_back(self, cgroup: str) -> None:
        original = self._original(cgroup)
        if original:
            self._quotas.set_quota(cgroup, original)
            logger.info("quota restored", extra={"facts": {"cgroup": cgroup}})


def times_throttled(
    records: Iterable[ContainerRecord], ledger: Ledger, quotas: Quotas
) -> dict[tuple[str, str, str], int]:
    """Return the throttled periods of each running exclusive container: by namespace, pod and container."""
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


def _of_whole_pods(
    records: Mapping[str, ContainerRecord], unset: set[str], ledger: Ledger, observed: Observed
) -> Iterator[str]:
    """Yield the cgroups of containers whose pod's quota is unset too."""
    limited = {it.owner.pod_uid for cgroup, it in records.items() if it.is_running and cgroup not in unset}
    exclusive = {pod.uid for pod in observed.by_age if _all_exclusive(pod.uid, pod.start_order, ledger)}
    for cgroup in unset:
        record = records[cgroup]
        if record.home or record.owner.pod_uid in exclusive - limited:
            yield cgroup


def _pod_of(cgroup: str) -> str:
    return cgroup.rpartition("/")[0]


def _all_exclusive(uid: str, start_order: tuple[str, ...], ledger: Ledger) -> bool:
    exclusive = {held.owner.container for held in ledger.pods.get(uid, ()) if held.is_exclusive}
    return exclusive.issuperset(start_order)


def _parse(text: str) -> Bandwidth:
    """Parse a saved quota; raise ValueError for anything else, so that no invented value is ever written."""
    quota, _, period = text.partition(" ")
    if not (quota.isdecimal() and period.isdecimal()):
        raise ValueError(text)
    return Bandwidth(int(quota), int(period))
