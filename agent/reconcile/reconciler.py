"""One reconcile pass: observe the node, plan, save the ledger, apply the plan, read back, return the node's state.

A pass that would move or free CPUs lists all containers first, so a lost event delays a change and causes no wrong one.
The ledger is saved before any action, so that an agent killed at any instruction resumes what it had begun. Without a
usable ledger no action is taken before all pods and containers are known; the ledger is then recovered from them.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from agent.errors import AgentError
from agent.kubelet.policy import read_kubelet_policy, read_memory_policy, versions
from agent.published_parts import reported_cpus
from agent.reconcile.apply import Applier, give_back
from agent.reconcile.between_passes import BetweenPasses, MachinePoll, WatchedCgroups
from agent.reconcile.checkpoint import NEEDS_CLAIMS, Checkpoint, Saved, StateDir, as_kept
from agent.reconcile.container_record import FIRST_RETRY_SECONDS
from agent.reconcile.exposure import BootKeeper, Exposure
from agent.reconcile.foreign_writes import ChildCgroups, ForeignWriteLog
from agent.reconcile.memory import bind_created, read_memory
from agent.reconcile.missing_pods import AGAIN_SECONDS
from agent.reconcile.observe import Observer
from agent.reconcile.quota_policy import QuotaKeeper, times_throttled
from agent.reconcile.reserve import ReserveKeeper
from agent.reconcile.restorable import Restorable
from agent.reconcile.result import node_state_of, pass_result, passed_containers
from agent.reconcile.runtime_sync import RuntimeSync
from agent.reconcile.start_cpus import PlannedStarts
from agent.reconcile.verify import POLL_SECONDS, TallyWatch, prove_tasks
from agent.reconcile.vm_targets import observed_targets, planned_targets, run_machines, sandbox_targets
from agent.reconcile.vms import VMKeeper
from pinning.contract import KubeletPolicy
from pinning.machine.cpuset import EMPTY
from pinning.machine.near_rooms import FreeDevices
from pinning.planning.ledger import Ledger
from pinning.planning.observed import State
from pinning.planning.plan import Plan
from pinning.planning.plan import plan as plan_node
from pinning.planning.recover import recover
from pinning.planning.start_table import start_table

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from agent.clock import Clock
    from agent.interfaces import Interfaces, Pausable
    from agent.metrics import Metrics
    from agent.node_state import NodeState, Proof
    from agent.reconcile.agenda import Trigger
    from agent.reconcile.between_passes import MachineWatch
    from agent.reconcile.verify import Sweep
    from pinning.machine.near_rooms import Kinds
    from pinning.planning.actions import Action
    from pinning.planning.node_config import NodeConfig
    from pinning.planning.observed import Observed, Owner

QUOTAS: Final = "quotas.json"
# Policies of the kubelet's topology manager that align CPUs with devices.
ALIGNING: Final = frozenset({"best-effort", "restricted", "single-numa-node"})
TALLIES: Final = "tallies"  # the agenda's key of `TallyWatch.look`, which counts tasks by affinity
# Longest wait for a list of all pods after a start with a ledger, so that the first pass sees edits from the time when no
# agent ran. A list usually takes a tenth of this; a longer one means that the API server is out of reach.
PODS_SECONDS: Final = 2.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Settings:
    """The operator's settings for this node."""

    node: str
    config: NodeConfig
    kubelet_state: Path | None = None  # path of the kubelet's cpu_manager_state
    # the policy at start, if the state file does not name it
    kubelet_policy: KubeletPolicy = KubeletPolicy.UNKNOWN
    memory_policy: KubeletPolicy = KubeletPolicy.UNKNOWN  # policy of the kubelet's Memory Manager at start
    group: str = ""  # node group of the configuration; empty: no group
    topology_manager: str = ""  # policy of the kubelet's topology manager at start; empty: unknown
    keeps_quiet: bool = (
        False  # the component quiet is installed, and the operator has switched a part of it on
    )

    def free_devices(self, kinds: Kinds | None, config: NodeConfig) -> FreeDevices | None:
        """Return the free devices with the kubelet's preference for NUMA nodes; None if they are not known.

        Unless the Memory Manager is known to be off, no preference is assumed: with it the topology manager may choose
        any NUMA node.
        """
        if kinds is None:
            return None
        may_bind_memory = self.memory_policy is not KubeletPolicy.NONE or config.kubelet_binds_memory
        is_lowest_first = self.topology_manager in ALIGNING and not may_bind_memory
        return FreeDevices(kinds, config.near_ignore, is_lowest_first)

    def kubelet_now(self) -> KubeletPolicy:
        """Return the kubelet's CPU policy: from its state file, or as of the agent's start if the file names none."""
        policy = read_kubelet_policy(self.kubelet_state) if self.kubelet_state else KubeletPolicy.UNKNOWN
        return self.kubelet_policy if policy is KubeletPolicy.UNKNOWN else policy

    def leaves_cpusets(self, ledger: Ledger | None) -> bool:
        """Return whether another program allocates the CPUs, so that uninstalling must not change them.

        A static kubelet does not restore a cpuset that was widened. An agent that observes by configuration still
        widens the cpusets of containers to which it assigned CPUs before.
        """
        return self.kubelet_now() is KubeletPolicy.STATIC or (self.config.observe and not ledger)

    def policy_versions(self) -> object:
        """Return a value that changes when the kubelet writes its policies."""
        return versions(self.kubelet_state) if self.kubelet_state else None

    def config_beside(self, kubelet: KubeletPolicy) -> NodeConfig:
        """Return the effective configuration: beside a static CPU policy of the kubelet the agent only observes.

        Beside a static Memory Manager it binds no memory.
        """
        config = replace(self.config, observe=True) if kubelet is KubeletPolicy.STATIC else self.config
        memory = read_memory_policy(self.kubelet_state) if self.kubelet_state else KubeletPolicy.UNKNOWN
        if (self.memory_policy if memory is KubeletPolicy.UNKNOWN else memory) is KubeletPolicy.STATIC:
            return replace(config, kubelet_binds_memory=True)
        return config


