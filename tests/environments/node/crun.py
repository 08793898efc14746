"""Debian's crun as a runtime handler of containerd, for the emulated machines, which have cgroup v2.

crun 1.8 accepts only version 1.0 of the OCI runtime specification, and containerd 2.4 writes 1.3. The fields that these
containers use are the same, so a script replaces the version before crun reads the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

HANDLER: Final = "crun"
_SCRIPT: Final = """#!/bin/sh
before=
for argument; do
    if [ "$before" = --bundle ]; then
        sed -i 's/"ociVersion":"[^"]*"/"ociVersion":"1.0.2"/' "$argument/config.json"
    fi
    before=$argument
done
exec /usr/bin/crun "$@"
"""


def install_script(folder: Path) -> None:
    """Write the script into a folder, by the name `crun`."""
    script = folder / "crun"
    script.write_text(_SCRIPT)
    script.chmod(0o755)


def handler_config(plugin: str, script: Path) -> str:
    """Return the lines of containerd's configuration for the handler."""
    return f"""
[plugins."{plugin}".containerd.runtimes.{HANDLER}]
runtime_type = "io.containerd.runc.v2"
[plugins."{plugin}".containerd.runtimes.{HANDLER}.options]
BinaryName = "{script}"
"""
