"""Quotas of exclusive containers go where the operator wants it, and nowhere else."""

from __future__ import annotations

from agent.reconcile.reconciler import Settings
from pinning.planning.node_config import NodeConfig, Quota
from tests.agent.fakes import FakeNode
from tests.agent.reconcile.scenes import PLAIN, TWO


def test_quota_is_unset_for_exclusive_containers(node: FakeNode) -> None:
    """With `quota: unset` the container loses it, and its pod when all containers are exclusive; again after a resize."""
    node.settings = Settings("node-1", NodeConfig(quota=Quota.UNSET))
    node.new_agent()
    node.add("a", TWO)
    node.add("m", TWO, PLAIN)
    numbers = [node.start("a"), node.start("m"), node.start("m", "c1")]
    node.cgroups.quotas = {node.cgroup(number): 200000 for number in numbers}
    node.cgroups.quotas |= {"/kubepods/a": 200000, "/kubepods/m": 250000}
    node.run()
    assert node.cgroups.quotas.keys() == {"/kubepods/m", node.cgroup(numbers[2])}

    node.cgroups.quotas["/kubepods/a"] = 300000
    node.run()
    assert "/kubepods/a" not in node.cgroups.quotas


def test_quota_is_kept_by_default(node: FakeNode) -> None:
    """Without the operator's word quotas stay."""
    node.add("a", TWO)
    number = node.start("a")
    node.cgroups.quotas = {node.cgroup(number): 200000}
    node.run()

    assert node.cgroups.quotas
