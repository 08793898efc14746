"""Quiet CPUs and affinities of interrupts: a decision for one interrupt at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.interrupts import Decision, Quiet, Stay, Taken, away, born, decide, hindrance
from pinning.planning.noise import quiet_cpus
from tests.pinning.nodes import SNC
from tests.pinning.world import Wish, World
from tests.tables import table

ONLINE = CPUSet(range(8))
SETS = st.frozensets(st.integers(0, 7)).map(CPUSet)
SOME = st.frozensets(st.integers(0, 7), min_size=1).map(CPUSet)


def cpus(text: str) -> CPUSet:
    """Return a set of CPUs."""
    return CPUSet.parse(text)


def quiet(text: str, online: str = "0-7") -> Quiet:
    """Return the quiet CPUs of a machine."""
    return Quiet(cpus(text), cpus(online))


@table(
    "wish, found",
    {
        "exclusive and quiet": (Wish("2", policy="exclusive", noise="quiet"), True),
        "with siblings": (Wish("2", policy="exclusive", smt="isolate", noise="quiet"), True),
        "exclusive and none": (Wish("2", policy="exclusive", noise="none"), False),
        "exclusive, and nothing is said": (Wish("2", policy="exclusive"), False),
        "not exclusive": (Wish("2", policy="share", noise="quiet"), False),
    },
)
def test_quiet_cpus_are_those_of_exclusive_containers_that_ask_for_it(wish: Wish, found: bool) -> None:
    """Quiet CPUs are those of exclusive containers with `noise-policy: quiet`, and their idle siblings."""
    node = World(SNC)
    node.create("a", [wish])
    held = union_of(node)
    assert quiet_cpus(node.ledger) == (held if found else EMPTY)


@table(
    "noise, is_crio, found",
    {
        "under another runtime": (None, False, True),
        "CRI-O follows it itself": (None, True, False),
        "corepin's word counts first": ("none", False, False),
        "corepin's word under CRI-O": ("quiet", True, True),
    },
)
def test_crios_annotation_means_quiet_under_other_runtimes(
    noise: str | None, is_crio: bool, found: bool
) -> None:
    """CRI-O's interrupt annotation makes CPUs quiet, except under CRI-O, which moves the interrupts itself."""
    node = World(SNC)
    node.create("a", [Wish("2", policy="exclusive", noise=noise)])
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
        node.create("a", [Wish("2", policy="exclusive", noise=word)])
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


@table(
    "original, node, near, wanted",
    {
        "the quiet bits go": ("0-7", quiet("4-5"), "", "0-3,6-7"),
        "nothing to do": ("0-1", quiet("4-5"), "", "0-1"),
        "to all others": ("4", quiet("4-5"), "", "0-3,6-7"),
        "to others of its NUMA node": ("4", quiet("4-5"), "4-7", "6-7"),
        "not all to a single CPU": ("4", quiet("4-6"), "4-7", "0-3,7"),
        "its other CPU is offline": ("3-4", quiet("4", "0-2,4-7"), "", "0-2,5-7"),
        "it is offline, and not on quiet CPUs": ("3", quiet("4", "0-2,4-7"), "", "3"),
    },
)
def test_an_interrupt_goes_to_other_cpus(original: str, node: Quiet, near: str, wanted: str) -> None:
    """An interrupt keeps the CPUs of its affinity that are not quiet; if none is online it goes to other CPUs."""
    assert away(cpus(original), node, cpus(near)) == cpus(wanted)


def beside(stay: str, home: str = "", online: str = "0-7") -> Quiet:
    """Return quiet CPUs 4-6, on some of which an interrupt may stay."""
    return Quiet(cpus("4-6"), cpus(online), Stay(cpus(stay), cpus(home)))


