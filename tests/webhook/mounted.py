"""Files as the kubelet mounts them: a change renames a symbolic link to a new directory."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import trustme

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path


class Mounted:
    """A mounted Secret or ConfigMap."""

    def __init__(self, root: Path, files: dict[str, bytes]) -> None:
        self._root = root
        self._versions = itertools.count()
        root.mkdir()
        self.swap(files)
        for name in files:
            (root / name).symlink_to(f"..data/{name}")

    def __truediv__(self, name: str) -> Path:
        return self._root / name

    def swap(self, files: dict[str, bytes]) -> None:
        """Replace all files at once."""
        version = f"..version-{next(self._versions)}"
        (self._root / version).mkdir()
        for name, content in files.items():
            (self._root / version / name).write_bytes(content)
        (self._root / "..new").symlink_to(version)
        (self._root / "..new").replace(self._root / "..data")


def new_ca() -> trustme.CA:
    """Return a CA that the code under test knows nothing of."""
    return trustme.CA(key_type=trustme.KeyType.ECDSA)


def pair(ca: trustme.CA, not_after: datetime | None = None) -> dict[str, bytes]:
    """Return the files of a fresh pair for this machine."""
    leaf = ca.issue_cert("localhost", "127.0.0.1", key_type=trustme.KeyType.ECDSA, not_after=not_after)
    chain = b"".join(blob.bytes() for blob in leaf.cert_chain_pems)
    return {"tls.crt": chain, "tls.key": leaf.private_key_pem.bytes()}
