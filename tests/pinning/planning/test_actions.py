"""The order of a plan's writes, case by case; `test_plan_properties` executes every order that is allowed."""

from __future__ import annotations

from dataclasses import replace

from pinning.contract import CPUPolicy, PoolUse, SharedPool, SMTPolicy
from pinning.machine.cpuset import CPUSet
from pinning.planning.actions import plan_actions
from pinning.planning.ledger import Ledger
from pinning.planning.node_config import DEFAULT, NodeConfig
from pinning.planning.node_sets import NodeSets, node_sets
from pinning.planning.observed import Observed, Owner, SeenContainer, State
from pinning.planning.run_sets import RunSets
from tests.pinning.budgets import budgeted, put
from tests.pinning.entries import entry
from tests.pinning.nodes import smt_machine
from tests.pinning.world import World
from tests.tables import table

TOPOLOGY = smt_machine(4)  # cores 0,4 (reserved) 1,5 2,6 3,7
SETS = node_sets(TOPOLOGY, TOPOLOGY.online, DEFAULT)


def written(before: str, after: str, current: str, sets: NodeSets = SETS) -> list[str]:
    """Return the actions as "kind container cpus < containers it waits for".

    `before` and `after` are ledgers, and `current` has the CPUs on which each container runs,
    as "a=1,5/idle b=2s" (s: shared) and "a=0-7 b=c2" (c: created).
    """
    observed = Observed(TOPOLOGY, TOPOLOGY.online, containers=tuple(_running(current)))
    actions = plan_actions(observed, _ledger(before), RunSets(_ledger(after), sets))
    return [
        f"{action.kind} {action.container_id} {action.cpus}"
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


@table(
    "before, after, current, expected",
    {
        "nothing to do": ("a=1", "a=1", "a=1 n=0,2-7", []),
        "none to exclusive: others first": (
            "",
            "a=1",
            "a=0-7 n=0-7",
            ["shrink n 0,2-7", "grant a 1 < shrink n"],
        ),
        "a created container never waits": ("", "a=1", "a=c0-7 n=0,2-7", ["grant a 1"]),
        "created, gaining what others use": (
            "",
            "a=1",
            "a=c2 n=0-7",
            ["shrink n 0,2-7", "grant a 1 < shrink n"],
        ),
        "exclusive to share: only others are written": ("a=1", "a=1s", "a=1 n=0,2-7", ["widen n 0-7"]),
        "share to exclusive: only others are written": ("a=1s", "a=1", "a=1 n=0-7", ["shrink n 0,2-7"]),
        "exclusive to none": ("a=1", "", "a=1 n=0,2-7", ["widen a 0-7", "widen n 0-7"]),
        "gone: others are widened at once": ("a=1", "", "n=0,2-7", ["widen n 0-7"]),
        "fewer CPUs": ("a=1,5", "a=1", "a=1,5 n=0,2-4,6-7", ["shrink a 1", "widen n 0,2-7 < shrink a"]),
        "more CPUs": ("a=1", "a=1,5", "a=1 n=0,2-7", ["shrink n 0,2-4,6-7", "grant a 1,5 < shrink n"]),
        "moved: the old CPU is widened onto after the owner left it": (
            "a=1",
            "a=2",
            "a=1 n=0,2-7",
            ["shrink n 0,3-7", "grant a 2 < shrink n", "widen n 0-1,3-7 < shrink n < grant a"],
        ),
        "one owner after the other: nobody else is written": (
            "a=1",
            "b=1",
            "a=1 b=0,2-7 n=0,2-7",
            ["shrink a 0,2-7", "grant b 1 < shrink a"],
        ),
        "idle siblings are left with their core": (
            "a=1/5",
            "a=2/6",
            "a=1 n=0,3-4,7",
            ["grant a 2", "widen n 0-1,3-5,7 < grant a"],
        ),
        "an owner that becomes a sharer gains the CPU that it kept idle": (
            "b=1/5",
            "a=2",
            "a=2 b=1-2",
            ["shrink b 1", "widen b 0-1,3-7 < shrink b"],
        ),
        "two new owners first leave each other's CPUs": (
            "",
            "a=1 b=2",
            "a=0-7 b=0-7",
            [
                "shrink a 0-1,3-7",
                "shrink b 0,2-7",
                "grant a 1 < shrink a < shrink b",
                "grant b 2 < shrink a < shrink b",
            ],
        ),
        "a grant waits only for what overlaps": ("", "a=1", "a=1,2 n=0,2-7", ["grant a 1"]),
        "off another owner's CPUs at once": ("b=2", "a=1 b=2", "a=1,2 b=2 n=0,3-7", ["shrink a 1"]),
        "all of the machine is what an unread set means": ("", "", "n=", []),
        "an owner with an unread set is written": ("a=1", "a=1", "a=", ["shrink a 1"]),
        "a sharer that has nothing of its set moves to free CPUs at once": (
            "",
            "a=1",
            "n=1",
            ["shrink n 0,2-7"],
        ),
        "a sharer with nowhere to go goes at once": ("x=0,2-7 a=1", "a=1", "n=1 x=0,2-7", ["widen n 0,2-7"]),
        "owners that move in a row": (
            "a=1,2 b=5",
            "a=5 b=2",
            "a=1,2 b=5 n=0,3-4,6-7",
            [
                "shrink a 1",
                "grant b 2 < shrink a",
                "grant a 5 < shrink a < grant b",
                "widen n 0-1,3-4,6-7 < grant a",
            ],
        ),
    },
)
def test_writes_and_their_order(before: str, after: str, current: str, expected: list[str]) -> None:
    """Writes that shrink a cpuset come before grants and widenings, and writes that do not overlap do not wait."""
    assert written(before, after, current) == expected


SHARING = frozenset({PoolUse(SharedPool.INFRA)})


@table(
    "before, after, current, home, expected",
    {
        "widened": ("a=1", "a=1", "a=1 n=0,2-7", "", ["widen a 0-7 home 1"]),
        "nothing to do": ("a=1", "a=1", "a=0-7 n=0,2-7", "1", []),
        "its tasks are not apart": ("a=1", "a=1", "a=0-7 n=0,2-7", "", ["shrink a 0-7 home 1"]),
        "created: on its own CPUs alone": ("a=1", "a=1", "a=c1 n=0,2-7", "", []),
        "its shared part shrinks before a grant": (
            "a=1",
            "a=1 b=2",
            "a=0-7 b=0,2-7 n=0,2-7",
            "1",
            ["shrink a 0-1,3-7 home 1", "shrink n 0,3-7", "grant b 2 < shrink a < shrink n"],
        ),
        "it grows last": (
            "a=1 b=2,6",
            "a=1 b=2",
            "a=0-1,3-5,7 b=2,6 n=0,3-5,7",
            "1",
            ["shrink b 2", "widen a 0-1,3-7 home 1 < shrink b", "widen n 0,3-7 < shrink b"],
        ),
        "moved within its cpuset: others leave its new CPU first, and come to the old one afterwards": (
            "a=1",
            "a=2",
            "a=0-7 n=0,2-7",
            "1",
            ["shrink n 0,3-7", "grant a 0-7 home 2 < shrink n", "widen n 0-1,3-7 < shrink n < grant a"],
        ),
        "moved before it was widened: granted its new CPU first, and then widened": (
            "a=1",
            "a=2",
            "a=1 n=0,2-7",
            "1",
            [
                "shrink n 0,3-7",
                "grant a 1-2 home 2 < shrink n",
                "widen a 0-7 home 2 < grant a",
                "widen n 0-1,3-7 < shrink n < grant a",
            ],
        ),
    },
)
def test_who_runs_on_more_than_it_owns(
    before: str, after: str, current: str, home: str, expected: list[str]
) -> None:
    """A container leaves shared CPUs before another container is granted them, and its cpuset is widened last."""
    seen = [replace(it, home=CPUSet.parse(home)) if it.id == "a" else it for it in _running(current)]
    observed = Observed(TOPOLOGY, TOPOLOGY.online, containers=tuple(seen))
    run_sets = RunSets(_ledger(after), SETS, {Owner("a", "c"): SHARING})
    actions = plan_actions(observed, _ledger(before), run_sets)
    assert [
        f"{action.kind} {action.container_id} {action.cpus}"
        + (f" home {action.home}" if action.home else "")
        + "".join(f" < {actions[at].kind} {actions[at].container_id}" for at in action.waits_for)
        for action in actions
    ] == expected


def test_a_circle_is_broken_by_stepping_aside() -> None:
    """If two owners swap CPUs, one of them moves to the shared set first."""
    assert written("a=1 b=2", "a=2 b=1", "a=1 b=2") == [
        "shrink a 0,3-7",
        "grant b 1 < shrink a",
        "grant a 2 < shrink a < grant b",
    ]


def test_beside_a_strict_reserve_a_circle_is_broken_on_the_reserved_cpus() -> None:
    """Beside a strict reserve, one of three containers that exchange CPUs moves to the reserved CPUs first."""
    strict = node_sets(TOPOLOGY, TOPOLOGY.online, NodeConfig(strict_reserved=True))
    assert written("a=1 b=2 x=5-7", "a=2 b=3 x=5-7", "a=1 b=2 n=3 x=5-7", strict) == [
        "shrink a 0,4",
        "widen n 1 < shrink a",
        "grant b 3 < widen n",
        "grant a 2 < shrink a < grant b",
    ]


def test_a_circle_without_a_way_round_is_still_left() -> None:
    """If owners exchange CPUs and no shared CPU is free of them, one of them moves directly to its new CPUs."""
    before, current = "a=1 b=2 x=0,3-7", "a=1 b=2 x=0,3-7"
    assert written(before, "a=2 b=1", current) == ["grant a 2", "grant b 1 < grant a"]


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
