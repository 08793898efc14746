"""In any sequence of creations and steps of passes, no container is created on CPUs that another container owns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.nri.plugin import Plugin
from agent.nri.wire import Event, Reject
from agent.nri.wire import nri_pb2 as pb
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import Owner
from pinning.planning.plan import plan
from pinning.planning.start_table import start_table
from tests.pinning.wishes import WISHES
from tests.pinning.world import Wish, World, world

PODS = st.integers(0, 2)  # few pods, so that their claims often overlap
CLAIMS = st.sampled_from([Wish("2", smt="require"), Wish("2", policy="exclusive"), Wish("1", smt="isolate")])
OTHERS = WISHES.map(lambda wish: replace(wish, init=None))
EVENTS = st.one_of(
    st.tuples(st.just("pod"), PODS, st.one_of(CLAIMS, OTHERS)),
    st.tuples(st.just("gone"), PODS, st.none()),
    st.tuples(st.just("birth"), PODS, st.none()),
    st.tuples(st.just("birth"), PODS, st.none()),
    st.tuples(st.just("step"), st.integers(1, 3), st.none()),
    st.tuples(st.just("step"), st.just(1), st.none()),
)


class Node:
    """A node whose passes are run step by step, with a plugin that is called at any time."""

    def __init__(self) -> None:
        self.world: World = world(4)
        self.plugin = Plugin(lambda _: False, lambda: 0.0)
        self.steps = self.passes()
        self.births = 0
        next(self.steps)
        self.pass_on(1)

    def passes(self) -> Iterator[None]:
        """Run passes endlessly, and yield after each of their steps."""
        while True:
            observed = self.world.observe()
            yield
            planned = plan(observed, self.world.ledger, self.world.config)
            self.world.ledger = planned.ledger
            table = start_table(planned, observed)
            self.plugin.table = table
            yield
            done = set()
            for at, action in enumerate(planned.actions):
                if self.world.containers[action.container_id].is_live:
                    self.world.write(action)
                done.add(at)
                yield
            self.plugin.table = table.waiting_for(())

    def pass_on(self, steps: int) -> None:
        """Run further steps, if needed into the next pass."""
        for _ in range(steps):
            next(self.steps)

    def owner(self, number: int) -> Owner:
        """Return the only container of a pod."""
        uid = f"u{number}"
        document = self.world.documents.get(uid)
        return Owner(uid, document["spec"]["containers"][0]["name"] if document else "c0")

    def end(self, number: int) -> None:
        """Stop the container of a pod and send its removal event."""
        for container in self.world.live():
            if container.owner == self.owner(number):
                self.world.stop(container.id)
                removed = pb.KnownContainer(id=container.id)
                self.plugin.event(Event.REMOVE_CONTAINER, pb.KnownPodSandbox(), removed)

    def birth(self, number: int) -> None:
        """Create the container of a pod again and check its CPUs."""
        self.end(number)
        self.births += 1
        owner, identity = self.owner(number), f"born-{self.births}"
        pod, made = pb.PodSandbox(uid=owner.pod_uid), pb.Container(id=identity, name=owner.container)
        try:
            answer = self.plugin.create_container(pod, made)
        except Reject:
            return
        cpus = CPUSet.parse(answer.adjust.linux.resources.cpu.cpus)
        self.check(owner, cpus, has_own=bool(answer.adjust.env))
        number_of_start = self.world.start(*owner, cpus=cpus)
        self.world.containers[identity] = replace(self.world.containers.pop(number_of_start), id=identity)

    def check(self, owner: Owner, cpus: CPUSet, *, has_own: bool) -> None:
        """Check that a new container is not on CPUs of an owner, and that no other container is on an owner's CPUs."""
        assert cpus
        mine = self.world.ledger.of(owner)
        for other in self.world.live():
            theirs = self.world.ledger.of(other.owner)
            if has_own and mine and mine.is_exclusive:
                assert mine.footprint.isdisjoint(other.cpus)
            if theirs and theirs.is_exclusive:
                assert cpus.isdisjoint(theirs.footprint)


@settings(max_examples=300, deadline=None)
@given(st.lists(EVENTS, min_size=10, max_size=60))
def test_no_container_is_created_beside_an_owner(events: list[tuple[str, int, Wish | None]]) -> None:
    """The invariant also holds between a pass's observation, its table and its writes."""
    node = Node()
    for kind, number, wish in events:
        if kind == "pod" and wish:
            node.world.add(f"u{number}", [wish])
        elif kind == "gone":
            node.end(number)
            node.world.documents.pop(f"u{number}", None)
        elif kind == "birth":
            node.birth(number)
        else:
            node.pass_on(number)