class Reconciler:
    """Runs the passes and holds the ledger between them. `pausable` is paused during each."""

    def __init__(
        self,
        interfaces: Interfaces,
        settings: Settings,
        state_dir: StateDir,
        metrics: Metrics,
        clock: Clock,
        trigger: Trigger,
        pausable: Iterable[Pausable] = (),
        machine_watch: MachineWatch | None = None,
    ) -> None:
        self.metrics = metrics
        self._trigger, request_pass = trigger, trigger.request_pass
        self.checkpoint = Checkpoint(state_dir)
        self.vms = VMKeeper(interfaces.vms, clock, trigger)
        self.boots = BootKeeper(interfaces.boots, clock, metrics)
        self.observer = Observer(interfaces, clock, request_pass, self.vms)
        self.tallies = TallyWatch(self.observer, interfaces.cgroups, clock)
        self._interfaces = interfaces
        self._machine_watch = machine_watch
        self._settings = settings
        self._clock = clock
        self._started = self._pass_began = clock.monotonic()
        self._has_begun = False
        self._ledger: Ledger | None = None
        self._reserve = ReserveKeeper()
        saved_quotas = Restorable(state_dir.beside(QUOTAS), interfaces.machine.boot_id())
        self._quotas = QuotaKeeper(interfaces, saved_quotas, keeps_quiet=settings.keeps_quiet)
        self._shared = EMPTY  # CPUs of containers without own CPUs; empty while the agent writes nothing
        self._foreign_writes = ForeignWriteLog(clock, metrics)
        self._children = ChildCgroups(interfaces.cgroups.cpusets)
        self._starts = PlannedStarts(self._foreign_writes)
        self._watched = WatchedCgroups(interfaces, self.observer, self.vms)
        self.between_passes = BetweenPasses(
            interfaces, self.observer, self.vms, clock, self._foreign_writes, self._starts, request_pass
        )
        self.runtime_sync = sync = RuntimeSync(interfaces, self.between_passes.runtime_wrote, trigger.agenda)
        self._pausable: list[Pausable] = [*pausable, self.runtime_sync, self.vms, interfaces.cgroups.watch]
        self._applier = Applier(interfaces, self.observer.sandboxes, sync, clock, metrics, request_pass)
        self._exposure = Exposure(self.between_passes.prestart, self._applier.created_updates, metrics)

    def resume(self, saved: Saved) -> None:
        """Resume from a checkpoint."""
        machine = self._interfaces.machine
        if saved.boot_id == machine.boot_id():
            self.observer.remember(saved.topology)
            self._interfaces.devices.resume(saved.devices)
        self._ledger = as_kept(saved, machine.boot_id(), machine.topology())
        self._reserve.resume(saved, machine, self._settings.config)
        logger.info("checkpoint read", extra={"facts": {"assignments": len(self._ledger)}})

    async def run_pass(self) -> NodeState | None:
        """Run one pass; return the node's state, None if too little is known to act."""
        self.metrics.passes.inc()
        self._pass_began = self._clock.monotonic()
        with ExitStack() as pauses:
            for part in self._pausable:
                pauses.enter_context(part.paused())
            state = await self._run_pass()
        if self.tallies.begins():
            self._trigger.agenda.within(TALLIES, POLL_SECONDS)
        if state:
            self._interfaces.wrappers.passed(state, passed_containers(self.observer.records.values()))
        return state

    def background(
        self, show_proofs: Callable[[Mapping[Owner, Proof]], None], show_wrappers: Callable[[], None]
    ) -> Iterator[Coroutine[object, object, None]]:
        """Add looks to the agenda; yield the background tasks. `show_*` publish new task counts and wrappers at once."""
        agenda = self._trigger.agenda
        request_pass = self._trigger.request_pass
        machine, policies = self._interfaces.machine, self._settings.policy_versions
        yield from MachinePoll(machine, request_pass, policies, self._machine_watch).begun(agenda)
        agenda.add_poll("socket of wrappers", self._interfaces.wrappers.look, 0.0)
        agenda.add(TALLIES, lambda: self.tallies.look(show_proofs))
        agenda.add("missing pods", self.observer.missing_pods.ask_again, AGAIN_SECONDS)
        yield from self.between_passes.watches()
        yield self.runtime_sync.run()
        yield self.boots.run()
        yield self.observer.missing_pods.run()
        yield self._interfaces.devices.run(request_pass)
        yield self._interfaces.wrappers.run(request_pass, show_wrappers)
        yield self._interfaces.claims.run(request_pass)

    def with_wrappers(self, state: NodeState) -> NodeState:
        """Return a state with the wrappers that run now."""
        return self._interfaces.wrappers.shown(state)

    async def _run_pass(self) -> NodeState | None:
        observed = await self.observer.observe()
        self._watched.follow()
        if not self._knows_enough(observed):
            logger.info("waiting for pods and containers", extra={"facts": _completeness(observed)})
            return None
        kubelet = self._settings.kubelet_now()
        config, plan = self._plan(observed, kubelet)
        if not self.observer.is_listed and (plan.actions or plan.ledger != self._ledger):
            # containers are moved, and CPUs freed, only after a full listing
            observed = await self.observer.observe(anew=True)
            self._watched.follow()
            config, plan = self._plan(observed, kubelet)
        self.observer.note_held(self._ledger)
        self._reserve.planned(plan.sets)
        await self._save(plan, observed)
        if not config.observe:  # otherwise another program is expected to write cpusets
            self._foreign_writes.count(self.observer.rewritten)
        undone = await self._act(plan, observed, writes=not config.observe)
        # Before the slow flush: after a power failure, which may lose the checkpoint, each claim is prepared again.
        self._interfaces.claims.passed(plan.ledger, plan.waiting_claims, observes=config.observe)
        self._look_back(observed.known_uids, observes=config.observe)
        self.observer.sandboxes.look_back({action.container_id for action in plan.actions})
        await self.checkpoint.settle()
        self._children.follow(self.observer.rewritten, {} if config.observe else self.observer.records)
        if not config.observe:
            now = self._clock.monotonic()
            self._quotas.follow(self.observer.records.values(), plan.ledger, observed, config.quota, now)
        read_memory(self.observer.records.values(), plan.ledger, self._interfaces.cgroups.cpusets)
        await self._pin_vms(plan, observed, config, undone)
        result = pass_result(observed, plan, self.observer, self._foreign_writes, self.vms.states())
        result = replace(result, table=self._watched.table)
        names = self._settings.node, self._interfaces.runtime.name
        state = node_state_of(result, *names, kubelet, self._watched.start_way, observes=config.observe)
        return replace(
            state,
            group=self._settings.group,
            topology_manager=self._settings.topology_manager,
            free_devices=self._settings.free_devices(self._interfaces.devices.free(), config),
        )

    def _knows_enough(self, observed: Observed) -> bool:
        """Return whether pods and containers are known, or a ledger is and PODS_SECONDS are over; then True for good."""
        is_late = self._clock.monotonic() >= self._started + PODS_SECONDS
        self._has_begun = self._has_begun or observed.is_complete or (is_late and self._ledger is not None)
        return self._has_begun

    def _plan(self, observed: Observed, kubelet: KubeletPolicy) -> tuple[NodeConfig, Plan]:
        config = self._reserve.config(self._settings.config_beside(kubelet), self._ledger, observed)
        if config.observe:
            self.observer.leave_new()
        if self._ledger is None:
            self._ledger = recover(observed, config, reported_cpus(observed.by_age))
            self.metrics.rebuilds.inc()
            logger.info("ledger rebuilt", extra={"facts": {"assignments": len(self._ledger)}})
        with self.metrics.plan_seconds.time():
            return config, plan_node(observed, self._ledger, config)

    async def _save(self, plan: Plan, observed: Observed) -> None:
        """Save the checkpoint with ledger, reserve and devices; must be done before any action."""
        ids = self._interfaces.machine.machine_id(), self._interfaces.machine.boot_id()
        machine = observed.topology, observed.universe
        needs = NEEDS_CLAIMS if plan.ledger.claims else frozenset[str]()
        saved = Saved(*ids, *machine, plan.ledger, plan.sets.reserved, needs, observed.final_devices)
        await self.checkpoint.save(saved)
        self._ledger = plan.ledger

    async def _act(self, plan: Plan, observed: Observed, *, writes: bool) -> frozenset[str]:
        """Apply the plan; return the ids of containers and machines that have not reached their CPUs."""
        before, self._shared = self._shared, (shared := plan.shared if writes else EMPTY)
        run_sets = plan.run_sets if writes else None
        self._starts.planned(run_sets, observed.pods, self.observer.host_classes)
        records, sandboxes = self.observer.records, self.observer.sandboxes
        self.runtime_sync.doubt(self.observer.rewritten)
        self.observer.note_planned(observed, plan)
        self.between_passes.may_gather = writes and observed.is_complete and self._watched.pins_new
        waiting = sandboxes.waiting(self._clock.monotonic())
        left_alone = self._foreign_writes.left_alone(records.values()) | waiting
        table = start_table(plan, observed, self._foreign_writes.in_conflict) if writes else None
        self.boots.follow(observed, plan.ledger, records.values(), sandboxes.threads)
        self.boots.confine((shared & before) or shared)
        self._watched.publish(table)  # after `confine`: new containers may get CPUs that booting machines had
        undone: list[Action] = []
        if plan.actions:
            with self.metrics.apply_seconds.time():
                done = await self._applier.apply(plan.actions, records, left_alone)
            undone += _undone(plan.actions, done, self._applier.created_updates.is_sending)
            if table:
                self._watched.publish(table.waiting_for(undone))
        self.boots.confine(shared)
        if writes:
            bind_created(records.values(), self._applier.created_updates)
        return frozenset(action.container_id for action in undone)

    def _look_back(self, known: Collection[str], *, observes: bool) -> None:
        """Clear errors that need no retry, and record the unpinned time of containers that reached their CPUs.

        An agent that only observes retries no write. The time is recorded once the watch has shown the pod.
        """
        for record in self.observer.records.values():
            is_right = record.is_right
            if record.retry.reason and (is_right or observes or record.seen.state is State.EXITED):
                record.retry.reset()
            if is_right and record.is_running and record.is_awaited and record.owner.pod_uid in known:
                self._exposure.close(record)
        self.runtime_sync.assure(self.observer.records.values())

    async def _pin_vms(
        self, plan: Plan, observed: Observed, config: NodeConfig, undone: Collection[str]
    ) -> None:
        """Pin the threads of virtual machines to their CPUs: by the plan, or by the kubelet while observing."""
        containers, pods = [record.seen for record in self.observer.records.values()], observed.by_age
        written = {action.container_id for action in plan.actions}
        self.vms.containers_written(written | {record.seen.id for record in self.observer.rewritten})
        sandboxes = self.vms.sandboxes
        if config.observe:
            held = await self.observer.held_cpus(run_machines(containers, pods))
            targets = observed_targets(containers, pods, sandboxes.values(), held, config.vm_threads)
        else:
            targets = planned_targets(containers, pods, plan)
            targets |= sandbox_targets(plan, sandboxes, undone)
        await self.vms.follow(targets, observed.topology)

    def retry_seconds(self) -> float | None:
        """Return the seconds until a pass is due: to retry a write, to end a conflict, or to continue a move; or None."""
        now, machines = self._clock.monotonic(), self.observer.sandboxes.records
        # Containers in a virtual machine are retried with it; a retry that was due in the last pass requests no other.
        alone = (it for it in self.observer.records.values() if it.seen.sandbox not in machines)
        retries = [record.retry for record in alone] + [machine.retry for machine in machines.values()]
        waits = [it.not_before - now for it in retries if it.reason and it.not_before > self._pass_began]
        waits += [it for it in (self._foreign_writes.ends(), self._children.continues()) if it is not None]
        return max(FIRST_RETRY_SECONDS, min(waits)) if waits else None

    async def sweep(self, is_wanted_elsewhere: Callable[[], bool], *, only_moved: bool = False) -> Sweep:
        """Compare tasks with their CPUs, until `is_wanted_elsewhere` returns True; count throttled periods.

        With `only_moved`, containers whose tasks were compared with their present CPUs, and found on them, are skipped.
        """
        if not only_moved:
            self._watched.follow_anew()
        cgroups, records = self._interfaces.cgroups, self.observer.records.values()
        self.metrics.show_throttled(times_throttled(records, self._ledger or Ledger(), cgroups.quotas))
        planned = [record for record in records if record.wanted and not (only_moved and record.is_compared)]
        sweep = await prove_tasks(planned, cgroups, self.vms.tasks, is_wanted_elsewhere)
        return sweep._replace(is_news=await self.vms.sweep() or sweep.is_news)

    async def reset(self) -> None:
        """Restore quotas, give every container all CPUs unless another program allocates them, delete the checkpoint."""
        has_quotas = self._quotas.restore_all()
        if self._settings.leaves_cpusets(self._ledger):
            facts = {"kubelet": self._settings.kubelet_now()}
            logger.info("cpusets left as they are", extra={"facts": facts})
            self.checkpoint.remove()
        else:
            await give_back(self.observer, self._applier, self.runtime_sync, self.checkpoint)
        if not has_quotas:
            raise AgentError("not every container got its quota back: see the log, then reset again")


def _undone(
    actions: Sequence[Action], done: Sequence[bool], is_sending: Callable[[str], bool]
) -> Iterator[Action]:
    """Yield the actions that are not done, and those whose update is in flight: the container may start on old CPUs."""
    for action, is_done in zip(actions, done, strict=True):
        if not is_done or is_sending(action.container_id):
            yield action


def _completeness(observed: Observed) -> dict[str, bool]:
    return {"pods": observed.pods_complete, "containers": observed.containers_complete}
