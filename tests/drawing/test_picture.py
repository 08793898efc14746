"""The drawn picture: golden files of real machines, and property tests."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing.floorplan import LAYOUTS, Drawing, Layout
from drawing.picture import Holder, Picture, draw, reading_order
from drawing.policy_words import devices_on
from drawing.spans import Span, paint, width_of
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.topology import EFFICIENCY, PERFORMANCE, Topology
from tests.machines import captured
from tests.strategies import cpu_sets, topologies

if TYPE_CHECKING:
    from collections.abc import Sequence

GOLDEN = Path(__file__).parents[1] / "data/pictures"


def machine(name: str) -> Topology:
    """Return a captured machine; core types, which lscpu does not print, are derived from threads per core."""
    read = captured(name)
    types = {1: EFFICIENCY, 2: PERFORMANCE} if name.startswith("core-") else {}
    cores = tuple(replace(core, core_type=types.get(len(core.cpus))) for core in read.cores)
    return replace(read, cores=cores)


def filled(topology: Topology, cores_of_owners: Sequence[int]) -> Picture:
    """Reserve the first core, and assign the next ones to owners; every third owner keeps siblings idle."""
    cores = iter(topology.cores)
    reserved = next(cores).cpus
    owners = []
    for number, count in enumerate(cores_of_owners):
        taken = CPUSet(cpu for core in islice(cores, count) for cpu in core.cpus)
        firsts = CPUSet(core.id for core in topology.cores_of(taken))
        cpus = firsts if number % 3 == 2 else taken
        owners.append(Holder(f"default/web-{number}-7f9c8d/app", cpus, taken - cpus))
    shared = CPUSet(cpu for core in cores for cpu in core.cpus) - topology.isolated
    return Picture(topology, tuple(owners), reserved, shared)


@pytest.mark.parametrize(
    ("name", "width", "owners"),
    [
        pytest.param("t2-micro", 40, [], id="1-cpu"),
        pytest.param("xeon-d-1541", 40, [1, 2, 2], id="16-cpus-narrow"),
        pytest.param("core-ultra-9-185h", 80, [2, 1, 2, 3], id="hybrid"),
        pytest.param("azure-f72s-v2", 40, [2, 1, 2, 3], id="72-cpus-narrow"),
        pytest.param("power9-ac922", 120, [1, 3, 2, 5], id="smt4"),
        pytest.param("epyc-7742-nps4", 120, [2, 4, 8, 1, 16], id="8-nodes"),
        pytest.param("epyc-9754", 80, [1, 4, 2] * 12, id="512-cpus"),
        pytest.param("epyc-9754", 200, [8, 16, 32], id="512-cpus-wide"),
    ],
)
def test_golden(name: str, width: int, owners: list[int]) -> None:
    """Pictures of real machines equal the golden files, which `python -m tests.drawing.test_picture` writes."""
    drawn = draw(filled(machine(name), owners), width, colour=False)

    assert drawn == (GOLDEN / f"{name}-{width}.txt").read_text()


@st.composite
def pictures(draw_value: st.DrawFn) -> Picture:
    """Return any machine with any sets, overlapping or not, of up to 40 owners with names of any length."""
    topology = draw_value(topologies())
    cpus = cpu_sets(topology.cpus)
    names = st.text("abcdefgh-/0", min_size=1, max_size=90)
    owners = draw_value(st.lists(st.builds(Holder, names, cpus, cpus), max_size=40))
    pools = draw_value(st.lists(st.tuples(st.just("rt"), cpus), max_size=5))
    return Picture(topology, tuple(owners), draw_value(cpus), draw_value(cpus), tuple(pools))


@given(pictures(), st.integers(40, 200))
def test_no_line_is_too_wide(picture: Picture, width: int) -> None:
    """No line of any picture exceeds the width or has trailing blanks."""
    lines = draw(picture, width, colour=False).splitlines()

    assert max(map(len, lines)) <= width
    assert lines == [line.rstrip() for line in lines]


@given(pictures(), st.integers(40, 200))
def test_colour_says_nothing_new(picture: Picture, width: int) -> None:
    """Without its escape sequences the coloured picture is the plain one."""
    coloured = draw(picture, width, colour=True)

    plain = re.sub(r"\033\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in plain.splitlines()] == draw(picture, width, colour=False).splitlines()


@settings(max_examples=50)
@given(topologies(), st.integers(40, 200), st.sampled_from(LAYOUTS))
def test_every_cpu_is_drawn_once(topology: Topology, width: int, layout: Layout) -> None:
    """Every layout draws each CPU once, within the width."""
    labels = ["".join(letters) for letters in islice(product(ascii_uppercase, repeat=3), len(topology.cpus))]
    cells = {cpu: Span(label) for cpu, label in zip(topology.cpus, labels, strict=True)}

    lines = Drawing(topology, cells, width, layout).lines()

    assert sorted(re.findall(r"\b[A-Z]{3}\b", paint(lines, colour=False))) == labels
    assert max(width_of(line) for line in lines) <= width + 3  # trailing blanks, which paint strips


@given(topologies(), st.integers(40, 200))
def test_siblings_stand_below_each_other(topology: Topology, width: int) -> None:
    """All CPUs of a core are drawn in one column."""
    labels = {core.id: f"Q{place:03}" for place, core in enumerate(topology.cores)}
    cells = {cpu: Span(labels[core.id]) for core in topology.cores for cpu in core.cpus}

    drawn = paint(Drawing(topology, cells, width, LAYOUTS[1]).lines(), colour=False)

    for label in labels.values():
        assert len({line.index(label) for line in drawn.splitlines() if label in line}) == 1


def test_core_with_fewer_threads_leaves_a_blank() -> None:
    """If cores of one and of two threads share a cache and have no types, the columns stay aligned."""
    drawn = draw(filled(captured("core-ultra-9-185h"), [2]), 80, colour=False)

    assert "   0 #   1 A   3 A   6 .   8 .  10 .| 12 .\n   5 #   2 A   4 A   7 .   9 .  11 .|\n" in drawn


def test_what_a_cell_shows() -> None:
    """Each state has its own sign; offline takes precedence over owners, and the first owner over others."""
    topology = machine("xeon-d-1541").with_online(CPUSet.parse("0-6,8-15"))
    picture = Picture(
        Topology(topology.cores, topology.online, isolated=CPUSet.parse("5-6")),
        owners=(Holder("ns/a/c", CPUSet.parse("1,7"), CPUSet([9])), Holder("ns/b/c", CPUSet.parse("1-2,10"))),
        reserved=CPUSet.parse("0,8"),
        shared=CPUSet.parse("0,3,11"),
        pools=(("rt", CPUSet.parse("4,12")),),
    )

    drawn = draw(picture, 80, colour=False)

    assert drawn.splitlines()[2:] == [
        "socket 0, NUMA node 0, cache 0",
        "   0 #   1 A   2 B   3 .   4 =   5 +   6 +   7 -",
        "   8 #   9 a  10 B  11 .  12 =  13 ?  14 ?  15 ?",
        "",
        "A  ns/a/c          2 CPUs  1,7  1 idle (a)  9",
        "B  ns/b/c          3 CPUs  1-2,10",
        "-  offline         1 CPU   7",
        "#  reserved        2 CPUs  0,8",
        "=  pool rt         2 CPUs  4,12",
        ".  shared          3 CPUs  0,3,11",
        "+  isolated, free  2 CPUs  5-6",
        "?  not for pods    3 CPUs  13-15",
    ]


def test_an_owner_that_shares_is_marked() -> None:
    """An owner that shares its CPUs is marked, has no bold letter, and its CPUs are in the shared set."""
    owners = (Holder("ns/a/c", CPUSet([1])), Holder("ns/b/c", CPUSet([2]), shares=True))
    picture = Picture(machine("xeon-d-1541"), owners, shared=CPUSet.parse("2-15"))

    drawn = draw(picture, 80, colour=True)

    assert "\033[1;32mA\033[0m  ns/a/c           1 CPU   1\n" in drawn
    assert "\033[33mB\033[0m  ns/b/c (share)   1 CPU   2\n" in drawn
    assert "shared          14 CPUs  2-15\n" in drawn


def test_names_are_in_reading_order() -> None:
    """Names are sorted with their numbers compared as numbers, of any length."""
    names = ["ns/p10/c", "ns/p2/c", "ns/p2/b", "10", "9" * 5000, "2", "a"]

    assert sorted(names, key=reading_order) == [
        "2",
        "10",
        "9" * 5000,
        "a",
        "ns/p2/b",
        "ns/p2/c",
        "ns/p10/c",
    ]


def test_more_than_26_owners_have_two_letters() -> None:
    """From 27 owners on, every label and sign has two places."""
    topology = machine("xeon-e5-2660v2")
    owners = tuple(Holder(f"ns/{cpu}/c", CPUSet([cpu])) for cpu in range(27))

    drawn = draw(Picture(topology, owners, shared=CPUSet.parse("27-39")), 80, colour=False)

    assert "BA  ns/26/c   1 CPU   26" in drawn
    assert "..  shared   13 CPUs  27-39" in drawn


def test_a_name_too_long_for_its_column_stands_alone() -> None:
    """CPUs are on the line below a name longer than half a line; a name longer than a line is wrapped."""
    topology = machine("xeon-d-1541")
    owner = Holder("n" * 100, CPUSet.parse("1,3,5,7,9,11"))

    drawn = draw(Picture(topology, (owner,), shared=CPUSet([0])), 60, colour=False)

    assert drawn.splitlines()[6:9] == ["A  " + "n" * 57, "   " + "n" * 43, " " * 35 + "6 CPUs  1,3,5,7,9,11"]


def test_cells_bear_colour_only_on_demand() -> None:
    """With colour an owner's letter is bold in its colour, and its idle siblings are plain in the same colour."""
    picture = Picture(machine("xeon-d-1541"), (Holder("ns/a/c", CPUSet([1]), CPUSet([9])),), EMPTY)

    drawn = draw(picture, 80, colour=True)

    assert "\033[1;32mA\033[0m" in drawn
    assert "\033[32ma\033[0m" in drawn


if __name__ == "__main__":
    for case in test_golden.pytestmark[0].args[1]:  # type: ignore[attr-defined]
        name, width, owners = case.values
        (GOLDEN / f"{name}-{width}.txt").write_text(draw(filled(machine(name), owners), width, colour=False))


def test_numa_nodes_bear_the_devices_there() -> None:
    """The title of a NUMA node has the names of its devices, with control characters escaped."""
    on_nodes = devices_on([("nvidia.com/gpu", (0, 1)), ("a\x1b/nic", (1,)), ("nvidia.com/gpu", (1,))])
    picture = Picture(machine("xeon-6248-snc2"), devices=on_nodes)
    drawn = draw(picture, 120, colour=False)
    assert "socket 0, NUMA node 0, cache 0, devices nvidia.com/gpu\n" in drawn
    (title,) = (line for line in drawn.splitlines() if "NUMA node 1," in line)
    assert title.endswith("/nic, nvidia.com/gpu")
    assert "\x1b" not in drawn
    assert drawn.count("devices") == 2
    assert devices_on((f"e.com/{name}", (0,)) for name in "edcba") == {
        0: "devices e.com/a, e.com/b, e.com/c and 2 more"
    }
