"""CFS quotas of cgroups, and how often they throttled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.kernel.cgroupfs import V1, read_text, write_text
from pinning.planning.quota import Bandwidth

if TYPE_CHECKING:
    from pathlib import Path

    from agent.kernel.cgroupfs import Hierarchy

_V1_QUOTA: Final = "cpu.cfs_quota_us"
_V1_PERIOD: Final = "cpu.cfs_period_us"
_V1_NONE: Final = "-1"
_V2_QUOTA: Final = "cpu.max"
_V2_NONE: Final = "max"


class KernelQuotas:
    """The quotas of a hierarchy (interface `Quotas`)."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self._cpu = hierarchy.cpu
        self._is_v1 = hierarchy.version == V1

    def quota(self, cgroup: str) -> Bandwidth | None:
        """Return a cgroup's quota, None if unlimited; raise Gone."""
        quota, _, period = read_text(self._file(cgroup)).partition(" ")
        if quota in (_V1_NONE, _V2_NONE):
            return None
        return Bandwidth(int(quota), int(period or read_text(self._folder(cgroup) / _V1_PERIOD)))

    def set_quota(self, cgroup: str, bandwidth: Bandwidth) -> None:
        """Set a cgroup's quota. Raises Gone, Refused."""
        if self._is_v1:
            write_text(self._folder(cgroup) / _V1_PERIOD, str(bandwidth.period))
            write_text(self._file(cgroup), str(bandwidth.quota))
        else:
            write_text(self._file(cgroup), f"{bandwidth.quota} {bandwidth.period}")

    def unset_quota(self, cgroup: str) -> None:
        """Set a cgroup's quota to unlimited; the quota of the pod's cgroup stays. Raises Gone, Refused."""
        write_text(self._file(cgroup), _V1_NONE if self._is_v1 else _V2_NONE)

    def times_throttled(self, cgroup: str) -> int:
        """Return the number of periods in which a cgroup was throttled (nr_throttled); raise Gone."""
        stat = read_text(self._folder(cgroup) / "cpu.stat")
        counts = dict(line.split(maxsplit=1) for line in stat.splitlines())
        return int(counts.get("nr_throttled", 0))

    def _folder(self, cgroup: str) -> Path:
        return self._cpu / cgroup.lstrip("/")

    def _file(self, cgroup: str) -> Path:
        return self._folder(cgroup) / (_V1_QUOTA if self._is_v1 else _V2_QUOTA)
