"""Image archives that containerd imports, written without a registry."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any


def add_link(files: tarfile.TarFile, name: str, target: str) -> None:
    """Add a symbolic link to a layer."""
    link = tarfile.TarInfo(name)
    link.type, link.linkname = tarfile.SYMTYPE, target
    files.addfile(link)


def write_archive(path: Path, image: str, layer: bytes, settings: Mapping[str, Any]) -> None:
    """Write a Docker archive of one layer; `settings` is the image's configuration."""
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": dict(settings),
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [image], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as archive:
        for name, content in (
            ("config.json", json.dumps(config).encode()),
            ("layer.tar", layer),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
