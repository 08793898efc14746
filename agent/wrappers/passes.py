"""Exchange between wrappers and reconcile passes: pools to plan, a view of the node after a pass, waits for the next."""

from __future__ import annotations

import asyncio
import time
from functools import cached_property
from typing import TYPE_CHECKING, Final

from agent.token_bucket import TokenBucket
from agent.wrappers.peer import CgroupIndex
from agent.wrappers.protocol import Denied, Pool
from agent.wrappers.registry import OwnCore
from pinning.cmk.pools import Task, cpu_lists
from pinning.contract import (
    CMK_CPUS_ASSIGNED,
    CMK_CPUS_ASSIGNED_MASK,
    CMK_CPUS_INFRA,
    CMK_CPUS_SHARED,
    PoolUse,
    SharedPool,
)
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.run_sets import asked

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from agent.interfaces import PassedContainer
    from agent.node_state import NodeState
    from agent.wrappers.protocol import Want
    from agent.wrappers.registry import Claim as RegisteredClaim
    from pinning.planning.observed import Owner
    from pinning.pods.claims import Claim

AGAIN_SECONDS: Final = 1.0  # seconds until a waiter requests another pass
# Passes that waiters may request at once, and seconds for each further one. A pass serves all waiters, so that a
# container whose requests all need one delays the others' at most by this.
PASSES_AT_ONCE: Final = 8
PASS_SECONDS: Final = 0.1
Uses = dict[str, tuple["Owner", frozenset["PoolUse"]]]  # owner and used pools, by container id


def uses_of(want: Want, *, is_owner: bool, is_strict: bool) -> frozenset[PoolUse]:
    """Return the pools that a wrapper's container must reach besides its own cores; raise Denied.

    A container that owns CPUs gets both pools, as CMK's environment lists them; with `is_strict` it gets none.
    """
    if is_owner and is_strict:
        if not want.pool.resource:
            raise Denied(_strict(want.pool))
        return frozenset()
    if is_owner:
        return frozenset({PoolUse(SharedPool.SHARED), PoolUse(SharedPool.INFRA)})
    return frozenset({shared_use(want)})


def shared_use(want: Want) -> PoolUse:
    """Return the shared pool of a request, with the socket it asks for."""
    return PoolUse(SharedPool.SHARED, want.socket) if want.pool is Pool.SHARED else PoolUse(SharedPool.INFRA)


def _strict(pool: Pool) -> str:
    return (
        f"Pool {pool} is not for a container with cores of its own: this node keeps such a container on them alone"
        " (strictThreads); ask from a container without exclusive cores, or let the operator set strictThreads to false"
    )


class ContainerUses:
    """The pools of each container, from its first wrapper until it ends.

    A container keeps its pools between wrappers, so that its cpuset does not change with each command.
    """

    def __init__(self, kept: Mapping[str, tuple[Owner, frozenset[PoolUse]]]) -> None:
        self.wanted: Uses = dict(kept)
        self._asked: Uses = {}
        self._planned: Uses = {}

    def add(self, container_id: str, owner: Owner, uses: frozenset[PoolUse]) -> bool:
        """Add pools to a container; return whether any is new."""
        _, before = self.wanted.get(container_id, (owner, frozenset()))
        if uses <= before:
            return False
        self.wanted[container_id] = owner, before | uses
        return True

    def asked(self) -> Mapping[Owner, frozenset[PoolUse]]:
        """Return the pools that a starting pass must plan."""
        self._asked = dict(self.wanted)
        found: dict[Owner, frozenset[PoolUse]] = {}
        for owner, uses in self._asked.values():
            found[owner] = found.get(owner, frozenset()) | uses
        return found

    def passed(self) -> None:
        """Record that a pass has planned the pools that it got from `asked`."""
        self._planned = self._asked

    def are_planned(self, container_id: str) -> bool:
        """Return whether the last pass had planned all pools of a container."""
        return self._planned.get(container_id) == self.wanted.get(container_id)

    def keep(self, containers: Collection[str]) -> None:
        """Keep the uses of these containers, and forget those of all others."""
        self.wanted = {key: value for key, value in self.wanted.items() if key in containers}


