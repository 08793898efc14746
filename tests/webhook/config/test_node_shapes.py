"""The shapes of nodes, read from their annotations: joined to kinds, with invalid texts ignored."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from pinning.machine.cpuset import CPUSet
from pinning.machine.topology import BadTopology
from published.codec import AnotherVersion
from tests.environments.process.tree import regular
from tests.strategies import topologies
from tests.webhook.machine_texts import machine_text
from webhook.config.node_shapes import (
    LONGEST_TEXT,
    CoreShape,
    NodeShapes,
    kinds,
    load_shapes,
    read_core_shape,
)
from webhook.config.settings import NodeShape
from webhook.metrics import NodeMeter


class Known:
    """The known node shapes and their metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.shapes = NodeShapes(NodeMeter(self.registry))

    def take(self, texts: dict[str, str | None]) -> None:
        """Replace all nodes by these topology annotations."""
        self.shapes.replace({name: self.shapes.machine_of(name, text) for name, text in texts.items()})

    @property
    def kinds(self) -> list[tuple[str, int, int]]:
        """Return name, cores and threads per core of each kind of node in service."""
        return [(it.name, it.cores, it.threads_per_core) for it in load_shapes(self.shapes.read())]

    def metric(self, name: str) -> float | None:
        """Return one sample."""
        return self.registry.get_sample_value(f"corepin_webhook_{name}")


@given(topologies())
def test_what_the_agent_writes_is_read(topology: Any) -> None:
    """A shape has the number of cores with an online CPU, and the most online threads of any core."""
    widths = [len(core.cpus & topology.online) for core in topology.cores]
    expected = CoreShape(threads=max(widths), cores=sum(map(bool, widths)))
    assert read_core_shape(json.dumps(topology.to_dict())) == expected


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
WRONG = (AnotherVersion, BadTopology)
KEYS = list(regular(4).to_dict())


@given(st.dictionaries(st.sampled_from(KEYS), json_values, max_size=3), st.sets(st.sampled_from(KEYS)))
def test_damage_is_refused_or_harmless(changed: dict[str, Any], missing: set[str]) -> None:
    """A damaged topology is refused, or read as a machine of 1 to 8192 cores with as many threads at most."""
    saved = regular(4).to_dict() | changed
    text = json.dumps({name: value for name, value in saved.items() if name not in missing})
    try:
        read = read_core_shape(text)
    except WRONG:
        return
    assert 1 <= read.cores <= 8192
    assert 1 <= read.threads <= 8192


@given(st.text(max_size=50))
def test_any_text_is_refused_as_a_bad_topology(text: str) -> None:
    """An annotation may hold anything: nothing but two errors comes of it."""
    with pytest.raises(WRONG):
        read_core_shape(text)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[" * 60_000, id="deep"),
        pytest.param("null", id="null"),
        pytest.param("[]", id="a list"),
        pytest.param("{}", id="empty"),
        pytest.param("x" * (LONGEST_TEXT + 1), id="long"),
        pytest.param(machine_text(2, cores=["0-99999999999"]), id="CPUs that no kernel numbers"),
        pytest.param(machine_text(2, cores=["0,2", "0-3", "1,3"]), id="a CPU in two cores"),
        pytest.param(machine_text(2, online=""), id="nothing online"),
        pytest.param(machine_text(2, cores=["", "0,2", "1,3"]), id="an empty core"),
        pytest.param(machine_text(2, cores=[]), id="no cores"),
        pytest.param(machine_text(2, packages={"9" * 5000: "0-3"}), id="a number without end"),
        pytest.param("\ud800", id="a lone surrogate"),
    ],
)
def test_nonsense_is_refused(text: str) -> None:
    """A text that is not a valid topology is refused, however large the numbers in it."""
    with pytest.raises(WRONG):
        read_core_shape(text)


def test_siblings_that_are_offline_do_not_count() -> None:
    """With SMT switched off a core has one thread; a core without any is no core."""
    assert read_core_shape(machine_text(4, online=str(CPUSet.parse("0-2")))) == CoreShape(threads=1, cores=3)


