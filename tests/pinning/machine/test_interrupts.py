"""Quiet CPUs and affinities of interrupts: a decision for one interrupt at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.interrupts import Decision, Quiet, Taken, away, born, decide, hindrance
from pinning.planning.ledger import quiet_cpus
from tests.pinning.nodes import SNC
from tests.pinning.world import Wish, World

ONLINE = CPUSet(range(8))
SETS = st.frozensets(st.integers(0, 7)).map(CPUSet)
SOME = st.frozensets(st.integers(0, 7), min_size=1).map(CPUSet)


def cpus(text: str) -> CPUSet:
    """Return a set of CPUs."""
    return CPUSet.parse(text)


def quiet(text: str, online: str = "0-7") -> Quiet:
    """Return the quiet CPUs of a machine."""
    return Quiet(cpus(text), cpus(online))


@pytest.mark.parametrize(
    ("wish", "found"),
    [
        pytest.param(Wish("2", policy="exclusive", noise="quiet"), True, id="exclusive and quiet"),
        pytest.param(Wish("2", policy="exclusive", smt="isolate", noise="quiet"), True, id="with siblings"),
        pytest.param(Wish("2", policy="exclusive", noise="none"), False, id="exclusive and none"),
        pytest.param(Wish("2", policy="exclusive"), False, id="exclusive, and nothing is said"),
        pytest.param(Wish("2", policy="share", noise="quiet"), False, id="not exclusive"),
    ],
)
def test_quiet_cpus_are_those_of_exclusive_containers_that_ask_for_it(wish: Wish, found: bool) -> None:
    """Quiet CPUs are those of exclusive containers that ask, with their idle siblings."""
    node = World(SNC)
    node.add("a", [wish])
    node.run_all()
    held = union_of(node)
    assert quiet_cpus(node.ledger) == (held if found else EMPTY)


@pytest.mark.parametrize(
    ("noise", "is_crio", "found"),
    [
        pytest.param(None, False, True, id="under another runtime"),
        pytest.param(None, True, False, id="CRI-O follows it itself"),
        pytest.param("none", False, False, id="corepin's word counts first"),
        pytest.param("quiet", True, True, id="corepin's word under CRI-O"),
    ],
)
def test_crios_annotation_means_quiet_under_other_runtimes(
    noise: str | None, is_crio: bool, found: bool
) -> None:
    """CRI-O itself keeps interrupts off by it, so that corepin leaves that to it."""
    node = World(SNC)
    node.add("a", [Wish("2", policy="exclusive", noise=noise)])
    node.run_all()
    (held,) = node.ledger
    held = replace(held, claim=replace(held.claim, crio_disables_interrupts=True))
    assert quiet_cpus([held], is_crio=is_crio) == (held.footprint if found else EMPTY)


def union_of(node: World) -> CPUSet:
    """Return every CPU that is charged to a container."""
    return next(iter(node.ledger)).footprint


def test_an_edit_of_the_annotation_counts_while_the_container_runs() -> None:
    """`quiet` can be switched on and off without a restart."""
    node = World(SNC)
    for word in (None, "quiet", "none", "quiet"):
        node.add("a", [Wish("2", policy="exclusive", noise=word)])
        node.run_all()
        assert bool(quiet_cpus(node.ledger)) is (word == "quiet")


@pytest.mark.parametrize(
    ("text", "online", "reason"),
    [
        ("4-5", "0-7", ""),
        ("2-7", "0-7", ""),
        ("", "0-7", ""),
        ("1-7", "0-7", "interrupts need 2 online CPUs that are not quiet, and only CPU 0 is left"),
        ("4-5", "4-5,7", "interrupts need 2 online CPUs that are not quiet, and only CPU 7 is left"),
        ("0-7", "0-7", "interrupts need 2 online CPUs that are not quiet, and no CPU is left"),
    ],
)
def test_interrupts_need_two_other_cpus(text: str, online: str, reason: str) -> None:
    """With fewer than two other online CPUs no interrupt is moved, with the reason."""
    assert hindrance(quiet(text, online)) == reason


@pytest.mark.parametrize(
    ("original", "node", "near", "wanted"),
    [
        pytest.param("0-7", quiet("4-5"), "", "0-3,6-7", id="the quiet bits go"),
        pytest.param("0-1", quiet("4-5"), "", "0-1", id="nothing to do"),
        pytest.param("4", quiet("4-5"), "", "0-3,6-7", id="to all others"),
        pytest.param("4", quiet("4-5"), "4-7", "6-7", id="to others of its NUMA node"),
        pytest.param("4", quiet("4-6"), "4-7", "0-3,7", id="not all to a single CPU"),
        pytest.param("3-4", quiet("4", "0-2,4-7"), "", "0-2,5-7", id="its other CPU is offline"),
        pytest.param("3", quiet("4", "0-2,4-7"), "", "3", id="it is offline, and not on quiet CPUs"),
    ],
)
def test_an_interrupt_goes_to_other_cpus(original: str, node: Quiet, near: str, wanted: str) -> None:
    """It keeps those of its own that are not quiet, as long as one of them is online."""
    assert away(cpus(original), node, cpus(near)) == cpus(wanted)


OURS = Taken(cpus("0-7"), (cpus("0-3,6-7"),), "eth0")


@pytest.mark.parametrize(
    ("now", "taken", "node", "facts", "decision"),
    [
        pytest.param("0-3", None, quiet("4-5"), {}, Decision(None), id="not on quiet CPUs"),
        pytest.param(
            "0-7",
            None,
            quiet("4-5"),
            {},
            Decision(Taken(cpus("0-7"), (cpus("0-3,6-7"),)), cpus("0-3,6-7")),
            id="taken",
        ),
        pytest.param("0-7", None, quiet("4-5"), {"may_take": False}, Decision(None), id="may not be taken"),
        pytest.param("0-3,6-7", OURS, quiet("4-5"), {}, Decision(OURS), id="done already"),
        pytest.param("0-3,6-7", OURS, quiet(""), {}, Decision(None, cpus("0-7")), id="given back"),
        pytest.param(
            "0-3,6-7",
            OURS,
            quiet("4"),
            {"may_take": False},
            Decision(Taken(cpus("0-7"), (cpus("0-3,6-7"), cpus("0-3,5-7")), "eth0"), cpus("0-3,5-7")),
            id="a part is given back",
        ),
        pytest.param(
            "0-3,6-7",
            OURS,
            quiet("4-6"),
            {},
            Decision(Taken(cpus("0-7"), (cpus("0-3,6-7"), cpus("0-3,7")), "eth0"), cpus("0-3,7")),
            id="more is taken",
        ),
        pytest.param(
            "0-3,6-7", OURS, quiet("4-6"), {"may_take": False}, Decision(OURS), id="no more may be taken"
        ),
        pytest.param("0-1", OURS, quiet("4-5"), {}, Decision(None), id="another program chose other CPUs"),
        pytest.param("0-1", OURS, quiet(""), {}, Decision(None), id="and is not overwritten afterwards"),
        pytest.param(
            "0-1",
            OURS,
            quiet("4-5"),
            {"proven": cpus("0-3,6-7")},
            Decision(None),
            id="after the order was read back",
        ),
        pytest.param(
            "5",
            OURS,
            quiet("4-5"),
            {"proven": cpus("0-3,6-7")},
            Decision(Taken(cpus("5"), (cpus("0-3,6-7"),), "eth0"), cpus("0-3,6-7"), is_foreign=True),
            id="another program moved it back",
        ),
        pytest.param(
            "5",
            OURS,
            quiet("4-5"),
            {"proven": cpus("0-3,6-7"), "may_take": False},
            Decision(None, None, is_foreign=True),
            id="and may not be taken again",
        ),
        pytest.param("0-7", OURS, quiet(""), {}, Decision(None), id="the write never happened"),
        pytest.param(
            "0-3",
            Taken(cpus("4"), (cpus("0-3"),)),
            quiet("", "0-3"),
            {},
            Decision(Taken(cpus("4"), (cpus("0-3"),))),
            id="its original is offline",
        ),
    ],
)
def test_a_decision(
    now: str, taken: Taken | None, node: Quiet, facts: dict[str, CPUSet], decision: Decision
) -> None:
    """An interrupt is the agent's while its affinity is one that it wrote."""
    assert decide(cpus(now), taken, node, **facts) == decision  # type: ignore[arg-type]