class NodeView:
    """Containers, pools and cgroups of the node after one pass."""

    def __init__(self, state: NodeState, containers: Iterable[PassedContainer]) -> None:
        self.state = state
        self.containers: Mapping[str, PassedContainer] = {each.id: each for each in containers}
        self._shared, self._set_aside = state.shared, state.sets.pools.set_aside
        self._topology = state.topology
        self._usable = state.sets.universe
        # computed once, because thousands of processes may share a pool
        self._pools: dict[PoolUse, CPUSet] = {}
        self._lists: dict[tuple[str, CPUSet], tuple[str, ...]] = {}

    @cached_property
    def cgroups(self) -> CgroupIndex:
        """The cgroups of the node's containers."""
        return CgroupIndex({each.cgroup: each.id for each in self.containers.values() if each.cgroup})

    @cached_property
    def _claims(self) -> Mapping[tuple[str, str], Claim]:
        return {(pod.uid, claim.container): claim for pod in self.state.seen_pods for claim in pod.claims}

    @cached_property
    def _pods(self) -> frozenset[str]:
        return frozenset(pod.uid for pod in self.state.seen_pods)

    def held(self, owner: Owner) -> CPUSet:
        """Return the CPUs that a container owns exclusively, online or not."""
        held = self.state.ledger.of(owner)
        return held.cpus if held and held.is_exclusive else EMPTY

    def owned(self, owner: Owner) -> CPUSet:
        """Return the CPUs that a container owns exclusively and that the agent may assign now."""
        return self.held(owner) & self._usable

    def own_cores(self, owner: Owner, resource: str) -> tuple[OwnCore, ...]:
        """Return the cores that a container got for a resource, in CMK's order: by socket, then by number."""
        held = self.state.ledger.of(owner)
        cpus = self.owned(owner)
        if held is None or held.claim.resource != resource:
            return ()
        cores = (OwnCore(core.package, core.cpus & cpus) for core in self._topology.cores_of(cpus))
        return tuple(sorted(cores, key=lambda core: (core.package, core.cpus.lowest())))

    def is_due(self, owner: Owner, resource: str) -> bool:
        """Return whether a later pass may give a container cores of a resource: it claims them or is not known yet."""
        claim = self._claims.get(owner)
        return owner.pod_uid not in self._pods or (claim is not None and claim.resource == resource)

    def refusal(self, owner: Owner) -> str:
        """Return why a container got no CPUs; empty if unknown."""
        return next((each.text for each in self.state.refusals if each.owner in (owner, (owner[0], ""))), "")

    @property
    def pool_sources(self) -> tuple[object, ...]:
        """What the CPUs of pools depend on."""
        return self._topology, self._usable, self._shared, self._set_aside

    def pool(self, use: PoolUse) -> CPUSet:
        """Return the CPUs of a pool that are online; empty if none is."""
        cpus = self._pools.get(use)
        if cpus is None:
            cpus = self._pools[use] = self._online(use)
        return cpus

    def _online(self, use: PoolUse) -> CPUSet:
        if use.pool is SharedPool.INFRA:
            return self._shared & self._usable
        pools = (
            self._within(self._set_aside, use.socket),
            self._within(self._shared, use.socket),
            self._shared,
        )
        return next((pool & self._usable for pool in pools if pool & self._usable), EMPTY)

    def lists(self, pool: str, cpus: CPUSet) -> tuple[str, ...]:
        """Return the CPU lists of a pool that contain these CPUs."""
        lists = self._lists.get((pool, cpus))
        if lists is None:
            lists = self._lists[pool, cpus] = cpu_lists(pool, cpus, self._topology)
        return lists

    def check_pool(self, use: PoolUse) -> None:
        """Raise Denied for a pool without CPUs."""
        if not self.pool(use):
            raise Denied(f"No cpu lists in pool {use.pool}: none of its CPUs is online")

    def _within(self, cpus: CPUSet, socket: int | None) -> CPUSet:
        return cpus if socket is None else cpus & self._topology.packages.get(socket, EMPTY)

    def check_socket(self, want: Want) -> None:
        """Raise Denied for a socket that the node does not have."""
        sockets = self._topology.packages
        if want.socket is not None and want.socket not in sockets:
            known = ", ".join(map(str, sockets))
            raise Denied(f"Requested socket {want.socket} does not exist: this node has {known}")

    def environment(self, cpus: CPUSet, within: CPUSet | None = None) -> dict[str, str]:
        """Return CMK's environment variables for a command on `cpus`, with pools limited to `within` if it is given."""
        shared, infra = (self.pool(PoolUse(pool)) for pool in (SharedPool.SHARED, SharedPool.INFRA))
        if within is not None:
            shared, infra = shared & within, infra & within
        return {
            CMK_CPUS_ASSIGNED: self._listed(cpus),
            CMK_CPUS_ASSIGNED_MASK: cpus.to_hex(),
            CMK_CPUS_SHARED: self._listed(shared),
            CMK_CPUS_INFRA: self._listed(infra),
        }

    def reach(self, owner: Owner, use: PoolUse) -> CPUSet:
        """Return the CPUs that a container's tasks may use under strict threads if a wrapper requests this pool."""
        held = self.state.ledger.of(owner)
        if held and held.is_exclusive:
            return held.cpus | (self._shared if asked(held) else EMPTY)
        return (held.cpus if held else self._shared) | self.pool(use)

    def _listed(self, cpus: CPUSet) -> str:
        """Return the CPUs as a comma-separated list, core by core with siblings, one socket after the other."""
        cores = sorted(self._topology.cores_of(cpus), key=lambda core: (core.package, core.id))
        return ",".join(str(cpu) for core in cores for cpu in core.cpus & cpus)


