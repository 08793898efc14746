"""Pods from a folder of manifests (interface `PodSource`): for the demo, for tests, and for machines without Kubernetes.

A file that cannot be read, or is only half written, changes nothing: its pods stay as they were, and the log says
why. A pod is gone when its file is, or when its file was written without it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, cast

from agent.local.finished_pods import read_finished, write_finished
from agent.local.folder_events import FolderEvents
from agent.local.manifest import BadManifest, name_of, read_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from pinning.pods.types import Pod

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0  # between looks at the whole folder, for what the kernel did not tell
SETTLE_SECONDS: Final = (
    0.5  # a file that changed less long ago may still be written, if nobody told that it is not
)
_SUFFIXES: Final = (".yaml", ".yml", ".json")
_TEMPORARY: Final = (".", "#", "~")  # first letters of files that editors put beside


@dataclass(frozen=True, slots=True)
class _File:
    """One manifest as it was read last."""

    version: tuple[int, ...]  # what differs as soon as the file does
    pods: tuple[Pod, ...]


class PodsDir:
    """The pods of every `*.yaml`, `*.yml` and `*.json` in a folder; `finished` remembers which of them are over."""

    def __init__(
        self, folder: Path, finished: Path | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self.complete = False
        self._finished = finished
        self._folder = folder
        self._now = now
        self._files: dict[str, _File] = {}
        self._pods: dict[str, Pod] = {}
        self._phases = read_finished(finished) if finished else {}
        self._unreadable: dict[str, str] = {}
        self._conflicts: dict[str, str] = {}
        self._told: dict[str, str] = {}

    @property
    def problems(self) -> dict[str, str]:
        """What is wrong, by file."""
        return self._unreadable | self._conflicts

    def pods(self) -> Mapping[str, Pod]:
        """Return the pods by uid."""
        return self._pods

    async def look_up(self, namespace: str, name: str) -> Pod | None:
        """Return the pod of a name, as the files have it."""
        wanted = f"{namespace}/{name}"
        return next((pod for pod in self._pods.values() if name_of(pod) == wanted), None)

    def finish(self, uid: str, phase: str) -> None:
        """Show a pod in a final phase from now on, as a kubelet reports it, until its manifest is gone."""
        self._remember({**self._phases, uid: phase})
        self._show()

    def _remember(self, phases: dict[str, str]) -> None:
        if phases == self._phases:
            return
        self._phases = phases
        if self._finished:
            write_finished(self._finished, phases)

    async def watch(self, changed: Callable[[], None]) -> None:
        """Follow the folder until cancelled; call `changed` after every change."""
        with ExitStack() as stack:
            events = self._open(stack)
            while True:
                names = self._news(events)
                if self.look(names or ()):
                    changed()
                await _wait(events)

    def _open(self, stack: ExitStack) -> FolderEvents | None:
        try:
            return stack.enter_context(closing(FolderEvents()))
        except OSError as error:
            logger.warning("no inotify, polling", extra={"facts": {"reason": str(error)}})
            return None

    def _news(self, events: FolderEvents | None) -> frozenset[str] | None:
        """Return the files that were told of. The folder is watched anew: it may be another one than before."""
        if events is None:
            return None
        try:
            events.add(self._folder)
        except OSError:  # it is not there, which the look finds too
            return None
        return events.names()

    def look(self, closed: Collection[str] = ()) -> bool:
        """Read what changed in the folder; say whether other pods are shown. `closed` files are read at once."""
        before = (self._pods, self.complete)
        try:
            found = _manifests(self._folder)
        except OSError as error:
            self.complete = False  # nobody is gone because the folder cannot be read
            self._unreadable = {"": f"{self._folder}: {error.strerror}: make the folder, or name another one"}
            self._tell()
            return before != (self._pods, self.complete)
        self._forget(found)
        for name, stat in found.items():
            self._read(name, stat, is_closed=name in closed)
        self._show()
        self.complete = True
        self._tell()
        return before != (self._pods, self.complete)

    def _forget(self, found: Collection[str]) -> None:
        self._files = {name: file for name, file in self._files.items() if name in found}
        self._unreadable = {name: why for name, why in self._unreadable.items() if name in found}

    def _read(self, name: str, stat: os.stat_result, *, is_closed: bool) -> None:
        """Read one file if it is another than before, and surely written to its end."""
        version = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        before = self._files.get(name)
        if before and before.version == version:
            return
        if before and not is_closed and 0 <= self._now() - stat.st_mtime < SETTLE_SECONDS:
            return
        pods = before.pods if before else ()
        self._unreadable.pop(name, None)
        try:
            pods = read_manifest((self._folder / name).read_bytes(), _created(stat))
        except FileNotFoundError:
            return
        except (BadManifest, OSError) as error:
            self._unreadable[name] = str(error)
        self._files[name] = _File(version, _as_old(pods, before))

    def _show(self) -> None:
        """Show the pods of all files; of two that are the same, the first by file name."""
        shown: dict[str, Pod] = {}
        names: dict[str, str] = {}
        self._conflicts = {}
        for file, pod in self._read_pods():
            uid, name = _uid(pod), name_of(pod)
            other = names.get(name) or names.get(uid)
            if other:
                self._conflicts[file] = f"pod {name} is in {other} already, which counts: remove one"
                continue
            names[name] = names[uid] = file
            shown[uid] = self._with_phase(uid, pod)
        self._remember({uid: phase for uid, phase in self._phases.items() if uid in shown})
        if shown != self._pods:
            self._pods = shown

    def _read_pods(self) -> Iterator[tuple[str, Pod]]:
        for name in sorted(self._files):
            for pod in self._files[name].pods:
                yield name, pod

    def _with_phase(self, uid: str, pod: Pod) -> Pod:
        phase = self._phases.get(uid)
        if phase is None:
            return pod
        shown = self._pods.get(uid)
        ended = cast("Pod", {**pod, "status": {**(pod.get("status") or {}), "phase": phase}})
        return shown if shown == ended else ended

    def _tell(self) -> None:
        """Log what is wrong once, not at every look."""
        for name, why in self.problems.items():
            if self._told.get(name) != why:
                logger.warning("manifest not used", extra={"facts": {"file": name, "reason": why}})
        self._told = self.problems


async def _wait(events: FolderEvents | None) -> None:
    """Wait for an event, and not for long."""
    if events is None:
        await asyncio.sleep(LOOK_SECONDS)
        return
    loop, wake = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(events, wake.set)
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            await wake.wait()
    except TimeoutError:
        return
    finally:
        loop.remove_reader(events)  # until it was read: else the same event would wake twice


def _manifests(folder: Path) -> dict[str, os.stat_result]:
    """Return the manifests of a folder; raise OSError when it cannot be read."""
    found = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):  # it goes at this moment, or is a link that leads to no file
                if _is_manifest(entry):
                    found[entry.name] = entry.stat()
    return found


def _is_manifest(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith(_SUFFIXES) and not entry.name.startswith(_TEMPORARY) and entry.is_file()


def _created(stat: os.stat_result) -> str:
    return datetime.fromtimestamp(stat.st_mtime, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _uid(pod: Pod) -> str:
    return (pod.get("metadata") or {}).get("uid") or ""


def _as_old(pods: tuple[Pod, ...], before: _File | None) -> tuple[Pod, ...]:
    """Let a pod keep the age at which it was first seen: an edit of its file makes nobody younger."""
    created = (
        {_uid(pod): (pod.get("metadata") or {}).get("creationTimestamp") for pod in before.pods}
        if before
        else {}
    )
    return tuple(
        cast(
            "Pod",
            {**pod, "metadata": {**(pod.get("metadata") or {}), "creationTimestamp": created[_uid(pod)]}},
        )
        if _uid(pod) in created
        else pod
        for pod in pods
    )
