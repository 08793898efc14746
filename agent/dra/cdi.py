"""CDI files, by which the runtime sets an environment variable with a claim's CPUs in containers that name the claim.

A claim has one file, with a device for each request. Writes are atomic, because the runtime may read the folder at any
moment. The folder is on a tmpfs, so a reboot removes the files, as it ends the containers.
"""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from pinning.contract import CDI_KIND, CDI_PREFIX, DRA_CPUSET_PREFIX
from pinning.dra.claims import device_name, is_uid
from pinning.errors import PinningError
from pinning.json_text import parse_json
from pinning.planning.ledger_json import grant_from_dict, grant_to_dict

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pinning.dra.claims import ClaimGrant

_PREFIX: Final = f"{CDI_KIND.replace('/', '-')}_{CDI_PREFIX}"
# Records the claim in its file, for an agent whose checkpoint is lost.
_ANNOTATION: Final = "corepin.io/claim"
_SUFFIX: Final = ".json"
# Size up to which an existing file is compared; larger files are written again.
_MOST_BYTES: Final = 64 * 2**10
MOST_FILES: Final = 4096  # number of files read from the folder at most


class CDIFiles:
    """The files of this driver in the CDI folder; its methods block, and raise OSError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def wrong(self, grants: Iterable[ClaimGrant]) -> list[ClaimGrant]:
        """Return the claims whose files are missing or have a wrong content."""
        return [grant for grant in grants if not self._is_right(grant)]

    def _is_right(self, grant: ClaimGrant) -> bool:
        with suppress(OSError):
            return self._read(self._path(grant.claim.uid)) == _content(grant)
        return False

    def serves(self, grant: ClaimGrant) -> bool:
        """Return whether the file of a claim gives containers its CPUs; its record of pods may be older."""
        with suppress(OSError, PinningError, KeyError, TypeError):
            return bool(parse_json(self._read(self._path(grant.claim.uid)))["devices"] == _devices(grant))
        return False

    def write(self, grant: ClaimGrant) -> bool:
        """Write the file of a claim unless it is right; return whether it was written."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._is_right(grant):
            return False
        path, content = self._path(grant.claim.uid), _content(grant)
        beside = path.with_name(f".{path.name}.new")
        beside.unlink(missing_ok=True)  # left by an interrupted write
        try:
            _write_new(beside, content)
            beside.replace(path)
        except OSError:
            with suppress(OSError):
                beside.unlink(missing_ok=True)
            raise
        self._flush()
        return True

    def remove(self, uid: str) -> None:
        """Delete the file of a claim, if there is one."""
        self._path(uid).unlink(missing_ok=True)

    def keep(self, grants: Iterable[ClaimGrant]) -> None:
        """Write the files of these claims, and delete the files of all other claims."""
        names = set()
        for grant in grants:
            self.write(grant)
            names.add(self._path(grant.claim.uid).name)
        for path in (*self._ours(), *self._folder.glob(f".{_PREFIX}*.new")):
            if path.name not in names:
                path.unlink(missing_ok=True)

    def besides(self, grants: Iterable[ClaimGrant]) -> list[str]:
        """Return the uids of other claims that have a file."""
        known = {self._path(grant.claim.uid).name for grant in grants}
        names = (path.name for path in self._ours() if path.name not in known)
        return list(filter(is_uid, (name.removeprefix(_PREFIX).removesuffix(_SUFFIX) for name in names)))

    def given(self) -> tuple[ClaimGrant, ...]:
        """Return the claims that an earlier agent served, by its files; unreadable files are skipped."""
        found = []
        for path in self._ours():
            with suppress(OSError, PinningError, KeyError, TypeError, AttributeError, UnicodeEncodeError):
                noted = parse_json(self._read(path))["annotations"][_ANNOTATION]
                found.append(grant_from_dict(parse_json(noted.encode())))
        return tuple(grant for grant in found if is_uid(grant.claim.uid))

    def _ours(self) -> list[Path]:
        try:
            return sorted(self._folder.glob(f"{_PREFIX}*{_SUFFIX}"))[:MOST_FILES]
        except OSError:
            return []

    def _path(self, uid: str) -> Path:
        return self._folder / f"{_PREFIX}{uid}{_SUFFIX}"

    def _read(self, path: Path) -> bytes:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(f"{path} is not a regular file")
            return file.read(_MOST_BYTES)

    def _flush(self) -> None:
        handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _write_new(path: Path, content: bytes) -> None:
    """Write a file that does not exist yet, and flush it."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _devices(grant: ClaimGrant) -> list[dict[str, Any]]:
    uid = grant.claim.uid
    requests = sorted({part.request for part in grant.claim.parts})
    return [
        {
            "name": device_name(uid, request),
            "containerEdits": {"env": [f"{DRA_CPUSET_PREFIX}{uid}={grant.of(request)}"]},
        }
        for request in requests
    ]


def _content(grant: ClaimGrant) -> bytes:
    document = {
        "cdiVersion": "0.6.0",
        "kind": CDI_KIND,
        "annotations": {_ANNOTATION: json.dumps(grant_to_dict(grant))},
        "devices": _devices(grant),
    }
    return json.dumps(document).encode() + b"\n"
