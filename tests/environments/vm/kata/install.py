"""Install the shim on containerd's PATH, and write containerd's configuration for it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

HANDLER: Final = "kata-qemu"
PROGRAM: Final = "containerd-shim-kata-v2"
CHECKOUT: Final = Path(__file__).parents[4]
_SCRIPT: Final = f"""#!{sys.executable} -IS
import sys

sys.path.insert(0, {str(CHECKOUT)!r})

from tests.environments.vm.kata.shim import main

main()
"""


def install_shim(folder: Path) -> Path:
    """Write the program into a folder for containerd's PATH, and return the folder."""
    folder.mkdir()
    program = folder / PROGRAM
    program.write_text(_SCRIPT)
    program.chmod(0o755)
    return folder


def handler_config(plugin: str) -> str:
    """Return the lines of containerd's configuration for a runtime handler of CRI."""
    return f"""
[plugins."{plugin}".containerd.runtimes.{HANDLER}]
runtime_type = "io.containerd.kata.v2"
pod_annotations = ["io.katacontainers.*"]
"""
