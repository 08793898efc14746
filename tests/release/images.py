"""Small Docker archives with the build's time and host in them."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

EPOCH = 1_700_000_000
PYTHON = "opt/corepin/lib/python3.11/site-packages"
METADATA = "Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n{more}\n\nAbout it.\n"
STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Depends: libgcc-s1, libcrypt1 (>= 1:4.4)
Version: 2.36-9

Package: libgcc-s1
Status: install ok installed
Architecture: amd64
Version: 12.2.0-14
"""


def distribution(name: str, version: str, more: str = "License-Expression: MIT") -> dict[str, str]:
    """Return the METADATA file of an installed distribution, by its path."""
    path = f"{PYTHON}/{name}-{version}.dist-info/METADATA"
    return {path: METADATA.format(name=name, version=version, more=more)}


def write_image(file: Path, *, when: int, host: str, **files: str) -> Path:
    """Write an image of one layer that was built at a time, on a host."""
    content = {"etc/passwd": "root", "var/cache/ldconfig/aux-cache": host, **files}
    layer = _tar(
        {name: (text.encode(), when if "etc" in name else EPOCH - 5) for name, text in content.items()}
    )
    config: dict[str, Any] = {
        "architecture": "amd64",
        "os": "linux",
        "created": f"at {when}",
        "container": host,
        "config": {
            "Hostname": host,
            "User": "65532:65532",
            "Entrypoint": ["corepin"],
            "Labels": {"by": host},
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        "history": [{"created": f"at {when}", "created_by": "RUN"}],
    }
    manifest = [{"Config": "c.json", "RepoTags": ["corepin:x"], "Layers": ["l.tar"]}]
    members = {
        "l.tar": layer,
        "c.json": json.dumps(config).encode(),
        "manifest.json": json.dumps(manifest).encode(),
    }
    file.write_bytes(_tar({name: (text, when) for name, text in members.items()}))
    return file


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, (content, when) in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), when
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
