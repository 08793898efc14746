"""The CFS quota of a cgroup, on both cgroup versions."""

from __future__ import annotations

from pathlib import Path

from pinning.planning.quota import Bandwidth
from tests.environments.node.cgroup_trees import ONE, OpenCgroups


def test_quota_is_read_unset_and_set(tmp_path: Path, cgroups: OpenCgroups, version: int) -> None:
    """Quota and throttled periods are read from the cpu controller, and the quota can be unset and set."""
    folder = tmp_path / ("cpu" if version == 1 else ".") / ONE[1:]
    folder.mkdir(parents=True, exist_ok=True)
    quota = folder / ("cpu.cfs_quota_us" if version == 1 else "cpu.max")
    quota.write_text("200000\n" if version == 1 else "200000 100000\n")
    (folder / "cpu.stat").write_text("nr_periods 40\nnr_throttled 7\nthrottled_time 12\n")
    period = folder / "cpu.cfs_period_us"
    if version == 1:
        period.write_text("100000\n")
    assert cgroups.quotas.quota(ONE) == Bandwidth(200000, 100000)
    assert cgroups.quotas.times_throttled(ONE) == 7

    cgroups.quotas.unset_quota(ONE)

    assert quota.read_text() == ("-1" if version == 1 else "max")
    assert cgroups.quotas.quota(ONE) is None

    cgroups.quotas.set_quota(ONE, Bandwidth(150000, 50000))

    assert cgroups.quotas.quota(ONE) == Bandwidth(150000, 50000)
