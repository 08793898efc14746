"""The default reserve of a node does not change while containers hold CPUs, whatever the agent's version."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.reconcile.checkpoint import KEYS, NAME, Saved, read
from agent.reconcile.reconciler import Settings
from agent.reconcile.reserve import start_config
from pinning.contract import ReserveSource
from pinning.json_text import parse_json
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.ledger import Ledger
from pinning.planning.ledger_json import ledger_from_dict
from pinning.planning.node_config import DEFAULT, NodeConfig, StaticPools
from tests.agent.checkpoints import written
from tests.agent.fakes import FakeNode
from tests.agent.reconcile.scenes import TWO
from tests.pinning.machines import FLAT

ISOLATED = replace(FLAT, isolated=CPUSet.parse("0,4"))  # default: 1,5; in an earlier version 0,4
OLD, NEW = (CPUSet.parse(cpus) for cpus in ("0,4", "1,5"))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """Return a node whose lowest core is isolated."""
    node = FakeNode(tmp_path / "state", ISOLATED)
    yield node
    node.close()


def reserve(node: FakeNode) -> tuple[str, ReserveSource]:
    """Run a pass; return the reserved CPUs and their source."""
    sets = node.run().sets
    return str(sets.reserved), sets.reserve_source


def saved(node: FakeNode) -> Saved:
    """Return the checkpoint of the node."""
    return read((node.folder / NAME).read_bytes(), node.machine.machine_id())


def resave(node: FakeNode, reserved: CPUSet | None) -> None:
    """Save the checkpoint with this reserve; None makes it a checkpoint of an earlier version."""
    (node.folder / NAME).write_bytes(written(replace(saved(node), reserved=reserved)))


def upgraded(node: FakeNode) -> str:
    """Run a container on 1,5 under an earlier version, then start this version; return the container's id."""
    node.restart(NodeConfig(reserved=OLD))
    number = node.deploy("a", TWO)
    node.run()
    assert node.cpus(number) == "1,5"
    resave(node, None)
    node.restart(DEFAULT)
    return number


def test_upgrade_moves_no_reserve_under_containers(node: FakeNode) -> None:
    """After an upgrade the earlier version's reserve is kept until no container holds CPUs."""
    number = upgraded(node)
    assert reserve(node) == ("0,4", ReserveSource.KEPT)
    assert node.cpus(number) == "1,5"
    node.new_agent()
    assert reserve(node) == ("0,4", ReserveSource.KEPT)

    node.stop(number)
    del node.documents["a"]
    node.run()
    assert reserve(node) == ("1,5", ReserveSource.DEFAULT)
    assert saved(node).reserved == NEW


def test_configured_reserve_replaces_the_kept_one(node: FakeNode) -> None:
    """At the next start a configured reserve replaces the kept one, and containers leave its CPUs."""
    number = upgraded(node)
    node.run()
    node.restart(NodeConfig(reserved=NEW))
    assert reserve(node) == ("1,5", ReserveSource.CONFIGURED)
    assert node.cpus(number) != "1,5"


def test_reboot_ends_the_kept_reserve(node: FakeNode) -> None:
    """After a reboot the default reserve is computed again, from the present isolcpus."""
    number = upgraded(node)
    node.run()
    node.stop(number)
    node.machine.boot = "boot-2"
    node.topology = replace(FLAT, isolated=CPUSet.parse("0-1,4-5"))
    node.new_agent()
    assert reserve(node) == ("2,6", ReserveSource.DEFAULT)


def test_reserve_stays_over_restarts_while_cpus_are_offline(node: FakeNode) -> None:
    """The reserve does not change when a CPU comes online after the first start."""
    without = FLAT.cores[1:]
    node.topology = replace(ISOLATED, cores=without, online=CPUSet.parse("1-3,5-7"), isolated=EMPTY)
    node.new_agent()
    node.deploy("a", TWO)
    assert reserve(node) == ("1,5", ReserveSource.DEFAULT)
    node.topology = FLAT
    assert reserve(node) == ("1,5", ReserveSource.KEPT)
    node.new_agent()
    assert reserve(node) == ("1,5", ReserveSource.KEPT)


def test_silent_kubelet_moves_no_reserve(node: FakeNode) -> None:
    """If the kubelet does not answer at a restart, the agent keeps the reserve that the kubelet reported before."""
    named = NodeConfig(reserved=CPUSet.parse("3,7"), reserve_source=ReserveSource.KUBELET)
    node.restart(named)
    node.deploy("a", TWO)
    assert reserve(node) == ("3,7", ReserveSource.KUBELET)
    node.restart(DEFAULT)
    assert reserve(node) == ("3,7", ReserveSource.KEPT)


def test_pools_that_need_the_kept_reserve_get_the_default(
    node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    """If new pools do not fit beside the kept reserve, the default is used and a warning is logged."""
    upgraded(node)
    node.topology = replace(FLAT, isolated=CPUSet.parse("0-1,4-5"))
    pools = NodeConfig(pools=StaticPools(exclusive_cores=2))
    assert start_config(pools, saved(node), node.machine) == pools
    node.settings = Settings("node-1", pools)
    with caplog.at_level(logging.WARNING):
        node.new_agent()
    assert reserve(node) == ("2,6", ReserveSource.DEFAULT)
    assert "reserved CPUs change, because the configuration needs them" in caplog.messages


def test_reserve_is_kept_if_the_default_does_not_fit(node: FakeNode) -> None:
    """If the pools do not fit beside the default reserve, the kept one stays."""
    number = upgraded(node)
    resave(node, OLD)
    pools = NodeConfig(pools=StaticPools(0, 0, CPUSet.parse("1-3")))
    node.restart(replace(pools, reserved=OLD))
    node.run()
    node.restart(pools)
    node.stop(number)
    del node.documents["a"]
    node.run()
    assert reserve(node)[0] == "0,4"


def test_start_checks_the_reserve_in_force(node: FakeNode) -> None:
    """The check at start uses the reserve of the checkpoint, as the first pass does; without a checkpoint the default."""
    upgraded(node)
    before = saved(node)
    assert start_config(DEFAULT, None, node.machine) == DEFAULT
    assert start_config(DEFAULT, before, node.machine).reserved == OLD
    assert start_config(DEFAULT, replace(before, ledger=Ledger()), node.machine) == DEFAULT
    named = NodeConfig(reserved=NEW)
    assert start_config(named, before, node.machine) == named


def test_reserve_is_read_as_it_was_written(node: FakeNode) -> None:
    """The checkpoint returns the saved reserve, or None if an earlier version wrote it."""
    upgraded(node)
    for reserved in (None, OLD, NEW):
        resave(node, reserved)
        assert saved(node).reserved == reserved


def test_earlier_agent_reads_the_ledger_of_this_one(node: FakeNode) -> None:
    """A checkpoint of this version has all keys that an earlier version requires, and a ledger that it can read."""
    upgraded(node)
    node.run()
    body = parse_json((node.folder / NAME).read_bytes())
    assert body.keys() - {"version", "checksum"} == KEYS
    assert body["ledger"]["reserved"] == "0,4"
    assert ledger_from_dict(body["ledger"]) == saved(node).ledger