@table(
    "original, node, wanted",
    {
        "it loses other quiet CPUs": ("0-7", beside("4"), "0-4,7"),
        "it stays where it is": ("4", beside("4"), "4"),
        "it gets none in addition": ("0-1", beside("4"), "0-1"),
        "nor where it loses all": ("5", beside("4"), "0-3,7"),
        "a device's fires at home alone": ("0-7", beside("4-5", "4-5"), "4-5"),
        "on those that it has there": ("0-4", beside("4-5", "4-5"), "4"),
        "or on all": ("0-1", beside("4-5", "4-5"), "4-5"),
        "that are online": ("0-1", beside("4-5", "4-5", "0-4,6"), "4"),
        "if any is": ("0-7", beside("4-5", "4-5", "0-3,6-7"), "0-5,7"),
    },
)
def test_an_interrupt_that_is_kept_uses_the_cpus_of_its_container(
    original: str, node: Quiet, wanted: str
) -> None:
    """A kept interrupt may stay on its container's quiet CPUs, and a device's interrupts are bound to them."""
    assert away(cpus(original), node) == cpus(wanted)


@table(
    "now, node, is_foreign",
    {
        "at home": ("4-5", beside("4-5", "4-5"), False),
        "moved away from home": ("0-1", beside("4-5", "4-5"), True),
        "moved to another quiet CPU": ("6", beside("4"), True),
        "moved to its container": ("4", beside("4"), False),
        "moved among others": ("0", beside("4"), False),
    },
)
def test_moves_against_the_policy_are_foreign(now: str, node: Quiet, is_foreign: bool) -> None:
    """A move by another program that breaks no policy counts as the choice of an operator or driver, not as foreign."""
    taken = Taken(cpus("0-7"), (cpus("4-7"),), "eth0")
    assert decide(cpus(now), taken, node, proven=cpus("4-7")).is_foreign is is_foreign


def test_policies_change_while_interrupts_are_taken() -> None:
    """The original affinity of an interrupt survives changes of policy, and is restored at the end."""
    taken = Taken(cpus("0-7"), (cpus("0-3,7"),), "eth0")
    home = decide(cpus("0-3,7"), taken, beside("4-5", "4-5"))
    assert home == Decision(Taken(cpus("0-7"), (cpus("0-3,7"), cpus("4-5")), "eth0"), cpus("4-5"))
    assert home.taken
    assert decide(cpus("4-5"), home.taken, quiet("")) == Decision(None, cpus("0-7"))
    assert decide(cpus("4-5"), home.taken, beside("4")).write == cpus("0-4,7")


@given(SOME, SETS, SETS, SOME, st.booleans())
def test_a_kept_interrupt_fires_on_quiet_cpus_of_its_containers_alone(
    original: CPUSet, shut: CPUSet, may: CPUSet, up: CPUSet, has_home: bool
) -> None:
    """Of quiet CPUs a kept interrupt uses only its containers', and it never loses its last online CPU."""
    stay = Stay(may & shut, may & shut if has_home else EMPTY)
    node = Quiet(shut, up, stay)
    wanted = away(original, node)
    if hindrance(node) or original.isdisjoint(up):
        return
    assert not wanted.isdisjoint(up)
    assert wanted.isdisjoint((shut - stay.may) & up)
    if not node.home:
        assert (wanted & shut) <= original


OURS = Taken(cpus("0-7"), (cpus("0-3,6-7"),), "eth0")


