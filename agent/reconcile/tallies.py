"""Counts, every few seconds, the tasks of containers that run on more than they own: the kernel reports no change of a mask."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from agent.reconcile.verify import prove_parts
from pinning.planning.observed import Owner

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.clock import Clock
    from agent.interfaces import Cgroups
    from agent.node_state import ContainerState, NodeState, PodState, Proof
    from agent.reconcile.observe import Observer

POLL_SECONDS: Final = 2.0
REST: Final = 50.0  # seconds for each second of counting, so that many threads cost at most 2 % of a core
MOST_SHOWN: Final = 8  # in one round: programs that change their masks all the time cost 4 requests a second

logger = logging.getLogger(__name__)


class TallyWatch:
    """Keeps the tallies of proofs fresh between sweeps. It moves nothing and requests no pass."""

    def __init__(self, observer: Observer, cgroups: Cgroups, clock: Clock) -> None:
        self._observer = observer
        self._cgroups = cgroups
        self._clock = clock
        self._first = 0  # container of the next round

    async def run(self, show: Callable[[Mapping[Owner, Proof]], None]) -> None:
        """Count until cancelled; show the proofs that changed."""
        took = 0.0
        while True:
            await asyncio.sleep(max(POLL_SECONDS, REST * took))
            began = self._clock.monotonic()
            try:
                changed = await self.count()
            except Exception:  # the loop's edge: a bug in one round must not end the agent
                logger.exception("count of tasks crashed")
                changed = {}
            took = self._clock.monotonic() - began
            if changed:
                show(changed)

    async def count(self) -> Mapping[Owner, Proof]:
        """Count the tasks of each container in turn, until MOST_SHOWN proofs changed; return these."""
        records = [record for record in self._observer.records.values() if record.split_home]
        changed: dict[Owner, Proof] = {}
        first = self._first % len(records) if records else 0
        for record in records[first:] + records[:first]:
            self._first += 1
            if prove_parts(record, self._cgroups) and record.proof:
                changed[record.owner] = record.proof
            if len(changed) == MOST_SHOWN:
                break
            await asyncio.sleep(0)
        return changed


def with_proofs(state: NodeState, proofs: Mapping[Owner, Proof]) -> NodeState:
    """Return a state with newer counts of some containers, where it shows them on the same CPUs."""
    uids = {owner.pod_uid for owner in proofs}
    return replace(state, pods=tuple(_pod(pod, proofs) if pod.uid in uids else pod for pod in state.pods))


def _pod(pod: PodState, proofs: Mapping[Owner, Proof]) -> PodState:
    return replace(pod, containers=tuple(_container(pod.uid, each, proofs) for each in pod.containers))


def _container(uid: str, container: ContainerState, proofs: Mapping[Owner, Proof]) -> ContainerState:
    proof = proofs.get(Owner(uid, container.name))
    is_of_the_same = proof and container.proof and proof.cpus == container.proof.cpus
    return replace(container, proof=proof) if is_of_the_same else container
