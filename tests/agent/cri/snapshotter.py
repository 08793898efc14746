"""Choice of containerd's snapshotter for the file system at hand."""

from __future__ import annotations

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory


def best_snapshotter(directory: Path) -> str:
    """Return `overlayfs` if overlay mounts work in the directory, otherwise `native`.

    `native` works on any file system, and copies the whole image for each container. If containerd starts
    another process
    during the copy, that process holds the program open for writing until it has executed its own, and the
    container fails
    with "text file busy" (golang/go#22315).
    """
    with TemporaryDirectory(dir=directory) as folder:
        places = {name: Path(folder, name) for name in ("lowerdir", "upperdir", "workdir", "merged")}
        for place in places.values():
            place.mkdir()
        merged = places.pop("merged")
        options = ",".join(f"{name}={place}" for name, place in places.items())
        mount = ["mount", "-t", "overlay", "-o", options, "overlay", str(merged)]
        if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
            return "native"
        subprocess.run(["umount", str(merged)], check=True)
    return "overlayfs"