@table(
    "now, taken, node, facts, decision",
    {
        "not on quiet CPUs": ("0-3", None, quiet("4-5"), {}, Decision(None)),
        "taken": (
            "0-7",
            None,
            quiet("4-5"),
            {},
            Decision(Taken(cpus("0-7"), (cpus("0-3,6-7"),)), cpus("0-3,6-7")),
        ),
        "may not be taken": ("0-7", None, quiet("4-5"), {"may_take": False}, Decision(None)),
        "done already": ("0-3,6-7", OURS, quiet("4-5"), {}, Decision(OURS)),
        "given back": ("0-3,6-7", OURS, quiet(""), {}, Decision(None, cpus("0-7"))),
        "a part is given back": (
            "0-3,6-7",
            OURS,
            quiet("4"),
            {"may_take": False},
            Decision(Taken(cpus("0-7"), (cpus("0-3,6-7"), cpus("0-3,5-7")), "eth0"), cpus("0-3,5-7")),
        ),
        "more is taken": (
            "0-3,6-7",
            OURS,
            quiet("4-6"),
            {},
            Decision(Taken(cpus("0-7"), (cpus("0-3,6-7"), cpus("0-3,7")), "eth0"), cpus("0-3,7")),
        ),
        "no more may be taken": ("0-3,6-7", OURS, quiet("4-6"), {"may_take": False}, Decision(OURS)),
        "another program chose other CPUs": ("0-1", OURS, quiet("4-5"), {}, Decision(None)),
        "and is not overwritten afterwards": ("0-1", OURS, quiet(""), {}, Decision(None)),
        "after the order was read back": (
            "0-1",
            OURS,
            quiet("4-5"),
            {"proven": cpus("0-3,6-7")},
            Decision(None),
        ),
        "another program moved it back": (
            "5",
            OURS,
            quiet("4-5"),
            {"proven": cpus("0-3,6-7")},
            Decision(Taken(cpus("5"), (cpus("0-3,6-7"),), "eth0"), cpus("0-3,6-7"), is_foreign=True),
        ),
        "and may not be taken again": (
            "5",
            OURS,
            quiet("4-5"),
            {"proven": cpus("0-3,6-7"), "may_take": False},
            Decision(None, None, is_foreign=True),
        ),
        "the write never happened": ("0-7", OURS, quiet(""), {}, Decision(None)),
        "its original is offline": (
            "0-3",
            Taken(cpus("4"), (cpus("0-3"),)),
            quiet("", "0-3"),
            {},
            Decision(Taken(cpus("4"), (cpus("0-3"),))),
        ),
    },
)
def test_a_decision(
    now: str, taken: Taken | None, node: Quiet, facts: dict[str, CPUSet], decision: Decision
) -> None:
    """The agent changes or restores an interrupt only while its affinity is one that the agent wrote."""
    assert decide(cpus(now), taken, node, **facts) == decision  # type: ignore[arg-type]


DEFAULT = Taken(cpus("0-7"), (cpus("0-3,6-7"),))
MOVING = Taken(cpus("0-7"), (cpus("0-3,6-7"), cpus("0-4,7")))


@table(
    "now, default, online, near, original",
    {
        "all that it lost": ("0-3,6-7", DEFAULT, "0-7", "", "0-7"),
        "of its NUMA node": ("6-7", DEFAULT, "0-7", "4-7", "4-7"),
        "its NUMA node has no other CPU": ("0-3,6-7", DEFAULT, "0-7", "4-5", "4-5"),
        "of the online CPUs": ("0-3,7", DEFAULT, "0-5,7", "", "0-5,7"),
        "allocated, not started": ("0-3,6-7", DEFAULT, "0-5,7", "", "0-7"),
        "it lost nothing, because the others are offline": ("0-2", DEFAULT, "0-2", "", None),
        "it lost nothing": ("0-1", DEFAULT, "0-7", "0-1", None),
        "chosen by another program": ("2", DEFAULT, "0-7", "", None),
        "not by the default": ("0-7", DEFAULT, "0-7", "", None),
        "the default is not narrowed": ("0-3", None, "0-7", "", None),
        "while the agent was killed in between, the new one": ("0-4,7", MOVING, "0-7", "", "0-7"),
        "or the old one": ("0-3,6-7", MOVING, "0-7", "", "0-7"),
    },
)
def test_an_interrupt_requested_under_a_narrow_default(
    now: str, default: Taken | None, online: str, near: str, original: str | None
) -> None:
    """An interrupt requested under a narrowed default affinity is recorded with the original default to restore."""
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
