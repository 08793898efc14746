"""CPU masks of unbound workqueues in sysfs (interface `Workqueues`).

The component `quiet` mounts the node's /sys/devices/virtual/workqueue at a path of its own, because a container's /sys
is read-only.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from agent.errors import Gone, Refused, Unavailable
from agent.kernel.settings import error_of, read_setting, write_setting
from pinning.errors import BadCPUList
from pinning.machine.cpuset import EMPTY, CPUSet

if TYPE_CHECKING:
    from pathlib import Path

ALL: Final = ""  # name that stands for the mask of all unbound workqueues


class KernelWorkqueues:
    """The workqueues of one node; `folder` is its /sys/devices/virtual/workqueue."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def identities(self) -> dict[str, int]:
        """Return the inode of each mask by the workqueue's name; a later workqueue of this name has another inode."""
        try:
            is_read_only = bool(os.statvfs(self._folder).f_flag & os.ST_RDONLY)
            inode = (self._folder / "cpumask").stat().st_ino
            names = sorted(entry.name for entry in self._folder.iterdir())
        except OSError as error:
            raise Unavailable(f"{self._folder}: {error.strerror}") from error
        if is_read_only:
            raise Unavailable(
                f"{self._folder} is read-only: mount the node's own, as the component quiet does"
            )
        return {ALL: inode} | dict(filter(None, map(self._identity, names)))

    def _identity(self, name: str) -> tuple[str, int] | None:
        """Return a workqueue's name with the inode of its mask; None if it has no mask of its own."""
        try:
            return name, (self._folder / name / "cpumask").stat().st_ino
        except OSError:
            return None

    def mask(self, name: str) -> CPUSet:
        """Return the CPUs last written to a mask; from ALL the kernel itself removes CPUs of isolated partitions."""
        if name:
            return self._read(f"{name}/cpumask")
        try:
            return self._read("cpumask_requested")  # Linux 6.7 and later
        except Gone:
            return self._read("cpumask")

    def isolated(self) -> CPUSet:
        """Return the CPUs of isolated partitions, which the kernel itself keeps free; raise Refused if unknown."""
        try:
            return self._read("cpumask_isolated", may_be_empty=True)
        except Gone:  # before Linux 6.7
            return EMPTY

    def move(self, name: str, cpus: CPUSet) -> None:
        """Set a mask; raise Gone or Refused with the kernel's reason."""
        file = self._folder / name / "cpumask"
        try:
            write_setting(file, cpus.to_mask())
        except OSError as error:
            raise error_of(error, file) from error

    def _read(self, name: str, *, may_be_empty: bool = False) -> CPUSet:
        file = self._folder / name
        text = read_setting(file)
        try:
            cpus = CPUSet.parse_mask(text)
        except BadCPUList as error:
            raise Refused(f"{file}: {text[:40]!r} is not a mask of CPUs") from error
        if not cpus and not may_be_empty:
            raise Refused(f"{file} has no CPU")
        return cpus


class AbsentWorkqueues:
    """The masks of a node whose folder is not mounted."""

    def identities(self) -> dict[str, int]:
        """Raise Unavailable, because the masks are not mounted."""
        raise Unavailable("the node's workqueue masks are not mounted: update the component quiet")

    def mask(self, name: str) -> CPUSet:
        """Raise Refused, because the masks are not mounted."""
        raise Refused(name)

    def isolated(self) -> CPUSet:
        """Return no CPU."""
        return EMPTY

    def move(self, name: str, _: CPUSet) -> None:
        """Raise Refused, because the masks are not mounted."""
        raise Refused(name)