DEFAULT = Taken(cpus("0-7"), (cpus("0-3,6-7"),))
MOVING = Taken(cpus("0-7"), (cpus("0-3,6-7"), cpus("0-4,7")))


@pytest.mark.parametrize(
    ("now", "default", "online", "near", "original"),
    [
        pytest.param("0-3,6-7", DEFAULT, "0-7", "", "0-7", id="all that it lost"),
        pytest.param("6-7", DEFAULT, "0-7", "4-7", "4-7", id="of its NUMA node"),
        pytest.param("0-3,6-7", DEFAULT, "0-7", "4-5", "4-5", id="its NUMA node has no other CPU"),
        pytest.param("0-3,7", DEFAULT, "0-5,7", "", "0-5,7", id="of the online CPUs"),
        pytest.param("0-3,6-7", DEFAULT, "0-5,7", "", "0-7", id="allocated, not started"),
        pytest.param("0-2", DEFAULT, "0-2", "", None, id="it lost nothing, because the others are offline"),
        pytest.param("0-1", DEFAULT, "0-7", "0-1", None, id="it lost nothing"),
        pytest.param("2", DEFAULT, "0-7", "", None, id="chosen by another program"),
        pytest.param("0-7", DEFAULT, "0-7", "", None, id="not by the default"),
        pytest.param("0-3", None, "0-7", "", None, id="the default is not narrowed"),
        pytest.param(
            "0-4,7", MOVING, "0-7", "", "0-7", id="while the agent was killed in between, the new one"
        ),
        pytest.param("0-3,6-7", MOVING, "0-7", "", "0-7", id="or the old one"),
    ],
)
def test_an_interrupt_requested_under_a_narrow_default(
    now: str, default: Taken | None, online: str, near: str, original: str | None
) -> None:
    """It is restored to the original default, if its CPUs are exactly those that the kernel gives it."""
    record = Taken(cpus(original), (cpus(now),)) if original else None
    assert born(cpus(now), default, cpus(online), cpus(near)) == record


