"""The rules that a ledger keeps: each broken one is named."""

from __future__ import annotations

from pinning.contract import CPUPolicy, SMTPolicy
from pinning.machine.cpuset import EMPTY
from pinning.planning.invariants import problems
from pinning.planning.ledger import Assignment, Ledger
from pinning.planning.node_config import DEFAULT
from pinning.planning.node_sets import NodeSets, Pools, node_sets
from pinning.pods.resources import Role
from tests.pinning.entries import entry
from tests.pinning.nodes import smt_machine
from tests.tables import table


def held(*entries: Assignment) -> Ledger:
    """Return a ledger with these assignments, entered without any check."""
    pods: dict[str, tuple[Assignment, ...]] = {}
    for assignment in entries:
        pods[assignment.owner.pod_uid] = (*pods.get(assignment.owner.pod_uid, ()), assignment)
    masks = [EMPTY, EMPTY]
    for assignment in entries:
        masks[assignment.is_exclusive] |= assignment.footprint
    return Ledger(pods, masks[True], masks[False])


SETS = node_sets(smt_machine(4), smt_machine(4).online, DEFAULT)  # cores 0,4 (reserved) 1,5 2,6 3,7


@table(
    "ledger, message",
    {
        "no CPUs": (held(entry("a", "")), "without CPUs"),
        "reserved": (held(entry("a", "0")), "CPUs 0 are reserved"),
        "share on reserved": (held(entry("a", "0", policy=CPUPolicy.SHARE)), "CPUs 0 are reserved"),
        "not there": (held(entry("a", "9")), "CPUs 9 are reserved, set aside or not usable"),
        "owned twice": (held(entry("a", "1"), entry("b", "1")), "n/a/c and n/b/c both hold CPUs 1"),
        "share on exclusive": (
            held(entry("a", "1"), entry("b", "1", policy=CPUPolicy.SHARE)),
            "both hold CPUs 1",
        ),
        "half a core": (held(entry("a", "1", smt=SMTPolicy.REQUIRE)), "CPUs 5 are siblings"),
        "isolate on siblings": (
            held(entry("a", "1,5", smt=SMTPolicy.ISOLATE)),
            "CPUs 1,5 are one core, and isolate",
        ),
        "masks that say something else": (
            Ledger({"a": (entry("a", "1"),)}),
            "CPUs 1 are in the shared set too",
        ),
    },
)
def test_problems_name_every_broken_rule(ledger: Ledger, message: str) -> None:
    """Each broken rule is reported in words."""
    assert message in "; ".join(problems(ledger, SETS))


def test_a_sound_ledger_has_no_problems() -> None:
    """Owners, sharers and a reused init container beside each other are fine."""
    ledger = held(
        entry("a", "1", "5", smt=SMTPolicy.ISOLATE),
        entry("b", "2", policy=CPUPolicy.SHARE),
        entry("c", "3,7", container="one", role=Role.INIT, smt=SMTPolicy.REQUIRE),
        entry("c", "3", container="two", start_index=1),
    )
    assert problems(ledger, SETS) == ()


def test_an_empty_shared_set_is_a_problem() -> None:
    """An empty shared set is a problem: containers without claims need CPUs."""
    topology = smt_machine(1)
    sets = NodeSets(topology, topology.online, EMPTY, Pools(topology.online, EMPTY))
    assert problems(held(entry("a", "0-1")), sets) == ("the shared set is empty",)
