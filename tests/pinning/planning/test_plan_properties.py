"""Random events on a node, in any order: the rules of docs/architecture.md hold after each step."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from pinning.contract import CoreType, NUMAPolicy, PoolUse, SharedPool, SMTPolicy, VMThreadsPolicy
from pinning.errors import BadContract
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.near import Device
from pinning.machine.topology import Topology
from pinning.planning.actions import Action, Kind
from pinning.planning.allocator import cpus_of_type
from pinning.planning.invariants import problems
from pinning.planning.ledger import Ledger
from pinning.planning.ledger_json import ledger_from_dict, ledger_to_dict
from pinning.planning.node_config import NodeConfig, StaticPools
from pinning.planning.node_sets import check_machine
from pinning.planning.observed import Owner, SeenContainer, State
from pinning.planning.plan import Plan, plan
from pinning.planning.start_table import start_table
from tests.pinning.births import check_births
from tests.pinning.wishes import WISHES
from tests.pinning.world import Wish, World
from tests.strategies import topologies

CONFIGS = st.builds(
    NodeConfig,
    sort=st.sampled_from(["packed", "spread"]),
    strict_reserved=st.booleans(),
    system_namespaces=st.sampled_from([(), ("system",)]),
    distribute=st.booleans(),
    align_uncore=st.none() | st.booleans(),
    smt_policy=st.sampled_from(SMTPolicy),
    numa_policy=st.sampled_from(NUMAPolicy),
    core_type=st.sampled_from([CoreType.ANY, *CoreType]),
    vm_threads=st.sampled_from(VMThreadsPolicy),
)


def fits(world: World) -> bool:
    """Return whether the machine has enough cores for the configured pools."""
    try:
        check_machine(world.topology, world.topology.online, world.config)
    except BadContract:
        return False
    return True


def check_converged(world: World) -> None:
    """Check that every container runs on its CPUs in the ledger, and every machine on those of its containers.

    CPUs that a container uses besides its own have no owner, and are not the idle siblings of an owner.
    """
    ledger = world.ledger
    for container in world.live():
        held, pools = ledger.of(container.owner), world.pools(container)
        assert (
            container.sandbox
            or container.cpus == (held.cpus if held else world.unowned(container.owner.pod_uid)) | pools
        )
        assert container.home == world.home(container)
        assert pools.isdisjoint(ledger.exclusive)
    for machine in world.sandboxes.values():
        assert world.is_there(machine)


def check_settled(world: World, planned: Plan) -> None:
    """Check that the ledger follows every rule, and that the plan is valid."""
    assert problems(planned.ledger, world.sets) == ()
    if world.sets.is_strict and world.topology.online - world.sets.reserved:
        assert planned.shared.isdisjoint(world.sets.reserved)
    for held in planned.ledger:
        assert held.cpus <= cpus_of_type(world.topology, held.core_type)
    usable = world.topology.online - (world.sets.reserved if world.sets.is_strict else EMPTY)
    pooled = world.sets.static_exclusive
    assert planned.shared.isdisjoint(pooled) or not usable - pooled
    for at, action in enumerate(planned.actions):
        assert action.cpus
        assert action.cpus <= world.topology.online
        assert all(earlier < at for earlier in action.waits_for)
    again = plan(world.observe(), planned.ledger, world.config)
    assert again.ledger == planned.ledger
    assert again.refusals == planned.refusals


def never_meet(world: World, container: SeenContainer, other: SeenContainer) -> bool:
    """Return whether two containers of one pod never run at the same time; the node may still list both."""
    held, theirs = world.ledger.of(container.owner), world.ledger.of(other.owner)
    return bool(held and theirs and not held.meets(theirs))


ORDERS = st.integers(0, 2**32).map(Random)
STOPS = st.sampled_from([99, 99, 99, 99, 3, 1, 0])  # number of actions after which the agent dies


class Node(RuleBasedStateMachine):
    """Pods are created, edited and deleted, CPUs go offline and online, the agent dies, and actions run in any order."""

    uids = Bundle("uids")

    @initialize(
        topology=topologies(max_cores_per_cache=3), config=CONFIGS, static=st.booleans(), spare=st.booleans()
    )
    def boot(self, topology: Topology, config: NodeConfig, static: bool, spare: bool) -> None:
        """Start with an empty node."""
        assume(len(topology.cores) > 2)
        pools = StaticPools(exclusive_cores=1, shared_cores=1 if spare else 0) if static else None
        config = replace(config, pools=pools)
        self.all_cpus = topology.cpus
        self.world = World(topology, config)
        assume(fits(self.world))
        self.count = 0
        self.meddled = False

    @rule(
        target=uids,
        wishes=st.lists(WISHES, min_size=1, max_size=4),
        kind=st.sampled_from(["pod", "pod", "system", "launcher", "kata", "kata whose vCPUs are told apart"]),
        state=st.sampled_from([State.RUNNING, State.CREATED, None]),
        order=ORDERS,
        stop_after=STOPS,
    )
    def add(self, wishes: list[Wish], kind: str, state: State | None, order: Random, stop_after: int) -> str:
        """Create and start a pod, then plan and act."""
        self.count += 1
        uid, vm = f"u{self.count}", kind == "launcher"
        namespace = "system" if kind == "system" else "test"
        self.world.add(uid, wishes[:1] if vm else wishes, vm=vm, namespace=namespace)
        if kind.startswith("kata"):
            self.world.boot(uid, has_known_vcpus=kind != "kata")
        if state:
            self.start_or_restart(uid, state)
        self.plan_and_act(order, stop_after)
        return uid

    @rule(uid=uids, wishes=st.lists(WISHES, min_size=1, max_size=4), order=ORDERS, stop_after=STOPS)
    def edit(self, uid: str, wishes: list[Wish], order: Random, stop_after: int) -> None:
        """Edit annotations and amounts of a pod; its containers and their roles stay."""
        document = self.world.documents.get(uid)
        if document is None:
            return
        before, vm = document["metadata"]["creationTimestamp"], bool(document["metadata"]["labels"])
        namespace = document["metadata"]["namespace"]
        places = [*document["spec"]["initContainers"], *document["spec"]["containers"]]
        roles = {
            container["name"]: container.get("restartPolicy", "")
            for container in document["spec"]["initContainers"]
        }
        kinds = [roles.get(name) for name in sorted(container["name"] for container in places)]
        new = [replace(wishes[at % len(wishes)], init=kind) for at, kind in enumerate(kinds)]
        self.world.add(uid, new, vm=vm, namespace=namespace)
        self.world.documents[uid]["metadata"]["creationTimestamp"] = before
        self.plan_and_act(order, stop_after)

    @rule(
        uid=uids,
        told=st.lists(st.sets(st.sampled_from([0, 1, 2, 8, 99]), max_size=2), max_size=3),
        order=ORDERS,
        stop_after=STOPS,
    )
    def tell_devices(self, uid: str, told: list[set[int]], order: Random, stop_after: int) -> None:
        """Add devices to a pod's first container, before or after its CPUs were chosen."""
        self.world.devices[Owner(uid, "c0")] = tuple(Device("gpu", CPUSet(nodes)) for nodes in told)
        self.plan_and_act(order, stop_after)

    @rule(uid=uids, state=st.sampled_from(State), starts_at_home=st.booleans())
    def start_or_restart(self, uid: str, state: State, starts_at_home: bool = False) -> None:
        """Start or restart all containers of a pod except its ordinary init containers."""
        document = self.world.documents.get(uid)
        if document is None:
            return
        for container in self.world.live():
            if container.owner.pod_uid == uid:
                self.world.stop(container.id)
        inits = document["spec"]["initContainers"]
        sidecars = [container for container in inits if container.get("restartPolicy")]
        for container in sidecars + document["spec"]["containers"]:
            self.world.start(uid, container["name"], state, starts_at_home=starts_at_home)

    @rule(
        uid=uids,
        name=st.sampled_from(["c0", "c1"]),
        pool=st.sampled_from(SharedPool),
        socket=st.sampled_from([None, 0, 1]),
        order=ORDERS,
        stop_after=STOPS,
    )
    def wrap(
        self, uid: str, name: str, pool: SharedPool, socket: int | None, order: Random, stop_after: int
    ) -> None:
        """Let a container run a command under `cmk isolate`, with a pool, from now on."""
        owner = Owner(uid, name)
        self.world.uses[owner] = self.world.uses.get(owner, frozenset()) | {PoolUse(pool, socket)}
        self.plan_and_act(order, stop_after)

    @rule(uid=consumes(uids), live_on=st.booleans())
    def remove(self, uid: str, live_on: bool) -> None:
        """Delete a pod from the API; with `force` before its containers have ended."""
        self.world.documents.pop(uid, None)
        for container in self.world.live():
            if container.owner.pod_uid == uid and not live_on:
                self.world.stop(container.id)
        if not live_on:
            self.world.halt(uid)

    @rule(pick=st.integers(0, 30), bits=st.integers(1, 2**40))
    def meddle(self, pick: int, bits: int) -> None:
        """Write a container's cpuset like a foreign program; owners may then share their CPUs."""
        live = self.world.live()
        cpus = CPUSet(cpu for at, cpu in enumerate(self.world.topology.online) if bits >> at & 1)
        if live and cpus:
            self.world.meddle(live[pick % len(live)], cpus)
            self.meddled = True

    @rule(pick=st.integers(0, 30))
    def end_some_container(self, pick: int) -> None:
        """End a container."""
        live = self.world.live()
        if live:
            self.world.stop(live[pick % len(live)].id)

    @rule(bits=st.integers(0, 2**40), order=ORDERS, stop_after=STOPS)
    def flip_cpus(self, bits: int, order: Random, stop_after: int) -> None:
        """Take CPUs offline and others online; at least one stays online."""
        off = CPUSet(cpu for at, cpu in enumerate(self.all_cpus) if bits >> at & 1)
        self.world.set_online((self.all_cpus - off) or self.all_cpus)
        self.plan_and_act(order, stop_after)

    @rule(pick=st.integers(0, 60))
    def flip_cpu(self, pick: int) -> None:
        """Take one CPU offline or online."""
        cpu = CPUSet([list(self.all_cpus)[pick % len(self.all_cpus)]])
        online = self.world.topology.online
        online = online - cpu if cpu <= online else online | cpu
        self.world.set_online(online or self.all_cpus)

    @rule()
    def kill_the_agent(self) -> None:
        """Restart the agent from its checkpoint."""
        self.world.ledger = ledger_from_dict(ledger_to_dict(self.world.ledger))

    @rule()
    def lose_or_find_the_api(self) -> None:
        """Make the API server unreachable, or reachable again."""
        self.world.api_answers = not self.world.api_answers

    @rule(order=ORDERS, stop_after=STOPS)
    def plan_and_act(self, order: Random, stop_after: int) -> None:
        """Plan and act, in any order that the dependencies allow; the agent may die in between."""
        before = self.world.ledger
        planned = self.world.plan()
        check_settled(self.world, planned)
        done: set[int] = set()
        table = start_table(planned, self.world.observe())
        check_births(self.world, table, before)
        while len(done) < min(len(planned.actions), stop_after):
            ready = [
                at
                for at, action in enumerate(planned.actions)
                if at not in done and set(action.waits_for) <= done
            ]
            at = order.choice(ready)
            if not self.meddled:
                self.check_instant(planned.actions[at], before)
            self.world.write(planned.actions[at])
            done.add(at)
            undone = [action for at, action in enumerate(planned.actions) if at not in done]
            check_births(self.world, table.waiting_for(undone), before)
        if len(done) == len(planned.actions):
            self.meddled = False
            again = self.world.plan()
            assert not again.actions
            assert again.ledger == planned.ledger
            assert again.refusals == planned.refusals
            check_converged(self.world)

    def check_instant(self, action: Action, before: Ledger) -> None:
        """Check that an action moves no container onto an owner's CPUs on which it did not run before."""
        movers = [seen for seen in self.world.present() if action.container_id in (seen.id, seen.sandbox)]
        gains = action.cpus - movers[0].cpus
        now = self.world.ledger
        held = [mine for mover in movers if (mine := now.of(mover.owner)) and mine.is_exclusive]
        is_pinned = movers[0].state is State.RUNNING or bool(action.threads)
        for other in self.world.present():
            if other in movers or any(never_meet(self.world, mover, other) for mover in movers):
                continue
            theirs = now.of(other.owner)
            if theirs and theirs.is_exclusive:  # a container without CPUs of its own shares CPUs
                left = before.of(other.owner) or theirs
                machine = self.world.sandboxes.get(other.sandbox)
                vcpus = machine.vcpus if machine else EMPTY
                tasks = other.home or vcpus or other.cpus  # a pool may still have CPUs that it owned before
                assert gains.isdisjoint((other.cpus & theirs.footprint) | (tasks & left.footprint))
            for mine in held:
                assert other.cpus.isdisjoint(gains & mine.footprint)
                if action.kind is Kind.GRANT and is_pinned:
                    assert mine.footprint.isdisjoint(other.cpus)

    @invariant()
    def nothing_is_lost(self) -> None:
        """Check that a checkpoint is equal after it was written and read."""
        assert ledger_from_dict(ledger_to_dict(self.world.ledger)) == self.world.ledger


Node.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestNode = Node.TestCase
TestNode.__doc__ = "Any sequence of events keeps every rule."
