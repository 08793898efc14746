"""Install the packages for an emulated machine, without output, or raise the reason why it is impossible."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from unittest import SkipTest

from tests import debian

PROGRAMS = {  # Debian package: its program
    "qemu-system-x86": "qemu-system-x86_64",
    "busybox-static": "busybox",
    "containerd": "containerd",
    "runc": "runc",
}
KERNEL_PACKAGE = "linux-image-amd64"
BOOT = Path("/boot")
MODULES = Path("/lib/modules")


class EmulatorMissing(Exception):
    """No machine can be emulated here."""


class SkippedEmulatorMissing(EmulatorMissing, SkipTest):
    """The same outside CI, where pytest skips the test."""


def install() -> Path:
    """Install the missing packages and return the kernel to boot; raise EmulatorMissing with the reason."""
    if os.geteuid() != 0:
        raise _missing("needs root: the guest runs on this machine's own root file system")
    if not virtme_run().exists():
        raise _missing(f"{virtme_run()} is not there; run scripts/setup")
    wanted = [package for package, program in PROGRAMS.items() if shutil.which(program) is None]
    if newest_kernel() is None:
        wanted.append(KERNEL_PACKAGE)
    if wanted:
        try:
            debian.install(wanted)
        except debian.NotInstalled as error:
            raise _missing(str(error)) from error
    kernel = newest_kernel()
    if kernel is None:
        raise _missing(f"no {BOOT}/vmlinuz-* that has its modules below {MODULES}")
    return kernel


def virtme_run() -> Path:
    """Return virtme-ng's program beside this Python."""
    return Path(sys.executable).with_name("virtme-run")


def newest_kernel() -> Path | None:
    """Return the newest Debian kernel with modules; None if there is none."""
    kernels = [
        path for path in BOOT.glob("vmlinuz-*") if (MODULES / path.name.removeprefix("vmlinuz-")).is_dir()
    ]
    return max(kernels, key=lambda path: path.stat().st_mtime, default=None)


def _missing(why: str) -> EmulatorMissing:
    return (EmulatorMissing if os.environ.get("CI") == "true" else SkippedEmulatorMissing)(why)
