"""Install the packages for an emulated machine, without output, or raise the reason why it is impossible."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import SkipTest

from tests import debian

PROGRAMS = {  # Debian package: its program
    "qemu-system-x86": "qemu-system-x86_64",
    "busybox-static": "busybox",
    "containerd": "containerd",
    "runc": "runc",
    "crun": "crun",
}
KERNEL_PACKAGE = "linux-image-amd64"
BACKPORTS = "bookworm-backports"
KERNEL = "COREPIN_GUEST_KERNEL"  # e.g. 6.12: the guest boots this kernel of Debian's backports
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"  # depmod may be there only
BOOT = Path("/boot")
MODULES = Path("/lib/modules")


class EmulatorMissing(Exception):
    """No machine can be emulated here."""


class SkippedEmulatorMissing(EmulatorMissing, SkipTest):
    """The same outside CI, where pytest skips the test."""


def install() -> Path:
    """Install the missing packages and return the kernel to boot; raise EmulatorMissing with the reason.

    It is the newest installed one, or the backported one that COREPIN_GUEST_KERNEL names.
    """
    if os.geteuid() != 0:
        raise _missing("needs root: the guest runs on this machine's own root file system")
    if not virtme_run().exists():
        raise _missing(f"{virtme_run()} is not there; run scripts/setup")
    version = os.environ.get(KERNEL, "")
    wanted = [package for package, program in PROGRAMS.items() if shutil.which(program) is None]
    if not version and newest_kernel() is None:
        wanted.append(KERNEL_PACKAGE)
    try:
        if wanted:
            debian.install(wanted)
        kernel = backported_kernel(version) if version else newest_kernel()
    except debian.NotInstalled as error:
        raise _missing(str(error)) from error
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


def backported_kernel(version: str) -> Path:
    """Return a kernel of Debian's backports, e.g. 6.12, which is unpacked into the cache and not installed."""
    name = f"kernel-{version}"
    root = debian.unpack_dependency(KERNEL_PACKAGE, f"linux-image-{version}.", BACKPORTS, name)
    (kernel,) = (root / "boot").glob("vmlinuz-*")
    release = kernel.name.removeprefix("vmlinuz-")
    if not (modules_of(kernel) / release / "modules.dep").exists():  # the package's own scripts would make it
        subprocess.run(["depmod", "-b", root, release], check=True, env=os.environ | {"PATH": PATH})
    MODULES.mkdir(exist_ok=True)  # where the guest mounts them
    return kernel


def modules_of(kernel: Path) -> Path:
    """Return the folder with the modules of a kernel, by release."""
    return kernel.parents[1] / "lib/modules"


def _missing(why: str) -> EmulatorMissing:
    return (EmulatorMissing if os.environ.get("CI") == "true" else SkippedEmulatorMissing)(why)
