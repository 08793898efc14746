"""Counts of tasks between sweeps: fresh, in turn, and only where they belong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.node_state import NodeState
from agent.process import Agent
from agent.reconcile import verify
from agent.reconcile.reconciler import TALLIES
from agent.reconcile.verify import with_proofs
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import Owner
from pinning.planning.task_parts import Tally
from tests.agent.fakes import FakeNode
from tests.agent.reconcile.scenes import TWO, container
from tests.agent.reconcile.serving import Reports, serving

MIXED = replace(TWO, shared="true")


@pytest.fixture
def mixed(node: FakeNode) -> list[str]:
    """Return three containers with the shared set beside their cores, two tasks in each, that are counted once."""
    started = []
    for uid in ("a", "b", "c"):
        node.add(uid, MIXED)
        number = node.start(uid)
        node.tasks.start(number, "", "")
        started.append(number)
    node.run()
    node.runner.run(node.agent.reconciler.sweep(lambda: False))
    return started


def move_all(node: FakeNode, mask: str) -> None:
    """Let each application move its second task."""
    for task in (2, 4, 6):
        node.tasks.choose(task, mask)


def count(node: FakeNode) -> dict[str, Tally | None]:
    """Count once; return the tallies that changed, by pod."""
    changed = node.runner.run(node.agent.reconciler.tallies.count())
    return {owner.pod_uid: proof.tally for owner, proof in changed.items()}


@pytest.mark.usefixtures("mixed")
def test_a_moved_task_is_published_without_a_pass_and_before_the_next_sweep(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that moved itself to the shared set is in the published proof while no sweep and no pass comes."""
    monkeypatch.setattr(verify, "POLL_SECONDS", 0.01)

    async def scenario(_: Agent, reports: Reports) -> None:
        at_home = Tally(home=2, others=0, both=0)
        await reports.until(lambda state: {tally_of(state, uid) for uid in "abc"} == {at_home})
        node.tasks.choose(2, "4")
        await reports.until(lambda state: tally_of(state, "a") == Tally(home=1, others=1, both=0))
        assert tally_of(reports.states[-1], "b") == at_home

    serving(node, scenario)


def tally_of(state: NodeState, uid: str) -> Tally | None:
    """Return what a state says of a pod's tasks."""
    try:
        proof = container(state, uid).proof
    except (StopIteration, LookupError):
        return None
    return proof.tally if proof else None


@pytest.mark.usefixtures("mixed")
def test_nothing_new_is_not_shown(node: FakeNode) -> None:
    """A round over tasks that stayed where they were shows no proof."""
    assert count(node) == {}


@pytest.mark.usefixtures("mixed")
def test_each_container_gets_its_turn(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all change all the time, a round shows as many as it may, and the next one goes on after them."""
    monkeypatch.setattr(verify, "MOST_SHOWN", 2)
    shown = []
    for mask in ("4", "1,4", ""):
        move_all(node, mask)
        shown.append(sorted(count(node)))
    assert shown == [["a", "b"], ["a", "c"], ["b", "c"]]


@pytest.mark.usefixtures("mixed")
def test_a_count_belongs_to_the_cpus_that_are_shown(node: FakeNode) -> None:
    """A proof of other CPUs than a state shows, or of a container that it does not show, changes nothing in it."""
    state = node.run()
    proof = container(state, "a").proof
    assert proof
    newer = replace(proof, tally=Tally(home=0, others=0, both=2))

    assert with_proofs(state, {Owner("a", "c0"): newer}) != state
    assert with_proofs(state, {Owner("a", "c0"): replace(newer, cpus=CPUSet([0]))}) == state
    assert with_proofs(state, {Owner("gone", "c0"): newer}) == state


def looks(node: FakeNode) -> set[str]:
    """Return the looks that are due some time."""
    return {key for _, key in node.agent.trigger.agenda.due()}


def test_rounds_end_with_the_last_container_that_is_split(node: FakeNode, mixed: list[str]) -> None:
    """A round without such a container is the last; a pass that splits one makes the next round due."""
    tallies = node.agent.reconciler.tallies
    assert TALLIES in looks(node)
    assert node.runner.run(tallies.look(lambda _: None)) is not None
    for number in mixed:
        node.remove(number)
    node.run()
    assert node.runner.run(tallies.look(lambda _: None)) is None
    assert not tallies.begins()


def test_node_without_machines_and_split_containers_has_neither_look(node: FakeNode) -> None:
    """What is not used costs no timer."""
    node.add("a", TWO)
    node.start("a")
    node.run()
    assert looks(node) == set()
