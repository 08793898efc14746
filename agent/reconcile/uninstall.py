"""Give every container all CPUs and delete all state: the agent's last action on a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.errors import AgentError
from pinning.machine.cpuset import EMPTY
from pinning.planning.actions import Action, Kind
from pinning.planning.observed import Owner, State
from pinning.planning.run_sets import SandboxSet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.reconcile.apply import Applier
    from agent.reconcile.checkpoint import Checkpoint
    from agent.reconcile.observe import Observer
    from agent.reconcile.runtime_sync import RuntimeSync
    from pinning.planning.observed import Observed


async def give_back(
    observer: Observer, applier: Applier, runtime_sync: RuntimeSync, checkpoint: Checkpoint
) -> None:
    """Widen every container, in the kernel and in the runtime; raise AgentError if one failed."""
    observed = await observer.observe()
    if not observed.containers_complete:
        raise AgentError("the runtime does not list its containers: start it, then reset again")
    done = await applier.apply(tuple(_widening(observed)), observer.records, frozenset())
    has_sent = await applier.created_updates.drained()
    await runtime_sync.drained()
    checkpoint.remove()
    if not (all(done) and has_sent):
        raise AgentError("not every container got all CPUs back: see the log, then reset again")


def _widening(observed: Observed) -> Iterator[Action]:
    everything = observed.universe
    for container in observed.live_on_host:
        if container.cpus != everything or container.home or container.state is State.CREATED:
            yield Action(Kind.WIDEN, container.id, container.owner, everything)
    for sandbox in observed.sandboxes:
        if sandbox.is_movable:
            owner, threads = Owner(sandbox.pod_uid, ""), SandboxSet(EMPTY, everything)
            yield Action(Kind.WIDEN, sandbox.id, owner, everything, threads=threads)
