"""The choices of `choices.txt`: the kubelet's worked examples, Nova's and CMK's, and cases derived by hand from the rules.

A section has the rule that its rows show, and the function with the options of all of them. A row has the machine (one
of tests.pinning.machines, or its cores), the free CPUs, the claim, the choice (`running/idle` CPUs for `place`) or the
refusal, and what is special about it. Of a claim, `keep=` and `held=` are `running+idle` CPUs. Every choice was worked
out on paper; sizes of units are counted.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pinning.allocation import Placement, place, take_cores, take_cpus
from pinning.allocation.packed import tables_of
from pinning.contract import NUMAPolicy, SMTPolicy
from pinning.errors import NotEnoughCPUs
from pinning.machine.cpuset import EMPTY, CPUSet
from tests.machines import NAMES, captured
from tests.pinning import machines
from tests.pinning.growing import as_text
from tests.pinning.machines import FLAT, ONE_OFFLINE
from tests.tables import sections

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinning.machine.topology import Topology

cpus = CPUSet.parse
OPTIONS = {"align", "distribute", "group", "held", "isolated-first", "keep", "node", "reusable", "spread"}
OPTIONS |= {*SMTPolicy, *NUMAPolicy}


def rows() -> Iterator[Any]:
    """Yield the rows: function, machine, free CPUs, claim, choice."""
    for heading, (machine, free, claim, choice, case) in sections(Path(__file__).with_name("choices.txt")):
        rule, _, call = heading.removesuffix("]").partition(" [")
        function, _, common = call.partition(" ")
        words = (function, machine, free, f"{claim} {common}", choice.replace("none", ""))
        yield pytest.param(*words, id=f"{rule.removesuffix('.')}: {case}")


@pytest.mark.parametrize(("function", "machine", "free", "claim", "choice"), list(rows()))
def test_choice(function: str, machine: str, free: str, claim: str, choice: str) -> None:
    """A claim gets the CPUs of its row, or the refusal."""
    count, *options = claim.split()
    topology, given = on_machine(machine, options)
    available = within(topology, free)
    if not choice.startswith("wanted"):
        assert chosen(function, topology, available, int(count), given) == choice
        return
    with pytest.raises(NotEnoughCPUs) as refused:
        chosen(function, topology, available, int(count), given)
    assert str(refused.value) == choice


def on_machine(name: str, options: list[str]) -> tuple[Topology, dict[str, str]]:
    """Return the machine after the options that change it, and the other options."""
    given = dict(option.partition("=")[::2] for option in options)
    assert given.keys() <= OPTIONS | {"isolated", "offline"}
    topology = captured(name) if name in NAMES else getattr(machines, name, None)
    topology = topology or machines.machine_of_cores(*name.split())
    topology = replace(topology, isolated=topology.isolated | cpus(given.pop("isolated", "")))
    return topology.with_online(topology.online - cpus(given.pop("offline", ""))), given


def within(topology: Topology, free: str) -> CPUSet:
    """Return the free CPUs: a list of them, `all`, `none`, or all `but` a list."""
    word, _, out = free.partition(" ")
    if word in ("all", "but"):
        return topology.cpus - cpus(out)
    return cpus(free.replace("none", "")) & topology.cpus


def chosen(function: str, topology: Topology, available: CPUSet, count: int, given: dict[str, str]) -> str:
    """Return what the allocator chooses."""
    spread = {"sort" if function != "cores" else "mode": "spread"} if "spread" in given else {}
    options: dict[str, Any] = spread
    if function == "cores":
        options |= {"prefer_isolated": "isolated-first" in given, "keep": cpus(given.get("keep", ""))}
        return str(take_cores(topology, available, count, **options))
    options |= {"align_uncore": "align" in given, "distribute": "distribute" in given}
    options["reusable"] = cpus(given.get("reusable", ""))
    if function == "take":
        nodes = cpus(given.get("node", ""))
        return taken(topology, available, count, nodes, options | {"group_size": int(given.get("group", 1))})
    for name in given:
        if name in set(SMTPolicy):
            options["smt"] = SMTPolicy(name)
        if name in set(NUMAPolicy):
            options["numa_policy"] = NUMAPolicy(name)
    options |= {word: placement(given[word]) for word in ("keep", "held") if word in given}
    return as_text(place(topology, available, count, **options))


def taken(topology: Topology, available: CPUSet, count: int, nodes: CPUSet, options: dict[str, Any]) -> str:
    """Return the kubelet's choice, which is the same for a hint to NUMA nodes as ids and as CPUs."""
    if not nodes:
        return str(take_cpus(topology, available, count, **options))
    hint = CPUSet(cpu for node in nodes for cpu in topology.numa_nodes[node])
    by_id = take_cpus(topology, available, count, numa=frozenset(nodes), **options)
    assert by_id == take_cpus(topology, available, count, numa=hint, **options)
    return str(by_id)


def placement(text: str) -> Placement:
    """Return a placement of running and idle CPUs."""
    running, _, idle = text.partition("+")
    return Placement(cpus(running), cpus(idle))


def test_an_offline_cpu_is_not_available() -> None:
    """CPUs that the kernel does not run are not counted as free."""
    with pytest.raises(NotEnoughCPUs, match="wanted 8 CPUs, 7 are free") as refused:
        take_cpus(ONE_OFFLINE, ONE_OFFLINE.cpus, 8)
    assert (refused.value.wanted, refused.value.found) == (8, 7)


@pytest.mark.parametrize(
    ("count", "group"), [pytest.param(-1, 1, id="count"), pytest.param(1, 0, id="group")]
)
def test_a_wrong_number_is_the_callers_bug(count: int, group: int) -> None:
    """A negative count, and an empty group, are programming errors, not refusals."""
    with pytest.raises(ValueError, match=r"count -?1 must be 0 or more"):
        take_cpus(FLAT, FLAT.cpus, count, group_size=group)


def test_tables_belong_to_one_topology() -> None:
    """Tables that are computed for a machine are not used after CPUs go offline or online."""
    assert tables_of(FLAT) is tables_of(FLAT)
    assert tables_of(FLAT.with_online(cpus("0-3"))).online == cpus("0-3").mask
    assert take_cpus(FLAT.with_online(EMPTY), FLAT.cpus, 0) == EMPTY


@pytest.mark.parametrize("act", [place, take_cores])
def test_a_negative_count_is_the_callers_bug(act: object) -> None:
    """A negative count is a programming error, not a refusal."""
    assert callable(act)
    with pytest.raises(ValueError, match="count -1 must be 0 or more"):
        act(FLAT, FLAT.cpus, -1)
