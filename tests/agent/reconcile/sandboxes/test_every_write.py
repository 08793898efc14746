"""Invariants after every kernel write, under random events of pods with and without virtual machines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from pinning.contract import VMThreadsPolicy
from pinning.machine.cpuset import EMPTY, CPUSet, union
from pinning.planning.ledger import Assignment, Ledger
from pinning.planning.node_config import NodeConfig
from pinning.planning.observed import State
from tests.agent.fake_watch import FakeWatch
from tests.agent.fakes import FakeNode
from tests.agent.reconcile.sandboxes.kata import KataMachine
from tests.pinning.world import Wish

WISHES = st.sampled_from(
    [
        Wish("2", policy="exclusive"),
        Wish("1", policy="exclusive"),
        Wish("1", policy="exclusive", smt="isolate"),
        Wish("1", policy="share"),
        Wish(),
    ]
)
KINDS = st.fixed_dictionaries(
    {"has_quota": st.booleans(), "has_known_vcpus": st.booleans(), "vcpus": st.sampled_from([1, 2, 3, 4])}
)
ADDED = st.tuples(st.just("add"), st.lists(WISHES, min_size=1, max_size=3), st.none() | KINDS)
EVENTS = st.one_of(
    ADDED,
    st.tuples(st.just("edit"), st.integers(0, 5), st.lists(WISHES, min_size=3, max_size=3)),
    st.tuples(st.sampled_from(["stop", "remove", "restart", "delete"]), st.integers(0, 8), st.none()),
    st.tuples(st.just("pass"), st.none(), st.none()),
)


class Life:
    """A node to which random events happen, with or without a pass after each."""

    def __init__(self, folder: Path, *, forgets: bool, threads: VMThreadsPolicy) -> None:
        self.node = FakeNode(folder, config=NodeConfig(vm_threads=threads))
        self.watch = FakeWatch(self.node, holds=False)
        self.watch.published = self.keep
        self.node.container_watch = self.watch
        self.node.check = self.check  # type: ignore[method-assign]
        self.node.new_agent()
        self.forgets = forgets
        self.ledger = Ledger()
        # CPUs owned both before and after this pass, on which no other container runs
        self.kept: list[tuple[Assignment, CPUSet]] = []
        self.start: dict[str, CPUSet] = {}  # CPUs of cgroups and machines before the first write of this pass
        self.pods: dict[str, int] = {}  # number of containers by uid

    def play(self, event: tuple[str, object, object]) -> None:
        """Apply one event."""
        kind, first, second = event
        if kind == "add":
            self.add(first, second)
        elif kind == "edit" and self.pods:
            uid = list(self.pods)[int(str(first)) % len(self.pods)]
            wishes: list[Wish] = second  # type: ignore[assignment]
            self.node.add(uid, *wishes[: self.pods[uid]])
        elif kind == "delete" and self.pods:
            self.delete(list(self.pods)[int(str(first)) % len(self.pods)])
        elif kind == "pass":
            self.settle()
        elif kind in {"stop", "remove", "restart"} and self.node.containers:
            self.end(kind, list(self.node.containers)[int(str(first)) % len(self.node.containers)])

    def add(self, wishes, facts) -> None:  # type: ignore[no-untyped-def]
        """Start a pod, in a virtual machine if facts of one are given."""
        uid = f"u{len(self.pods) + 1}"
        self.pods[uid] = len(wishes)
        self.node.add(uid, *wishes)
        if facts:
            self.node.kata.boot(uid, forgets=self.forgets, **facts)
        for number in range(len(wishes)):
            self.node.start(uid, f"c{number}")

    def end(self, kind: str, number: str) -> None:
        """Stop a container; on old kernels remove it, because Kata still counts stopped ones there."""
        container = self.node.containers[number]
        self.node.stop(number)
        if kind == "remove" or self.forgets:
            self.node.remove(number)
        if kind == "restart" and container.pod_uid in self.node.documents:
            self.node.start(container.pod_uid, container.name)

    def delete(self, uid: str) -> None:
        """Delete a pod with its containers and its machine."""
        self.node.documents.pop(uid, None)
        for number, container in list(self.node.containers.items()):
            if container.pod_uid == uid:
                self.node.remove(number)
        self.node.kata.machines.pop(f"s-{uid}", None)

    def settle(self) -> None:
        """Run a pass, and check afterwards that every machine has its CPUs."""
        state = self.node.run()
        bound = {
            f"test/pod-{it.pod_uid}"
            for it in self.node.kata.machines.values()
            if self.is_bound(it, state.shared)
        }
        assert bound.issuperset(state.failures)
        if bound:
            return  # other machines may wait until this one has ended
        for machine in self.node.kata.machines.values():
            own = union(held.cpus for held in self.holders(machine))
            assert machine.cpus() == self.goal(machine, own, state.shared)
            if machine.has_known_vcpus:
                assert union(map(machine.allowed, machine.ranked())) == (own or state.shared)
            assert all(machine.told.values())
            if not machine.has_quota:
                assert not machine.told

    def is_bound(self, machine: KataMachine, shared: CPUSet) -> bool:
        """Return whether Kata keeps the machine on CPUs of containers that have ended."""
        containers = self.node.containers.values()
        is_over = all(it.state is State.EXITED for it in containers if it.sandbox == machine.id)
        own = union(held.cpus for held in self.holders(machine))
        return is_over and bool(machine.cpuset) and not self.goal(machine, own, shared) <= machine.cpuset

    def goal(self, machine: KataMachine, own: CPUSet, shared: CPUSet) -> CPUSet:
        """Return the target CPUs of a machine."""
        is_apart = self.node.config.vm_threads is VMThreadsPolicy.SHARED and machine.has_known_vcpus
        return own | shared if own and is_apart else own or shared

    def holders(self, machine: KataMachine) -> list[Assignment]:
        """Return the assignments of the machine's running containers, or of its whole pod if none runs."""
        containers = [it for it in self.node.containers.values() if it.sandbox == machine.id]
        live = {it.name for it in containers if it.state is not State.EXITED}
        held = self.ledger.pods.get(machine.pod_uid, ())
        return [assignment for assignment in held if not live or assignment.owner.container in live]

    def keep(self) -> None:
        """Record the CPUs owned before and after this pass on which nothing else runs."""
        table = self.watch.tables[-1]
        assert table is not None
        before, self.ledger = self.ledger, table.ledger
        self.kept, self.start = [], self.places()
        for now in self.ledger:
            was = before.of(now.owner)
            if was and was.is_exclusive and now.is_exclusive:
                others = union(cpus for place, cpus in self.places().items() if not self.is_its(place, now))
                self.kept.append((now, (was.footprint & now.footprint) - others))

    def check(self) -> None:
        """Check that nothing runs on CPUs of another owner, and that every cgroup and machine has CPUs."""
        places = self.places()
        assert all(places.values())
        for owner, cpus in self.kept:
            for place, found in places.items():
                assert self.is_its(place, owner) or not found & cpus, f"{place} is on {found} of {owner.name}"
        for owner in self.ledger:
            if owner.is_exclusive:
                self.check_company(owner, places)

    def check_company(self, owner: Assignment, places: dict[str, CPUSet]) -> None:
        """Check that no owner shares CPUs that it did not share before this pass."""
        own = [place for place in places if self.is_its(place, owner)]
        for place, other in product(own, places.keys() - set(own)):
            together = places[place] & places[other] & owner.footprint
            before = self.start.get(place, EMPTY) & self.start.get(other, EMPTY)
            assert together <= before, f"{owner.name} came to {other} on {together}"

    def places(self) -> dict[str, CPUSet]:
        """Return the CPUs of every cgroup and machine."""
        machines = {key: machine.cpus() for key, machine in self.node.kata.machines.items()}
        return {**self.node.cpusets, **machines}

    def is_its(self, place: str, assignment: Assignment) -> bool:
        """Return whether a cgroup or machine belongs to the owner's container."""
        uid, name = assignment.owner
        if f"s-{uid}" in self.node.kata.machines:
            return place == f"s-{uid}"
        return place.startswith(f"/kubepods/{uid}/{uid}-{name}-")


@contextmanager
def life(*, forgets: bool, threads: VMThreadsPolicy) -> Iterator[Life]:
    """Return a new node and close it after use."""
    with TemporaryDirectory() as folder:
        lived = Life(Path(folder), forgets=forgets, threads=threads)
        try:
            yield lived
        finally:
            lived.node.close()


@given(
    first=st.lists(ADDED, min_size=2, max_size=3),
    events=st.lists(EVENTS, max_size=12),
    forgets=st.booleans(),
    threads=st.sampled_from(VMThreadsPolicy),
)
@settings(max_examples=60, deadline=None)
def test_no_thread_is_on_the_cpus_of_another_owner(
    first: list[tuple[str, object, object]],
    events: list[tuple[str, object, object]],
    forgets: bool,
    threads: VMThreadsPolicy,
) -> None:
    """The invariants hold after each write, and after a pass each machine has its CPUs, on old and new kernels."""
    with life(forgets=forgets, threads=threads) as lived:
        for event in (*first, ("pass", None, None), *events):
            lived.play(event)
        lived.settle()
        lived.settle()
