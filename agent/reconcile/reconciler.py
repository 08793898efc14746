"""One pass: observe, plan, save, apply, prove, tell. Level-triggered: nothing depends on what was missed before.

The ledger is saved before any action, so that an agent that dies at any instruction finds what it had begun. Without
a ledger to trust nothing is done before pods and containers are known in full: then one is rebuilt from them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from agent.errors import AgentError, Refused
from agent.kubelet.policy import KubeletPolicy, read_kubelet_policy
from agent.reconcile.apply import Applier
from agent.reconcile.checkpoint import Checkpoint, Saved, StateDir, as_kept
from agent.reconcile.foreign_writes import ForeignWrites
from agent.reconcile.observe import Observer
from agent.reconcile.prestart import PreStartPinner
from agent.reconcile.quota_policy import unset_quotas
from agent.reconcile.recover import recover
from agent.reconcile.result import node_state_of, pass_result
from agent.reconcile.runtime_sync import RuntimeSync
from agent.reconcile.verify import prove_tasks
from pinning.machine.cpuset import EMPTY
from pinning.planning.actions import Action, Kind
from pinning.planning.node_config import Quota
from pinning.planning.observed import State
from pinning.planning.plan import Plan, plan

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from agent.clock import Clock
    from agent.interfaces import Interfaces, NewContainer, Quotas
    from agent.metrics import Metrics
    from agent.node_state import NodeState
    from agent.reconcile.container_record import ContainerRecord
    from agent.reconcile.result import PassResult
    from agent.reconcile.verify import Sweep
    from pinning.machine.cpuset import CPUSet
    from pinning.planning.ledger import Ledger
    from pinning.planning.node_config import NodeConfig
    from pinning.planning.observed import Observed, Owner

PODS_SECONDS: Final = 2.0  # after the start: the first list takes a tenth of it, else the API is out of reach

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the operator chose for this node."""

    node: str
    config: NodeConfig
    kubelet_state: Path | None = None  # the kubelet's cpu_manager_state
    kubelet_policy: KubeletPolicy = KubeletPolicy.UNKNOWN  # what it told at start, if its file tells nothing


