"""The nodes that `--all-hosts` and `--host-list` choose."""

from __future__ import annotations

from typing import Any

import pytest

from corepin.cmk.install import chosen_nodes
from corepin.errors import CommandFailed


def node(name: str, system: str = "linux", **spec: Any) -> dict[str, Any]:
    """Return a node."""
    return {"metadata": {"name": name, "labels": {"kubernetes.io/os": system}}, "spec": spec}


NODES = [node("b"), node("a"), node("cordoned", unschedulable=True), node("other", "windows")]


def test_an_installation_leaves_out_nodes_that_take_no_pods() -> None:
    """Without names all Linux nodes are chosen that are not cordoned."""
    assert chosen_nodes(NODES, ()) == ("a", "b")
    assert chosen_nodes(NODES, ("cordoned",)) == ("cordoned",)


def test_a_cordoned_node_is_uninstalled_too() -> None:
    """Without names all nodes that have an agent are uninstalled, because what remains on a node is not deleted later."""
    assert chosen_nodes(NODES[:3], (), every=True) == ("a", "b", "cordoned")
    assert chosen_nodes(NODES, ("b",), every=True) == ("b",)


@pytest.mark.parametrize(
    ("every", "problem"),
    [(False, "no Linux node takes pods now"), (True, "no node has the label corepin.io/agent=true")],
)
def test_no_node_is_an_error(every: bool, problem: str) -> None:
    """The error says which nodes were looked for."""
    with pytest.raises(CommandFailed, match=f"^--all-hosts: {problem}"):
        chosen_nodes([], (), every=every)
