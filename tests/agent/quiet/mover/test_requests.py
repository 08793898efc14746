"""Interrupts that drivers free and request during a round."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.errors import Gone
from agent.quiet.interrupts import DEFAULT
from agent.quiet.mover import Moved
from tests.agent.quiet.fakes import cpus
from tests.agent.quiet.mover.scene import Node


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Return a node with four interrupts and no quiet CPUs."""
    return Node(tmp_path, irq25="0-7", irq26="4", irq27="0-1", irq28="5-6")


def test_number_that_is_used_again_within_a_round_gets_the_default(node: Node) -> None:
    """An interrupt that is requested during the round does not get the original of an earlier one with its number."""
    node.round("4-5")
    node.kernel.events.append(lambda: node.kernel.request("26", "another"))
    node.round()
    assert node.shown()["26"] == "0-3,6-7"
    node.round()
    assert node.shown()["26"] == "0-7"
    assert not node.mover.has_taken


@pytest.mark.parametrize("restarts", [True, False])
def test_interrupt_that_is_requested_while_the_default_is_widened_gets_it_too(
    node: Node, restarts: bool
) -> None:
    """An interrupt requested while the default is widened gets the wider one in the next round, of any agent."""
    node.round("4-6")
    node.kernel.events.append(lambda: node.kernel.request("40", "eth1"))
    node.round("5")
    assert node.shown()["40"] == "0-3,7"
    if restarts:
        node.start()
    node.round("5")
    assert node.shown()["40"] == "0-4,6-7"
    node.kernel.events.append(lambda: node.kernel.request("41", "eth2"))
    node.round()
    assert (node.shown()["40"], node.shown()["41"]) == ("0-7", "0-4,6-7")
    if restarts:
        node.start()
    node.round()
    assert node.shown()["41"] == "0-7"
    assert list(node.folder.iterdir()) == []


def test_default_of_before_it_was_widened_is_remembered_for_one_round(node: Node) -> None:
    """The default before the last widening is remembered for one round only, because others may choose its CPUs."""
    node.round("4-6")
    node.kernel.events.append(lambda: node.kernel.request("40", "eth1"))
    for _ in range(2):
        node.round("5")
    node.kernel.affinities[DEFAULT] = cpus("0-3,7")
    node.round()
    assert node.shown()[DEFAULT] == "0-3,7"


def test_number_whose_driver_requests_it_while_the_default_is_widened_gets_it_too(node: Node) -> None:
    """An existing number that a driver requests while the default is widened gets the wider default."""
    node.round("4-5")
    node.kernel.request("40", "")
    node.kernel.events.append(lambda: node.kernel.names.update({"40": "eth1"}))
    node.round()
    node.round()
    assert node.shown()["40"] == "0-7"
    assert not node.mover.has_taken


def test_number_that_is_freed_while_the_default_is_widened_is_no_error(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number that is freed while the default is widened is no error; the next round finds its interrupt."""
    node.round("4-5")
    node.kernel.request("40", "")
    known = node.kernel.name

    def name(number: str) -> str:
        if number == "40" and node.kernel.affinities[DEFAULT] == cpus("0-7"):
            raise Gone(number)
        return known(number)

    monkeypatch.setattr(node.kernel, "name", name)
    assert node.round() == Moved()
    assert node.mover.has_taken
    monkeypatch.undo()
    node.round()
    assert not node.mover.has_taken


def test_interrupt_that_is_requested_during_a_restore_gets_the_default(node: Node) -> None:
    """A restore reads the interrupts once more, because no later round would find a new one."""
    node.round("4-5")
    node.kernel.events += [lambda: None, lambda: node.kernel.request("40", "eth1")]
    assert node.mover.restore()
    assert node.shown()["40"] == "0-7"