class Reconciler:
    """Holds the ledger between passes. `request_pass` is called when another pass is wanted."""

    def __init__(
        self,
        interfaces: Interfaces,
        settings: Settings,
        state_dir: StateDir,
        metrics: Metrics,
        clock: Clock,
        request_pass: Callable[[], None],
    ) -> None:
        self.observer = Observer(interfaces, clock, request_pass)
        self.runtime_sync = RuntimeSync(interfaces.runtime, self._runtime_wrote)
        self.metrics = metrics
        self._interfaces = interfaces
        self._settings = settings
        self._clock = clock
        self._request_pass = request_pass
        self._applier = Applier(interfaces, self.runtime_sync, clock)
        self._prestart = PreStartPinner(interfaces.cgroups, clock, self._newborn_cpus, self._tended)
        self._foreign_writes = ForeignWrites()
        self._started = clock.monotonic()
        self._has_begun = False
        self._ledger: Ledger | None = None
        self.checkpoint = Checkpoint(state_dir)
        self._followed: frozenset[str] = frozenset()  # cgroups of what runs
        self._wanted: dict[str, CPUSet] = {}  # what each container shall run on
        self._shared = EMPTY  # what everyone else shall; empty while the agent writes nothing

    def resume(self, saved: Saved) -> None:
        """Go on with what a checkpoint holds."""
        machine = self._interfaces.machine
        if saved.boot_id == machine.boot_id():
            self.observer.remember(saved.topology)
        self._ledger = as_kept(saved, machine.boot_id(), machine.topology())
        logger.info("checkpoint read", extra={"facts": {"assignments": len(self._ledger)}})

    async def run_pass(self) -> NodeState | None:
        """Do one pass; return what the node is then, None when too little is known to do anything."""
        self.metrics.passes.inc()
        self.runtime_sync.hold()
        watch = self._interfaces.cgroups.watch
        if watch:
            watch.hold()
        try:
            return await self._run_pass()
        finally:
            if watch:
                watch.release()
            self.runtime_sync.release()

    async def _run_pass(self) -> NodeState | None:
        observed = await self.observer.observe()
        self._follow()
        if not self._knows_enough(observed):
            logger.info("waiting for pods and containers", extra={"facts": _completeness(observed)})
            return None
        kubelet = self._kubelet()
        config = self._config(kubelet)
        if config.observe:
            self.observer.leave_newborn()
        made = self._plan(observed, config)
        await self._save(made.ledger, observed)
        self._count_rewrites()
        await self._act(made, observed, writes=not config.observe)
        await self.checkpoint.settle()
        quotas = self._interfaces.cgroups.quotas
        if quotas and config.quota is Quota.UNSET and not config.observe:
            unset_quotas(self.observer.records.values(), made.ledger, observed, quotas)
        result = self._result(observed, made)
        return node_state_of(
            result, self._settings.node, self._interfaces.runtime.name, kubelet, observes=config.observe
        )

    def _knows_enough(self, observed: Observed) -> bool:
        """Say whether to act: with a ledger soon, for pods may have been edited while there was no agent."""
        is_complete = observed.pods_complete and observed.containers_complete
        is_late = self._clock.monotonic() >= self._started + PODS_SECONDS
        self._has_begun = self._has_begun or is_complete or (is_late and self._ledger is not None)
        return self._has_begun

    def _follow(self) -> None:
        """Watch where containers will be made, and the cgroups of what runs when these are others than before."""
        if self._interfaces.container_watch:
            there = [one.cgroup for one in self.observer.records.values() if one.cgroup]
            _watch(self._interfaces.container_watch.follow, there)
        if self._running() != self._followed:
            self._follow_anew()

    def _follow_anew(self) -> None:
        """Watch every cgroup of what runs: another may have taken its place. That takes as long as reading them."""
        self._followed = self._running()
        if self._interfaces.cgroups.watch:
            _watch(self._interfaces.cgroups.watch.follow, self._followed)

    def _running(self) -> frozenset[str]:
        return frozenset(
            one.cgroup for one in self.observer.records.values() if one.cgroup and one.is_running
        )

    def _kubelet(self) -> KubeletPolicy:
        path = self._settings.kubelet_state
        policy = read_kubelet_policy(path) if path else KubeletPolicy.UNKNOWN
        return self._settings.kubelet_policy if policy is KubeletPolicy.UNKNOWN else policy

    def _config(self, kubelet: KubeletPolicy) -> NodeConfig:
        """Return the configuration; beside the kubelet's static policy the agent only observes (design rule 7)."""
        config = self._settings.config
        return replace(config, observe=True) if kubelet is KubeletPolicy.STATIC else config

    def _plan(self, observed: Observed, config: NodeConfig) -> Plan:
        if self._ledger is None:
            self._ledger = recover(observed, config)
            self.metrics.rebuilds.inc()
            logger.info("ledger rebuilt", extra={"facts": {"assignments": len(self._ledger)}})
        with self.metrics.plan_seconds.time():
            return plan(observed, self._ledger, config)

    async def _save(self, ledger: Ledger, observed: Observed) -> None:
        """Leave the ledger to the next agent; until that is done nothing else may be."""
        machine = self._interfaces.machine
        saved = Saved(machine.machine_id(), machine.boot_id(), observed.topology, observed.universe, ledger)
        await self.checkpoint.save(saved)
        self._ledger = ledger

    # Acting.

    async def _act(self, made: Plan, observed: Observed, *, writes: bool) -> None:
        shared = made.shared
        self._shared = shared if writes else EMPTY
        records = self.observer.records
        self._wanted = {key: made.ledger.cpus_of(record.owner, shared) for key, record in records.items()}
        if made.actions:
            with self.metrics.apply_seconds.time():
                done = await self._applier.apply(made.actions, records, self._left_alone())
            self._tell_actions(made.actions, done)
        self._look_back(observed.known_uids)
        self._assure_runtime()

    def _assure_runtime(self) -> None:
        """Tell the runtime once what runs right already: the agent may have died before it could."""
        for key, record in self.observer.records.items():
            if not record.is_assured and record.is_running and record.cgroup:
                record.is_assured = True
                if record.applied == self._wanted[key] != record.sent:
                    self.runtime_sync.want(key, record.applied)

    def _left_alone(self) -> frozenset[str]:
        """Return the containers that are not touched now: in conflict, or failed a moment ago."""
        now = self._clock.monotonic()
        self._foreign_writes = self._foreign_writes.at(now)
        return frozenset(
            key
            for key, one in self.observer.records.items()
            if one.not_before > now or self._foreign_writes.is_conflict(one.owner)
        )

    def _tell_actions(self, actions: tuple[Action, ...], done: tuple[bool, ...]) -> None:
        self.metrics.writes.labels("done").inc(sum(done))
        self.metrics.writes.labels("not done").inc(len(done) - sum(done))
        tells_all = logger.isEnabledFor(logging.DEBUG)
        for action, is_done in zip(actions, done, strict=True):
            if is_done and not tells_all:
                continue
            record = self.observer.records[action.container_id]
            facts = {"container": record.name, "kind": str(action.kind), "cpus": str(action.cpus)}
            if is_done:
                logger.debug("cpuset written", extra={"facts": facts})
                continue
            reason = record.failure or "it is left alone, or another write has to come first"
            logger.info("cpuset not written", extra={"facts": {**facts, "reason": reason}})

    def _look_back(self, known: Collection[str]) -> None:
        """Close the windows of those who are where they shall be, and forget failures that no longer matter.

        Where the container of a pod that nobody knows yet shall be is still to come.
        """
        for key, record in self.observer.records.items():
            is_there = (record.applied or record.sent) == self._wanted[key]
            if record.failure and (is_there or record.seen.state is State.EXITED):
                record.succeeded()
            if is_there and record.is_running and record.is_awaited and record.owner.pod_uid in known:
                self._close_window(key, record)

    def _close_window(self, key: str, record: ContainerRecord) -> None:
        """Tell for how long a new container may have run elsewhere, once nothing is on its way to it any more.

        What was written beside the passes has to be read by one first: the runtime's word is no proof.
        """
        is_read = bool(record.applied) or record.cgroup is None
        if not is_read or self._prestart.is_tending(key) or self._applier.created_updates.is_sending(key):
            return
        seconds = self._prestart.window(key, self._wanted[key])
        if seconds is not None:
            record.was_right(self._wanted[key], seconds)
        window = record.settled()
        if window is not None:
            self.metrics.window_seconds.observe(window)

    # New containers.

    def container_created(self, newborn: NewContainer) -> None:
        """Put a container whose cgroup was just made on its CPUs, without waiting for a pass."""
        record = self.observer.records.get(newborn.id)
        if not (record and record.is_running) and self._interfaces.cgroups.cpusets.writable:
            self._prestart.take(newborn)

    def _newborn_cpus(self, owner: Owner) -> CPUSet | None:
        """Return where a newborn container shall run: as the last plan says, and in the shared set where it says nothing."""
        if not self._shared or self._ledger is None or self._foreign_writes.is_conflict(owner):
            return None
        return self._ledger.cpus_of(owner, self._shared)

    def _tended(self, newborn: NewContainer) -> None:
        record = self.observer.records.get(newborn.id)
        if record:
            record.applied = EMPTY  # what was written beside the passes is nobody's rewrite
        self._request_pass()

    # Other writers.

    def _count_rewrites(self) -> None:
        for record in self.observer.rewritten:
            self.metrics.rewrites.inc()
            self._foreign_writes = self._foreign_writes.saw(record.owner, self._clock.monotonic())
            facts = {"container": record.name, "cpus": str(record.applied)}
            logger.warning("cpuset rewritten by another", extra={"facts": facts})

    def foreign_write(self, cgroup: str) -> None:
        """Take note of a write by somebody else; in a conflict it only makes the conflict longer."""
        record = next((one for one in self.observer.records.values() if one.cgroup == cgroup), None)
        if record and self._foreign_writes.is_conflict(record.owner):
            self._foreign_writes = self._foreign_writes.saw(record.owner, self._clock.monotonic())
            return
        self._request_pass()

    def _runtime_wrote(self, container_id: str) -> None:
        """Look at a cgroup again after the runtime had it in its hands."""
        record = self.observer.records.get(container_id)
        if record is None or record.cgroup is None or not record.is_running:
            return
        try:
            found = self._interfaces.cgroups.cpusets.read(record.cgroup)
        except AgentError:
            return
        if found != self._wanted.get(container_id):
            self._request_pass()

    # Telling.

    def _result(self, observed: Observed, made: Plan) -> PassResult:
        writes = self._foreign_writes
        conflicts = [(owner, len(writes.rewrites[owner])) for owner in writes.conflicts]
        return pass_result(observed, made, self.observer.records, conflicts)

    def retry_seconds(self) -> float | None:
        """Return the seconds until something is to be tried again, None when nothing is."""
        now = self._clock.monotonic()
        waits = [one.not_before - now for one in self.observer.records.values() if one.failure]
        ends = self._foreign_writes.ends(now)
        waits += [] if ends is None else [ends]
        return max(0.0, min(waits)) if waits else None

    async def sweep(self, is_wanted_elsewhere: Callable[[], bool]) -> Sweep:
        """Compare the tasks of every container with its CPUs, and read how often quotas stopped exclusive ones."""
        records = self.observer.records
        self._follow_anew()
        wanted = [(record, self._wanted[key]) for key, record in records.items() if key in self._wanted]
        quotas = self._interfaces.cgroups.quotas
        self.metrics.show_throttled(self._throttled(quotas) if quotas else {})
        return await prove_tasks(wanted, self._interfaces.cgroups.tasks, is_wanted_elsewhere)

    def _throttled(self, quotas: Quotas) -> dict[tuple[str, str, str], int]:
        counts = {}
        for record in self.observer.records.values():
            one = self._ledger.of(record.owner) if self._ledger else None
            if one and one.is_exclusive and record.cgroup and record.is_running:
                try:
                    times = quotas.times_throttled(record.cgroup)
                except AgentError:
                    continue
                counts[one.namespace, one.pod, one.owner.container] = times
        return counts

    async def reset(self) -> None:
        """Give every container all CPUs back and forget everything (uninstall)."""
        observed = await self.observer.observe()
        if not observed.containers_complete:
            raise AgentError("the runtime does not list its containers: start it, then reset again")
        actions = tuple(
            Action(Kind.WIDEN, one.id, one.owner, observed.universe)
            for one in observed.live
            if one.cpus != observed.universe or one.state is State.CREATED
        )
        done = await self._applier.apply(actions, self.observer.records, frozenset())
        self._tell_actions(actions, done)
        has_sent = await self._applier.created_updates.drained()
        await self.runtime_sync.drained()
        self.checkpoint.remove()
        if not (all(done) and has_sent):
            raise AgentError("not every container got all CPUs back: see the log, then reset again")


def _watch(follow: Callable[[Iterable[str]], None], cgroups: Iterable[str]) -> None:
    try:
        follow(cgroups)
    except Refused as error:
        logger.warning("cgroups are not watched", extra={"facts": {"reason": str(error)}})


def _completeness(observed: Observed) -> dict[str, bool]:
    return {"pods": observed.pods_complete, "containers": observed.containers_complete}
