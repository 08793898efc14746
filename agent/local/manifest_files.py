"""The manifests in a folder; a changed one is read again once it is completely written.

If a file cannot be read or is incomplete, its pods stay unchanged.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, cast

from agent.local.manifest import BadManifest, read_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from pinning.pods.types import Pod

# a known file that changed more recently may be incomplete, unless the kernel reports that it was closed
SETTLE_SECONDS: Final = 0.5
_SUFFIXES: Final = (".yaml", ".yml", ".json")
_TEMPORARY: Final = (".", "#", "~")  # first letters of editors' temporary files


@dataclass(frozen=True, slots=True)
class _File:
    """The pods of one manifest file when it was last read, and the file's version."""

    version: tuple[int, ...]  # stat fields that differ after the file changed
    pods: tuple[Pod, ...]


class ManifestFiles:
    """Every `*.yaml`, `*.yml` and `*.json` of a folder."""

    def __init__(self, folder: Path, now: Callable[[], float]) -> None:
        # Why a file cannot be read, by file name; "" is the folder itself.
        self.unreadable: dict[str, str] = {}
        self._folder = folder
        self._now = now
        self._files: dict[str, _File] = {}

    def pods(self) -> Iterator[tuple[str, Pod]]:
        """Yield the pods with their files, in the order of the files' names."""
        for name in sorted(self._files):
            for pod in self._files[name].pods:
                yield name, pod

    def read(self, closed: Collection[str]) -> bool:
        """Read the changed files, `closed` ones at once; return False if the folder cannot be read."""
        try:
            found = _manifests(self._folder)
        except OSError as error:
            self.unreadable = {
                "": f"{self._folder} cannot be read ({error.strerror}): make the folder, or name another one"
            }
            return False
        self._files = {name: file for name, file in self._files.items() if name in found}
        self.unreadable = {name: reason for name, reason in self.unreadable.items() if name in found}
        for name, stat in found.items():
            self._read(name, stat, is_closed=name in closed)
        return True

    def _read(self, name: str, stat: os.stat_result, *, is_closed: bool) -> None:
        """Read one file if it is new, or if it has changed and is completely written."""
        version = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        before = self._files.get(name)
        if before and before.version == version:
            return
        if before and not is_closed and 0 <= self._now() - stat.st_mtime < SETTLE_SECONDS:
            return
        pods = before.pods if before else ()
        self.unreadable.pop(name, None)
        try:
            pods = read_manifest((self._folder / name).read_bytes(), _created(stat))
        except FileNotFoundError:
            return
        except (BadManifest, OSError) as error:
            self.unreadable[name] = str(error)
        self._files[name] = _File(version, _as_old(pods, before))


def _manifests(folder: Path) -> dict[str, os.stat_result]:
    """Return the manifests of a folder; raise OSError when it cannot be read."""
    found = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):  # it was removed just now, or is a dangling link
                if _is_manifest(entry):
                    found[entry.name] = entry.stat()
    return found


def _is_manifest(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith(_SUFFIXES) and not entry.name.startswith(_TEMPORARY) and entry.is_file()


def _created(stat: os.stat_result) -> str:
    return datetime.fromtimestamp(stat.st_mtime, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _as_old(pods: tuple[Pod, ...], before: _File | None) -> tuple[Pod, ...]:
    """Return the pods with the creation times they had before, so that an edit of the file does not change these."""
    created = {uid_of(pod): _creation(pod) for pod in before.pods} if before else {}
    return tuple(_created_at(pod, created.get(uid_of(pod))) for pod in pods)


def uid_of(pod: Pod) -> str:
    """Return a pod's uid."""
    return (pod.get("metadata") or {}).get("uid") or ""


def _creation(pod: Pod) -> str | None:
    return (pod.get("metadata") or {}).get("creationTimestamp")


def _created_at(pod: Pod, timestamp: str | None) -> Pod:
    if timestamp is None:
        return pod
    return cast("Pod", {**pod, "metadata": {**(pod.get("metadata") or {}), "creationTimestamp": timestamp}})
