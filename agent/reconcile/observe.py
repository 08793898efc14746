"""Observation of the node: machine, pods, containers, and what the kernel lets each container use."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from agent.errors import AgentError, Gone, Refused, Unavailable
from agent.node_state import Path
from agent.plain_pods import ParsedPods, is_plain, keeps_cpus
from agent.reconcile.container_record import ContainerRecord
from agent.reconcile.missing_pods import MissingPodLookup
from agent.reconcile.sandboxes import Sandboxes
from agent.reconcile.vm_targets import host_classes
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.observed import Observed, SeenContainer, State
from pinning.planning.pod_pools import mems_of, part_of
from pinning.pods.identity import by_runtime_uid, runtime_uid

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from agent.clock import Clock
    from agent.interfaces import Devices, HeldCPUs, Interfaces, RuntimeContainer
    from agent.reconcile.vms import VMKeeper
    from pinning.machine.topology import Topology
    from pinning.planning.ledger import Ledger
    from pinning.planning.observed import Owner, SeenPod
    from pinning.planning.plan import Plan
    from pinning.pods.types import Pod

AT_ONCE: Final = 64  # containers read between two yields to the event loop: about 2 ms

logger = logging.getLogger(__name__)


def _shown(observed: Observed, devices: Devices) -> Observed:
    """Return the observation with the known devices of containers added."""
    return replace(
        observed,
        devices=devices.known(),
        devices_unknown=devices.unknown(),
        device_times=devices.times,
        looks_up_claims=devices.looks_up_claims,
    )


class Observer:
    """Observes the node for each pass, and keeps the container records. Only changed pods are parsed again."""

    def __init__(
        self, interfaces: Interfaces, clock: Clock, request_pass: Callable[[], None], vms: VMKeeper
    ) -> None:
        self.missing_pods = MissingPodLookup(interfaces.pods, request_pass)
        self.records: dict[str, ContainerRecord] = {}
        self.sandboxes = Sandboxes(vms, clock)
        self._vms = vms
        self.runtime_reason = ""  # why the runtime did not list its containers last time
        self.rewritten: list[ContainerRecord] = []  # containers with a foreign write that this pass has found
        self.is_listed = True  # the containers come from a list; False: they come from events
        self._interfaces = interfaces
        self._clock = clock
        self._pods: dict[str, tuple[Pod, SeenPod]] = {}
        self._parsed = ParsedPods()
        self._topology: Topology | None = None
        self._universe: CPUSet = EMPTY
        self._has_listed = False
        self._holders: Collection[str] = ()  # uids of the pods that hold CPUs by the last plan
        self.host_classes: frozenset[str] = frozenset()  # runtime classes whose last pods ran on the host
        self._lists_next = False  # the next observation lists the containers: its pass likely moves some

    def remember(self, topology: Topology) -> None:
        """Add the CPUs that were known before a restart, and may be offline now."""
        self._topology = topology

    def leave_new(self) -> None:
        """Do not widen the tasks of new containers, because the agent only observes."""
        for record in self.records.values():
            record.looked_at()

    def list_next(self) -> None:
        """List the containers with the next observation, because a pass moves containers only after a listing."""
        self._lists_next = True

    async def observe(self, *, anew: bool = False) -> Observed:
        """Return the current state of the node; `anew` lists the containers even if events kept them up to date."""
        topology, universe = self._machine()
        complete = await self._list(anew=anew or self._lists_next)
        self.rewritten = self.rewritten if anew else []
        containers = await self._read_all(moved=universe != self._universe)
        self._universe = universe
        pods = self._read_pods(self.missing_pods.completed(self._interfaces.pods.pods()))
        self.host_classes = host_classes(self.host_classes, pods, self.records.values())
        live = {seen.owner.pod_uid for seen in containers if seen.is_live}
        observed = Observed(
            topology=topology,
            universe=universe,
            pods=pods,
            containers=containers,
            sandboxes=self.sandboxes.seen(self.records.values()),
            pods_complete=self._interfaces.pods.complete,
            containers_complete=complete,
            holds_starts=self._interfaces.container_watch.start_way.path is Path.NRI,
            uses=self._interfaces.wrappers.uses(),
            claims=self._interfaces.claims.seen(pods, live),
        )
        if observed.pods_complete and complete:
            self._look_up_unknown(observed)
        return self._with_devices(observed)

    def _with_devices(self, observed: Observed) -> Observed:
        """Pass the observation to the device lookup, and return it with the known devices of containers."""
        devices = self._interfaces.devices
        seen = (record.seen for record in self.records.values())
        devices.follow(observed, {it.pod_uid: (it.namespace, it.pod) for it in seen})
        return _shown(observed, devices)

    def is_plain(self, pod_uid: str) -> bool:
        """Return whether a pod has no claim and no CPUs, by the last observation or else as the watch shows it."""
        shown = self._interfaces.pods.pods().get(pod_uid)
        known = self._pods.get(pod_uid) or ((shown, self.seen_pod(shown)) if shown else None)
        return known is not None and is_plain(*known) and pod_uid not in self._holders

    def seen_pod(self, pod: Pod) -> SeenPod:
        """Return the parsed pod, from the cache if it has this version."""
        return self._parsed.read(runtime_uid(pod), pod)

    def keeps_cpus(self, pod_uid: str) -> bool:
        """Return whether this pod keeps its CPUs when one of its containers exits, by the last observation.

        Return False if the watch has shown since then that the pod was deleted.
        """
        known = self._pods.get(pod_uid)
        return known is not None and keeps_cpus(known[1]) and pod_uid in self._interfaces.pods.pods()

    def lives(self, pod_uid: str, exited: Collection[str]) -> bool:
        """Return whether a container of this pod, except those in `exited`, was alive in the last observation."""
        live = (it for it in self.records.values() if it.seen.state is not State.EXITED)
        return any(it.owner.pod_uid == pod_uid and it.seen.id not in exited for it in live)

    def runs_no_machine(self, pod_uid: str) -> bool:
        """Return whether no virtual machine runs in this pod, by the last observation or because the pod is plain."""
        known = self._pods.get(pod_uid)
        if known is None:  # not observed yet, because the pass for a new plain pod is delayed
            return self.is_plain(pod_uid)
        return not (known[1].is_vm or self._may_be_in_vm(known[1]))

    def _may_be_in_vm(self, pod: SeenPod) -> bool:
        return bool(pod.runtime_class) and pod.runtime_class not in self.host_classes

    def holds(self, pod_uid: str) -> bool:
        """Return whether a pod held CPUs after the last plan."""
        return pod_uid in self._holders

    def shown_pods(self) -> Collection[Pod]:
        """Return the pods that the watch shows now."""
        return self._interfaces.pods.pods().values()

    def note_held(self, ledger: Ledger | None) -> None:
        """Record each container's own CPUs by the last ledger, before a new plan changes them."""
        for record in self.records.values():
            if ledger and (part := part_of(ledger, record.owner)):
                record.held(part.cpus)

    def note_planned(self, observed: Observed, plan: Plan) -> None:
        """Record each container's planned CPUs."""
        run_sets, self._holders = plan.run_sets, plan.ledger.uids
        for seen in observed.containers:
            threads, part = plan.sandboxes.get(seen.sandbox), run_sets.part(seen.owner)
            run_set, mems = run_sets.of_seen(seen), mems_of(plan.ledger, seen.owner) if part else EMPTY
            cpus, home = (threads.cpus, EMPTY) if threads else (run_set.cpus, run_set.home)
            self.records[seen.id].planned(cpus, mems, home, is_owner=bool(part))

    async def held_cpus(self, ids: Collection[str]) -> Mapping[Owner, HeldCPUs]:
        """Return the CPUs that another program allocated to those of these containers that run."""
        records = [self.records[key] for key in ids if self.records[key].is_running]
        if not records:
            return {}
        running = [(record, record.applied if record.cgroup else EMPTY) for record in records]
        return await self._interfaces.observed_cpus.read([(record.seen, cpus) for record, cpus in running])

    def _look_up_unknown(self, observed: Observed) -> None:
        """Request the pods of live containers by name if the watch has not shown them."""
        known = {pod.uid for pod in observed.pods}
        listed = {record.seen.pod_uid: record.seen for record in self.records.values()}
        live = observed.live_uids - known
        self.missing_pods.want({uid: (listed[uid].namespace, listed[uid].pod) for uid in live}, listed.keys())

    def _machine(self) -> tuple[Topology, CPUSet]:
        topology = self._interfaces.machine.topology()
        if self._topology:
            topology = topology.remembering(self._topology)
        self._topology = topology
        return topology, self._interfaces.machine.universe(topology)

    async def _list(self, *, anew: bool) -> bool:
        """Update the records from the runtime's list; return whether it answered."""
        runtime = self._interfaces.runtime
        try:
            known = None if anew else await runtime.known_containers()
            listed = await runtime.containers() if known is None else known
        except Unavailable as error:
            self.runtime_reason = str(error)
            logger.warning("runtime does not answer", extra={"facts": {"reason": self.runtime_reason}})
            return False
        self.is_listed, self.runtime_reason = known is None, ""
        self._lists_next = False
        self.records = {container.id: self._record(container) for container in listed}
        self._vms.listed(self._interfaces.runtime.sandboxes())
        self._has_listed = True
        return True

    def _record(self, container: RuntimeContainer) -> ContainerRecord:
        record = self.records.get(container.id)
        if record is None:
            is_new = self._has_listed or container.state is State.CREATED
            record = ContainerRecord(container, is_awaited=self._has_listed, is_new=is_new)
            if born := self._interfaces.container_watch.started(container.id):
                record.was_born(born)
            return record
        record.listed(container)
        return record

    async def _read_all(self, *, moved: bool) -> tuple[SeenContainer, ...]:
        await self.sandboxes.read()
        seen, puts_home = [], self._interfaces.container_watch.puts_home
        for number, (key, record) in enumerate(self.records.items(), 1):
            state, cpus = self._read(record, moved=moved)
            is_created = state is State.CREATED
            seen.append(
                SeenContainer(
                    key,
                    record.owner,
                    state,
                    cpus,
                    record.seen.sandbox,
                    home=record.split_home,
                    namespace=record.seen.namespace,
                    starts_at_home=is_created and bool(record.born) and puts_home,
                    is_divisible=record.cgroup is not None,
                    pod_sandbox=record.seen.pod_sandbox,
                )
            )
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        return tuple(seen)

    def _read(self, record: ContainerRecord, *, moved: bool) -> tuple[State, CPUSet]:
        state = record.seen.state
        if state is not State.EXITED and (threads := self.sandboxes.cpus(record.seen.sandbox)):
            self._note(record, threads)
            return state, threads
        if state is State.EXITED or record.cgroup is None:
            return state, record.sent
        try:
            cpus = self._interfaces.cgroups.cpusets.read(record.cgroup)
        except Gone:  # the cgroup does not exist yet, or no longer exists
            # a cgroup that was never read may be in a guest
            has_ended = state is State.RUNNING and record.proof
            return (State.EXITED, EMPTY) if has_ended else (state, record.sent)
        except (Refused, Unavailable) as error:
            facts = {"container": record.name, "reason": str(error)}
            logger.warning("cgroup cannot be read", extra={"facts": facts})
            return state, EMPTY
        if state is State.CREATED and self._has_begun(record.cgroup):
            state = State.RUNNING
            record.listed(replace(record.seen, state=state))
        elif state is State.CREATED and record.born and cpus not in (record.born, record.applied):
            return state, record.sent  # the cgroup exists, and the runtime has not filled it yet
        self._compare(record, cpus, moved=moved)
        return state, cpus

    def _has_begun(self, cgroup: str) -> bool:
        """Return whether a container has started, even if the runtime does not report it yet."""
        try:
            return self._interfaces.cgroups.tasks.start_state(cgroup).has_begun
        except AgentError:
            return False

    def _compare(self, record: ContainerRecord, cpus: CPUSet, *, moved: bool) -> None:
        """Record a container's cpuset; a change without hotplug (`moved`) is a foreign write."""
        if record.applied and cpus != record.applied and not moved:
            self.rewritten.append(record)
        self._note(record, cpus)

    def _note(self, record: ContainerRecord, cpus: CPUSet) -> None:
        if cpus != record.applied or record.proof is None:
            record.found(cpus, self._clock.text())

    def _read_pods(self, pods: Mapping[str, Pod]) -> tuple[SeenPod, ...]:
        """Parse the pods that are new or whose object changed."""
        seen = (record.seen for record in self.records.values())
        names = {container.pod_uid: (container.namespace, container.pod) for container in seen}
        there = by_runtime_uid(pods.values(), names)
        self._pods = {uid: (pod, self._parsed.read(uid, pod)) for uid, pod in there.items()}
        self._parsed.keep(there)
        return tuple(seen for _, seen in self._pods.values())
