"""Reading the topology that lscpu prints."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pinning.machine.cpuset import CPUSet
from pinning.machine.lscpu import read_lscpu
from pinning.machine.topology import BadTopology, Core
from tests.tables import table


def lscpu(*rows: dict[str, Any]) -> str:
    """Return rows as lscpu prints them."""
    return json.dumps({"cpus": list(rows)})


def test_lscpu_of_a_new_util_linux() -> None:
    """Output of util-linux 2.37 and later is read: numbers, booleans and nulls."""
    topology = read_lscpu(
        lscpu(
            {"cpu": 0, "node": 0, "socket": 0, "core": 0, "l1d:l1i:l2:l3": "0:0:0:0", "online": True},
            {"cpu": 1, "node": 1, "socket": 1, "core": 1, "l1d:l1i:l2:l3": "8:8:8:1", "online": True},
            {"cpu": 2, "node": 0, "socket": 0, "core": 0, "l1d:l1i:l2:l3": "0:0:0:0", "online": True},
            {"cpu": 3, "node": None, "socket": None, "core": None, "l1d:l1i:l2:l3": None, "online": False},
        )
    )

    assert topology.cores == (
        Core(0, CPUSet([0, 2]), package=0, numa_node=0, uncore_cache=0, l2=0),
        Core(1, CPUSet([1]), package=1, numa_node=1, uncore_cache=1, l2=1),
    )
    assert topology.online == CPUSet.parse("0-2")


def test_lscpu_of_an_old_util_linux() -> None:
    """Output of util-linux 2.34 is read: strings, yes/no and dashes; an offline CPU with a core is kept."""
    topology = read_lscpu(
        lscpu(
            {"cpu": "0", "core": "0", "online": "yes"},
            {"cpu": "1", "core": "-", "online": "no"},
            {"cpu": "2", "core": "0", "online": "no"},
        )
    )

    assert [core.cpus for core in topology.cores] == [CPUSet([0, 2])]
    assert topology.online == CPUSet([0])


def test_lscpu_with_the_least_columns() -> None:
    """CPU and CORE alone mean one package, one node, one cache, own L2, and every CPU with a core online."""
    topology = read_lscpu(lscpu({"CPU": 0, "CORE": 0}, {"CPU": 1, "CORE": 1}, {"CPU": 2, "CORE": None}))

    assert topology.online == topology.cpus == CPUSet([0, 1])
    assert [len(g) for g in (topology.packages, topology.numa_nodes, topology.uncore_caches)] == [1, 1, 1]
    assert list(topology.l2_caches) == [0, 1]


def test_lscpu_with_raw_core_ids() -> None:
    """Core ids that repeat across sockets are different cores; without a cache column each socket is a cache."""
    rows = [{"cpu": cpu, "socket": cpu // 2 * 8, "core": cpu % 2} for cpu in range(4)]

    topology = read_lscpu(lscpu(*rows))

    assert len(topology.cores) == 4
    assert topology.packages == {0: CPUSet([0, 1]), 1: CPUSet([2, 3])}
    assert topology.uncore_caches == {0: CPUSet([0, 1]), 2: CPUSet([2, 3])}


@table(
    "caches, last_level, l2",
    {
        "without a level 3, which is that of its package (Meteor Lake LP-E)": (
            {0: "0:0:0:0", 1: "32:32:8", 2: "33:33:8"}, {0: "0", 1: "1-2"}, {0: "0", 1: "1-2"},
        ),
        "without level 1: the ids are those of the outermost (Core Ultra 9 185H)": (
            {15: "6:6:0:0", 16: "1:0", 17: "10:10:1:0"}, {15: "15-17"}, {15: "15", 16: "16-17"},
        ),
    },
)  # fmt: skip
def test_lscpu_of_a_cpu_without_some_caches(
    caches: dict[int, str], last_level: dict[int, str], l2: dict[int, str]
) -> None:
    """An lscpu row drops the id of a missing cache."""
    rows = ({"cpu": cpu, "core": cpu, "l1d:l1i:l2:l3": ids} for cpu, ids in caches.items())
    topology = read_lscpu(lscpu(*rows))

    assert {at: str(cpus) for at, cpus in topology.uncore_caches.items()} == last_level
    assert {at: str(cpus) for at, cpus in topology.l2_caches.items()} == l2


def test_lscpu_with_bare_dashes() -> None:
    """Up to util-linux 2.41 an offline CPU's columns are dashes without quotes; they are read as absent."""
    text = lscpu({"cpu": 0, "core": 0, "node": None}, {"cpu": 1, "core": None, "node": None})

    assert read_lscpu(text.replace("null", "-")).online == CPUSet([0])


@table(
    "text, message",
    {
        "table": ("CPU NODE", "lscpu: not JSON .* write the file with `LC_ALL=C lscpu --all --json"),
        "list": ("[]", "no list of rows under 'cpus'"),
        "rows": ('{"cpus": [1]}', "no list of rows under 'cpus'"),
        "empty": (lscpu(), "no CPU has a known core"),
        "no-cpu": (lscpu({"core": 0}), "column CPU: None is not a number from 0 to 8191"),
        "large-cpu": (lscpu({"cpu": 9999, "core": 0}), "column CPU: 9999 is not"),
        "negative": (lscpu({"cpu": -1, "core": 0}), "column CPU: -1 is not a number"),
        "boolean": (lscpu({"cpu": 0, "core": True}), "column CORE: True is not a number"),
        "twice": (lscpu({"cpu": 0, "core": 0}, {"cpu": 0, "core": 1}), "0 stands in two rows"),
        "online": (lscpu({"cpu": 0, "core": 0, "online": "maybe"}), "ONLINE: 'maybe' is not yes"),
        "digits": (lscpu({"cpu": 0, "core": "9" * 5000}), r"column CORE: '9{59} is not a number"),
        "long id": (
            lscpu({"cpu": 0, "core": 0, "l1d:l2": "0:" + "9" * 5000}),
            "column L1D:L2: '0:9{57} is not",
        ),
        "deep": ("[" * 200_000, r"lscpu: not JSON \(nested too deeply"),
        "localized": (
            lscpu({"cpu": 0, "core": 0, "online": "ja"}),
            "ONLINE: 'ja' is not yes.* words of its user's language.* run `LC_ALL=C lscpu --all",
        ),
        "localized summary": ('{"lscpu": [{"field": "Architektur:"}]}', "write the file with `LC_ALL=C"),
        "core": (lscpu({"cpu": 0, "core": None, "online": True}), "CPU 0 is online without a core"),
        "cache": (lscpu({"cpu": 0, "core": 0, "l1d:l2": "0:x"}), "column L1D:L2: '0:x' is not"),
    },
)
def test_lscpu_refusals(text: str, message: str) -> None:
    """Each refusal names the column, its value and what to do."""
    with pytest.raises(BadTopology, match=message):
        read_lscpu(text)
