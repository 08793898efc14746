"""Affinity of device interrupts in /proc/irq (interface `Interrupts`).

The component `quiet` mounts the node's /proc/irq at a path of its own, because a container's /proc/irq is read-only.
"""

from __future__ import annotations

import errno
import os
from itertools import islice
from pathlib import Path
from typing import Final

from agent.errors import Gone, Managed, Refused, Unavailable
from agent.kernel.settings import error_of, read_setting, write_setting
from pinning.errors import BadCPUList
from pinning.machine.cpuset import EMPTY, CPUSet

DEFAULT: Final = "default"
_DEFAULT_FILE: Final = "default_smp_affinity"
# EACCES: without CAP_DAC_OVERRIDE a file that has no write permission cannot be opened.
_DENIED: Final = frozenset({errno.EPERM, errno.EACCES})
_WRITE_BITS: Final = 0o222
MOST_OF_DEVICE: Final = 2048  # interrupts of one device: MSI-X has no more


class KernelInterrupts:
    """The interrupts of one node; `irq` is its /proc/irq, `sysfs` its /sys."""

    def __init__(self, irq: Path, sysfs: Path) -> None:
        self._irq = irq
        self._system = sysfs / "devices/system"
        self._descriptors = sysfs / "kernel/irq"
        self._devices = sysfs / "bus/pci/devices"

    def numbers(self) -> list[str]:
        """Return all numbers; raise Unavailable if the folder is missing or read-only."""
        try:
            names = [entry.name for entry in self._irq.iterdir()]
            is_read_only = bool(os.statvfs(self._irq).f_flag & os.ST_RDONLY)
        except OSError as error:
            raise Unavailable(f"{self._irq}: {error.strerror}") from error
        if is_read_only:
            raise Unavailable(f"{self._irq} is read-only: mount the node's own, as the component quiet does")
        return [name for name in names if name.isdecimal() and name.isascii()]

    def identities(self) -> dict[str, int]:
        """Return a value for each interrupt number that differs if the number is later used for another interrupt.

        The kernel reuses numbers of freed interrupts, also for the same driver. Inodes of /sys/kernel/irq are unique in
        a boot, unlike those of /proc/irq (Linux 5.5 and later).
        """
        try:
            with os.scandir(self._descriptors) as entries:
                return {entry.name: entry.inode() for entry in entries}
        except OSError:
            return {}

    def _identity(self, number: str) -> int | None:
        try:
            return (self._descriptors / number).stat().st_ino
        except OSError:
            return None

    def online(self) -> CPUSet:
        """Return the CPUs that are online now."""
        file = self._system / "cpu" / "online"
        try:
            return CPUSet.parse(read_setting(str(file)))
        except (Gone, Refused, BadCPUList) as error:
            raise Unavailable(f"{file}: {error}") from error

    def affinity(self, number: str) -> CPUSet:
        """Return the CPUs on which an interrupt may fire."""
        text = read_setting(self._file(number))
        try:
            cpus = CPUSet.parse_mask(text) if number == DEFAULT else CPUSet.parse(text)
        except BadCPUList as error:
            raise Refused(f"{self._file(number)}: {text[:40]!r} is not a list of CPUs") from error
        if not cpus:
            raise Refused(f"{self._file(number)} is empty")
        return cpus

    def name(self, number: str) -> str:
        """Return the names of an interrupt's actions, which have a folder each in /proc/irq/NUMBER."""
        if number == DEFAULT:
            return ""
        try:
            with os.scandir(f"{self._irq}/{number}") as entries:
                return " ".join(
                    sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
                )
        except OSError as error:
            raise Gone(f"interrupt {number}: {error.strerror}") from error

    def of_device(self, address: str) -> tuple[str, ...]:
        """Return the MSI interrupts of a device on the PCI bus; a line (INTx) is left out, as devices may share it."""
        try:
            with os.scandir(self._devices / address / "msi_irqs") as entries:
                numbers = (entry.name for entry in entries if entry.name.isdecimal() and entry.name.isascii())
                return tuple(islice(numbers, MOST_OF_DEVICE))
        except OSError:
            return ()

    def near(self, number: str) -> CPUSet:
        """Return the CPUs of the NUMA node of an interrupt's device."""
        try:
            node = int(read_setting(f"{self._irq}/{number}/node"))
            return (
                CPUSet.parse(read_setting(str(self._system / "node" / f"node{node}" / "cpulist")))
                if node >= 0
                else EMPTY
            )
        except (Gone, Refused, BadCPUList, ValueError):
            return EMPTY

    def is_managed(self, number: str) -> bool:
        """Return whether the file of an interrupt has no write permission, as managed ones have from Linux 6.12 on."""
        try:
            return number != DEFAULT and not Path(self._file(number)).stat().st_mode & _WRITE_BITS
        except OSError:
            return False

    def has_place(self, number: str) -> bool:
        """Return whether an interrupt has an effective affinity, which is empty for the `arm-pmu` of arm64, for example."""
        try:
            return bool(read_setting(f"{self._irq}/{number}/effective_affinity_list"))
        except (Gone, Refused):
            return True

    def move(self, number: str, cpus: CPUSet, identity: int | None = None) -> None:
        """Set the affinity of an interrupt, unless its number is known to be reused."""
        file = self._file(number)
        if identity is not None and self._identity(number) not in (None, identity):
            raise Gone(f"interrupt {number}: {os.strerror(errno.ESTALE)}")
        text = cpus.to_mask() if number == DEFAULT else str(cpus)
        try:
            write_setting(file, text)
        except OSError as error:
            if self._is_fixed(number, error):
                raise Managed(f"{file}: {error.strerror}") from error
            if error.errno in _DENIED:
                policy = "its mode allows it, so a security policy of the node (SELinux, AppArmor) forbids it"
                raise Refused(f"{file} cannot be written: {error.strerror}; {policy}") from error
            raise error_of(error, file) from error

    def _is_fixed(self, number: str, error: OSError) -> bool:
        """Return whether an error of a write means that the kernel alone chooses the CPUs.

        Up to Linux 6.1 such a write fails with EIO. From 6.12 on the file also lacks write permission, which
        distinguishes this case from a refusal by a security module.
        """
        if number == DEFAULT:
            return False
        return error.errno == errno.EIO or (error.errno in _DENIED and self.is_managed(number))

    def _file(self, number: str) -> str:
        name = _DEFAULT_FILE if number == DEFAULT else f"{number}/smp_affinity_list"
        return f"{self._irq}/{name}"
