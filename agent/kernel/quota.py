"""The CFS quota of a cgroup: how much CPU time it may use, and how often it was stopped for using it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.kernel.cgroupfs import V1, read_text, write_text

if TYPE_CHECKING:
    from pathlib import Path

    from agent.kernel.cgroupfs import Hierarchy

_V1_QUOTA: Final = "cpu.cfs_quota_us"
_V1_NONE: Final = "-1"
_V2_QUOTA: Final = "cpu.max"
_V2_NONE: Final = "max"


def read_quota(hierarchy: Hierarchy, cgroup: str) -> int | None:
    """Return a cgroup's quota in microseconds a period, None when it has none; raise Gone."""
    quota = read_text(_quota_file(hierarchy, cgroup)).split()[0]
    return None if quota in (_V1_NONE, _V2_NONE) else int(quota)


def unset_quota(hierarchy: Hierarchy, cgroup: str) -> None:
    """Take a cgroup's quota away; that of the pod above it stays. Raises Gone, Refused."""
    write_text(_quota_file(hierarchy, cgroup), _V1_NONE if hierarchy.version == V1 else _V2_NONE)


def times_throttled(hierarchy: Hierarchy, cgroup: str) -> int:
    """Return in how many periods a cgroup was stopped by its quota (nr_throttled); raise Gone."""
    stat = read_text(_folder(hierarchy, cgroup) / "cpu.stat")
    counts = dict(line.split(maxsplit=1) for line in stat.splitlines())
    return int(counts.get("nr_throttled", 0))


def _folder(hierarchy: Hierarchy, cgroup: str) -> Path:
    return hierarchy.cpu / cgroup.lstrip("/")


def _quota_file(hierarchy: Hierarchy, cgroup: str) -> Path:
    return _folder(hierarchy, cgroup) / (_V1_QUOTA if hierarchy.version == V1 else _V2_QUOTA)
