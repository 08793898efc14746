"""Reproducible archives: bytes depend on names, modes and contents only."""

from __future__ import annotations

import gzip
import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def pack(file: Path, members: Mapping[str, Path], epoch: int) -> None:
    """Write a gzipped tar of files, sorted by name, with the same time and owner."""
    with (
        file.open("wb") as raw,
        gzip.GzipFile("", "wb", 9, raw, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, path in sorted(members.items()):
            archive.add(path, name, recursive=False, filter=lambda member: _plain(member, epoch))


def files_below(folder: Path, prefix: str) -> dict[str, Path]:
    """Return every file below a folder by its name in an archive."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {f"{prefix}/{path.relative_to(folder).as_posix()}": path for path in found}


def _plain(member: tarfile.TarInfo, epoch: int) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = epoch
    member.mode = 0o755 if member.mode & 0o100 else 0o644
    return member