@pytest.mark.parametrize(
    ("machines", "expected"),
    [
        pytest.param({}, (), id="none"),
        pytest.param(
            {"b": CoreShape(2, 8), "a": CoreShape(2, 8)},
            (NodeShape(name="node a", cores=8, threads_per_core=2),),
            id="one kind, named after its first node",
        ),
        pytest.param(
            {"small": CoreShape(2, 4), "big": CoreShape(2, 8)},
            (NodeShape(name="node big", cores=8, threads_per_core=2),),
            id="the larger one can hold all",
        ),
        pytest.param(
            {"wide": CoreShape(8, 4), "many": CoreShape(1, 64), "less": CoreShape(1, 3)},
            (
                NodeShape(name="node wide", cores=4, threads_per_core=8),
                NodeShape(name="node many", cores=64, threads_per_core=1),
            ),
            id="more threads, or more cores",
        ),
        pytest.param(
            {"wide": CoreShape(2, 64), "narrow": CoreShape(1, 3)},
            (
                NodeShape(name="node wide", cores=64, threads_per_core=2),
                NodeShape(name="node narrow", cores=3, threads_per_core=1),
            ),
            id="a small node is told, where its cores have another width",
        ),
    ],
)
def test_kinds_that_matter(machines: dict[str, CoreShape], expected: tuple[NodeShape, ...]) -> None:
    """For each number of threads per core only the largest machine is kept, because smaller ones fit no more."""
    assert kinds(machines) == expected


@given(
    st.dictionaries(st.text("ab", min_size=1), st.builds(CoreShape, st.integers(1, 8), st.integers(1, 20))),
    st.integers(1, 30),
)
def test_no_kind_that_is_left_out_could_hold_more(machines: dict[str, CoreShape], cpus: int) -> None:
    """Whole cores for any count of CPUs fit one of the node shapes if and only if they fit one of the machines."""

    def fits(cores: int, threads: int) -> bool:
        return -(-cpus // threads) <= cores - 1

    assert any(fits(it.cores, it.threads_per_core) for it in kinds(machines)) == any(
        fits(machine.cores, machine.threads) for machine in machines.values()
    )


def test_node_changes_are_seen_at_once() -> None:
    """A node that is added, changes or is deleted is seen at once; a node without the annotation is unknown."""
    known = Known()
    assert known.kinds == []
    known.take({"a": machine_text(4), "b": None})
    assert known.kinds == [("node a", 4, 2)]
    known.shapes.update("b", machine_text(8))
    assert known.kinds == [("node b", 8, 2)]
    assert known.metric("nodes_known") == 2
    known.shapes.update("b", None)
    assert known.kinds == [("node a", 4, 2)]
    known.shapes.update("never-there", None)
    known.take({})
    assert known.kinds == []
    assert known.metric("nodes_known") == 0


def test_heartbeats_build_no_new_configuration() -> None:
    """A heartbeat gives the same bytes, so that no new generation of the configuration is built."""
    known = Known()
    known.take({"a": machine_text(4)})
    before = known.shapes.read()
    known.shapes.update("a", machine_text(4))
    known.shapes.update("z", machine_text(4))
    known.shapes.update("y", machine_text(2))
    assert known.shapes.read() is before


def test_an_invalid_topology_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A node with an invalid topology is unknown; each text is logged once, with node and reason."""
    known = Known()
    with caplog.at_level(logging.WARNING, "webhook.config.node_shapes"):
        known.take({"a": machine_text(4), "b": "rubbish"})
        known.take({"a": machine_text(4), "b": "rubbish"})
        known.shapes.update("b", "rubbish")
        known.shapes.update("a", "{}")
    assert [vars(record)["facts"]["node"] for record in caplog.records] == ["b", "a"]
    assert all(len(vars(record)["facts"]["why"]) <= 200 for record in caplog.records)
    assert known.kinds == []
    assert known.metric("node_topologies_refused_total") == 2
    assert known.metric("nodes_ignored") == 2
    known.take({"b": None})
    assert known.metric("nodes_ignored") == 0
    known.shapes.update("new", "rubbish")
    assert known.metric("nodes_ignored") == 1
    known.shapes.update("new", None)
    assert known.metric("nodes_ignored") == 0
