"""Counts of tasks on exclusive and shared CPUs, between sweeps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.node_state import NodeState
from agent.reconcile import verify
from agent.reconcile.reconciler import TALLIES
from agent.reconcile.verify import with_proofs
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import Owner
from pinning.planning.task_parts import Tally
from tests.agent.fakes import FakeNode
from tests.agent.reconcile.scenes import TWO, container
from tests.agent.reconcile.serving import serving

MIXED = replace(TWO, shared="true")


@pytest.fixture
def mixed(node: FakeNode) -> list[str]:
    """Start three mixed containers with two tasks each and sweep once; return their ids."""
    started = []
    for uid in ("a", "b", "c"):
        number = node.deploy(uid, MIXED)
        node.tasks.start(number, "", "")
        started.append(number)
    node.run()
    node.runner.run(node.agent.reconciler.sweep(lambda: False))
    return started


def move_all(node: FakeNode, mask: str) -> None:
    """Set the affinity of each container's second task, as its application does."""
    for task in (2, 4, 6):
        node.tasks.choose(task, mask)


def count(node: FakeNode) -> dict[str, Tally | None]:
    """Count the tasks once; return the changed counts by pod."""
    changed = node.runner.run(node.agent.reconciler.tallies.count())
    return {owner.pod_uid: proof.tally for owner, proof in changed.items()}


@pytest.mark.usefixtures("mixed")
async def test_task_that_moves_itself_is_published_without_a_sweep(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a task moves itself to the shared set, the published state shows it without a sweep or a pass."""
    monkeypatch.setattr(verify, "POLL_SECONDS", 0.01)
    async with serving(node) as (_, reports):
        at_home = Tally(home=2, others=0, both=0)
        await reports.until(lambda state: {tally_of(state, uid) for uid in "abc"} == {at_home})
        node.tasks.choose(2, "4")
        await reports.until(lambda state: tally_of(state, "a") == Tally(home=1, others=1, both=0))
        assert tally_of(reports.states[-1], "b") == at_home


def tally_of(state: NodeState, uid: str) -> Tally | None:
    """Return the task counts of a pod in a state, or None."""
    try:
        proof = container(state, uid).proof
    except (StopIteration, LookupError):
        return None
    return proof.tally if proof else None


@pytest.mark.usefixtures("mixed")
def test_unchanged_counts_return_no_proof(node: FakeNode) -> None:
    """If no task has moved, a count returns no new proof."""
    assert count(node) == {}


@pytest.mark.usefixtures("mixed")
def test_changed_containers_are_published_round_robin(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One round publishes a limited number of changed containers, and the next round continues with the others."""
    monkeypatch.setattr(verify, "MOST_SHOWN", 2)
    shown = []
    for mask in ("4", "1,4", ""):
        move_all(node, mask)
        shown.append(sorted(count(node)))
    assert shown == [["a", "b"], ["a", "c"], ["b", "c"]]


@pytest.mark.usefixtures("mixed")
def test_a_stale_count_is_ignored(node: FakeNode) -> None:
    """The result of a count does not change the state if the container got other CPUs, or ended, in the meantime."""
    state = node.run()
    proof = container(state, "a").proof
    assert proof
    newer = replace(proof, tally=Tally(home=0, others=0, both=2))

    assert with_proofs(state, {Owner("a", "c0"): newer}) != state
    assert with_proofs(state, {Owner("a", "c0"): replace(newer, cpus=CPUSet([0]))}) == state
    assert with_proofs(state, {Owner("gone", "c0"): newer}) == state


def looks(node: FakeNode) -> set[str]:
    """Return the keys of the scheduled callbacks."""
    return {key for _, key in node.agent.trigger.agenda.due()}


def test_rounds_end_with_the_last_container_that_is_split(node: FakeNode, mixed: list[str]) -> None:
    """Counting stops when the last mixed container has ended."""
    tallies = node.agent.reconciler.tallies
    assert TALLIES in looks(node)
    assert node.runner.run(tallies.look(lambda _: None)) is not None
    for number in mixed:
        node.remove(number)
    node.run()
    assert node.runner.run(tallies.look(lambda _: None)) is None
    assert not tallies.begins()


def test_without_machines_and_split_containers_no_look_is_scheduled(node: FakeNode) -> None:
    """Without virtual machines and mixed containers, no periodic check is scheduled."""
    node.deploy("a", TWO)
    node.run()
    assert looks(node) == set()
