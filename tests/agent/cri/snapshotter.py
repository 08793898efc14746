"""Which snapshotter of containerd can be used here."""

from __future__ import annotations

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory


def best_snapshotter(directory: Path) -> str:
    """Return `overlayfs` where file systems can be laid over each other in the directory, else `native`.

    `native` works anywhere, and copies the whole image for each container. A program that is being copied while
    containerd starts another process is held open for writing by that one too, until it has executed its own: the
    container then ends with "text file busy" (golang/go#22315).
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
