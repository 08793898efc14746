"""An emulated guest like Kata's: a kernel and an initramfs with the command and a shell."""

from __future__ import annotations

import gzip
import shutil
import subprocess
from typing import TYPE_CHECKING, Final

from tests.environments.server.daemon import dies_with_parent, plain_environment
from tests.environments.vm.guests import QEMU

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SECONDS: Final = 300.0  # timeout; 5 s on an idle machine
VCPUS: Final = 3  # each vCPU in its own socket, as with Kata
KERNEL_OPTIONS: Final = (
    "console=ttyS0 quiet panic=-1 mitigations=off audit=0 nmi_watchdog=0 rcupdate.rcu_expedited=1"
    " no_timer_check lpj=16000000"  # skip checks that need punctual ticks, which a busy host delays
)
_FOLDER, _FILE = 0o40755, 0o100755


def boot(kernel: Path, folder: Path, files: Mapping[str, bytes], script: str) -> list[str]:
    """Boot a guest with a script as its init; return the script's lines."""
    image, console = folder / "initrd", folder / "console"
    image.write_bytes(initrd({**files, "bin/busybox": _busybox(), "init": script.encode()}))
    command = [
        *(QEMU, "-machine", "q35", "-accel", "tcg,thread=multi,tb-size=64", "-cpu", "max", "-m", "256"),
        *("-smp", f"{VCPUS},sockets={VCPUS},cores=1,threads=1"),
        *("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", f"file:{console}"),
        *("-kernel", str(kernel), "-initrd", str(image), "-append", KERNEL_OPTIONS),
    ]
    subprocess.run(
        dies_with_parent(command),
        env=plain_environment(),
        stdin=subprocess.DEVNULL,
        check=True,
        timeout=SECONDS,
    )
    return console.read_text(errors="replace").splitlines()


def _busybox() -> bytes:
    path = shutil.which("busybox")
    assert path
    with open(path, "rb") as program:  # noqa: PTH123
        return program.read()


def initrd(files: Mapping[str, bytes]) -> bytes:
    """Return a cpio archive of files and their parent folders."""
    folders = {parent for name in files for parent in _parents(name)} | {"proc", "sys", "dev"}
    entries = [(name, _FOLDER, b"") for name in sorted(folders)]
    entries += [(name, _FILE, content) for name, content in files.items()]
    archive = b"".join(_entry(number, *entry) for number, entry in enumerate(entries, 1))
    return gzip.compress(archive + _entry(0, "TRAILER!!!", 0, b""), 1)


def _parents(name: str) -> list[str]:
    parts = name.split("/")[:-1]
    return ["/".join(parts[: depth + 1]) for depth in range(len(parts))]


def _entry(number: int, name: str, mode: int, content: bytes) -> bytes:
    """Return one file in cpio's `newc` form: header in hexadecimal, name and content, each padded to four bytes."""
    fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
    return _filled(head) + _filled(content)


def _filled(content: bytes) -> bytes:
    return content + b"\0" * (-len(content) % 4)