@given(SOME, SETS, SOME, SETS)
def test_an_interrupt_always_has_an_online_cpu(
    original: CPUSet, quiet_set: CPUSet, online: CPUSet, near: CPUSet
) -> None:
    """An interrupt always has an online CPU that is not quiet, if there are two such CPUs."""
    node = Quiet(quiet_set, online)
    wanted = away(original, node, near)
    if not hindrance(node):
        assert wanted.isdisjoint(quiet_set)
        assert wanted == original or not wanted.isdisjoint(online)


@given(SOME, st.lists(st.tuples(SETS, st.booleans()), max_size=6))
def test_a_history_ends_with_the_original(original: CPUSet, history: list[tuple[CPUSet, bool]]) -> None:
    """After any history of quiet sets and killed agents each affinity is the original."""
    now, taken = original, None
    for quiet_set, is_written in [*history, (EMPTY, True), (EMPTY, True)]:
        node = Quiet(quiet_set, ONLINE)
        if hindrance(node):
            continue
        decision = decide(now, taken, node)
        assert not decision.is_foreign
        taken = decision.taken or (taken if decision.write else None)
        if is_written and decision.write is not None:
            now = decision.write
            assert decide(now, decision.taken, node) == Decision(decision.taken)
            taken = decision.taken
    assert (now, taken) == (original, None)