def tasks_of(claim: RegisteredClaim, pool: Callable[[PoolUse], CPUSet]) -> tuple[Task, ...]:
    """Return a claim's tasks, each with its pool and CPUs; two for nested wrappers, one of which is in a pool."""
    pid, name = claim.process.pid, claim.holder.name
    return tuple(
        Task(pid, name, each.want.pool, each.cpus or pool(shared_use(each.want))) for each in claim.all
    )


class PassWaiter:
    """Requests reconcile passes and wakes waiters after each."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.request: Callable[[], None] = lambda: None
        self._clock = clock
        self._bucket = TokenBucket(PASSES_AT_ONCE, PASS_SECONDS)
        self._due: asyncio.TimerHandle | None = None  # the next request that the rate limit allows
        self._ended = asyncio.Event()
        self._shared: dict[str, asyncio.Task[bool]] = {}

    def ended(self) -> None:
        """Wake all waiters after a pass."""
        self._ended.set()
        self._ended = asyncio.Event()

    async def until(self, is_true: Callable[[], bool], seconds: float) -> bool:
        """Request passes until one makes a condition true; return False if none does within `seconds`."""
        if is_true():
            return True
        self._ask()
        try:
            async with asyncio.timeout(seconds):
                while not is_true():
                    await self._one_more()
        except TimeoutError:
            return is_true()
        return True

    async def until_shared(self, key: str, is_true: Callable[[], bool], seconds: float) -> bool:
        """Wait like `until`, with one waiter for all callers of a key; the seconds start with the first caller."""
        if is_true():
            return True
        waiting = self._shared.get(key)
        if waiting is None:
            waiting = self._shared[key] = asyncio.create_task(self.until(is_true, seconds))
            waiting.add_done_callback(lambda _: self._shared.pop(key))
        return await asyncio.shield(waiting)  # a caller that disconnects must not cancel the others' wait

    async def _one_more(self) -> None:
        """Wait until any pass ends, also one that is running already; request another after each AGAIN_SECONDS."""
        ended = self._ended
        while not ended.is_set():
            try:
                async with asyncio.timeout(AGAIN_SECONDS):
                    await ended.wait()
            except TimeoutError:
                self._ask()

    def _ask(self) -> None:
        """Request a pass, as soon as the rate limit allows one."""
        if self._due:
            return
        wait = self._bucket.wait(self._clock())
        if wait > 0:
            self._due = asyncio.get_running_loop().call_later(wait, self._ask_now)
        else:
            self._ask_now()

    def _ask_now(self) -> None:
        self._due = None
        self._bucket.spend(self._clock())
        self.request()
