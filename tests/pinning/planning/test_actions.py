"""The order of a plan's writes, case by case; `test_plan_properties` executes every order that is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pinning.contract import CPUPolicy, PoolUse, SharedPool, SMTPolicy
from pinning.machine.cpuset import CPUSet
from pinning.planning.actions import Action, plan_actions
from pinning.planning.ledger import Ledger
from pinning.planning.node_config import DEFAULT, NodeConfig
from pinning.planning.node_sets import NodeSets, node_sets
from pinning.planning.observed import Observed, Owner, SeenContainer, State
from pinning.planning.run_sets import RunSets
from tests.pinning.budgets import budgeted, put
from tests.pinning.entries import entry
from tests.pinning.nodes import smt_machine
from tests.pinning.world import World
from tests.tables import text_table

TOPOLOGY = smt_machine(4)  # cores 0,4 (reserved) 1,5 2,6 3,7
ROWS = Path(__file__).with_name("actions.txt")  # ledgers, CPUs in use, and actions as `written` has them
SETS = node_sets(TOPOLOGY, TOPOLOGY.online, DEFAULT)


def written(before: str, after: str, current: str, sets: NodeSets = SETS) -> list[str]:
    """Return the actions as "kind container cpus < containers it waits for".

    `before` and `after` are ledgers, and `current` has the CPUs on which each container runs,
    as "a=1,5/idle b=2s" (s: shared) and "a=0-7 b=c2" (c: created).
    """
    observed = Observed(TOPOLOGY, TOPOLOGY.online, containers=tuple(_running(current)))
    return listed(plan_actions(observed, _ledger(before), RunSets(_ledger(after), sets)))


def listed(actions: Sequence[Action]) -> list[str]:
    """Return the actions as texts."""
    return [
        f"{action.kind} {action.container_id} {action.cpus}"
        + (f" home {action.home}" if action.home else "")
        + "".join(f" < {actions[at].kind} {actions[at].container_id}" for at in action.waits_for)
        for action in actions
    ]


def _ledger(text: str) -> Ledger:
    ledger = Ledger()
    for item in text.split():
        uid, _, cpus = item.partition("=")
        own, _, idle = cpus.rstrip("s").partition("/")
        share = cpus.endswith("s")
        policy = CPUPolicy.SHARE if share else CPUPolicy.EXCLUSIVE
        smt = SMTPolicy.ISOLATE if idle else SMTPolicy.PREFER
        ledger = ledger.assign(entry(uid, own, idle, policy=policy, smt=smt))
    return ledger


def _running(text: str) -> list[SeenContainer]:
    listed = []
    for item in text.split():
        uid, _, cpus = item.partition("=")
        state = State.CREATED if cpus.startswith("c") else State.RUNNING
        listed.append(SeenContainer(uid, Owner(uid, "c"), state, CPUSet.parse(cpus.lstrip("c"))))
    return listed


@text_table("before, after, current, expected", ROWS, "Writes and their order")
def test_writes_and_their_order(before: str, after: str, current: str, expected: str) -> None:
    """Writes that shrink a cpuset come before grants and widenings, and writes that do not overlap do not wait."""
    assert "; ".join(written(before, after, current)) == expected


SHARING = frozenset({PoolUse(SharedPool.INFRA)})


@text_table("before, after, current, home, expected", ROWS, "Containers that run on more than they own")
def test_who_runs_on_more_than_it_owns(
    before: str, after: str, current: str, home: str, expected: str
) -> None:
    """A container leaves shared CPUs before another container is granted them, and its cpuset is widened last."""
    seen = [replace(it, home=CPUSet.parse(home)) if it.id == "a" else it for it in _running(current)]
    observed = Observed(TOPOLOGY, TOPOLOGY.online, containers=tuple(seen))
    run_sets = RunSets(_ledger(after), SETS, {Owner("a", "c"): SHARING})
    assert "; ".join(listed(plan_actions(observed, _ledger(before), run_sets))) == expected


def test_beside_a_strict_reserve_a_circle_is_broken_on_the_reserved_cpus() -> None:
    """Beside a strict reserve, one of three containers that exchange CPUs moves to the reserved CPUs first."""
    strict = node_sets(TOPOLOGY, TOPOLOGY.online, NodeConfig(strict_reserved=True))
    assert written("a=1 b=2 x=5-7", "a=2 b=3 x=5-7", "a=1 b=2 n=3 x=5-7", strict) == [
        "shrink a 0,4",
        "widen n 1 < shrink a",
        "grant b 3 < widen n",
        "grant a 2 < shrink a < grant b",
    ]


def test_containers_of_one_pool_share_what_they_wait_for() -> None:
    """Containers in one pool share one list of dependencies, because one for each pair would be millions."""
    node = World(smt_machine(64))
    for uid in range(4):
        names = [f"c{at}" for at in range(30)]
        put(node, budgeted(f"u{uid}", 4, dict.fromkeys(names), created=uid), *names)
    actions = node.plan().actions
    shared = {id(action.after): action.after for action in actions}
    waiting = [action for action in actions if action.after]
    assert len(waiting) == 4 * 30
    assert all(action.follows and len(action.after) == 3 * 30 for action in waiting)
    assert sum(map(len, shared.values())) == 4 * 3 * 30
