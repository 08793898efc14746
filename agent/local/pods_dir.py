"""Pods from a folder of manifests (interface `PodSource`): for the demo, for tests, and without Kubernetes.

A pod is deleted when its file is removed, or is rewritten without the pod. Problems of a file are logged.
"""

from __future__ import annotations

import logging
import time
from contextlib import closing
from typing import TYPE_CHECKING, cast

from agent.local.finished_pods import read_finished, write_finished
from agent.local.folder_events import FolderEvents
from agent.local.manifest import name_of
from agent.local.manifest_files import ManifestFiles, uid_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from pinning.pods.types import Pod

logger = logging.getLogger(__name__)


class PodsDir:
    """The pods of the manifests in a folder; `finished` stores their final phases."""

    def __init__(
        self, folder: Path, finished: Path | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self.complete = False
        self._folder = folder
        self._files = ManifestFiles(folder, now)
        self._finished = finished
        self._phases = read_finished(finished) if finished else {}
        self._pods: dict[str, Pod] = {}
        self._conflicts: dict[str, str] = {}
        self._logged: dict[str, str] = {}

    @property
    def problems(self) -> dict[str, str]:
        """Why manifests cannot be used, by file name."""
        return self._files.unreadable | self._conflicts

    def pods(self) -> Mapping[str, Pod]:
        """Return the pods by uid."""
        return self._pods

    async def look_up(self, namespace: str, name: str) -> Pod | None:
        """Return the pod with a name, from the files; None if there is none."""
        wanted = f"{namespace}/{name}"
        return next((pod for pod in self._pods.values() if name_of(pod) == wanted), None)

    def finish(self, uid: str, phase: str) -> None:
        """Set a pod's final phase, which is kept until its manifest is removed."""
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
        with closing(FolderEvents(self._folder)) as events:
            while True:
                if self.look(events.names()):
                    changed()
                await events.wait()

    def look(self, closed: Collection[str] = ()) -> bool:
        """Read changed files of the folder, `closed` ones at once; return whether the pods changed."""
        before = (self._pods, self.complete)
        # keep every pod if the folder cannot be read
        self.complete = self._files.read(closed)
        if self.complete:
            self._show()
        self._log_problems()
        return before != (self._pods, self.complete)

    def _show(self) -> None:
        """Update the pods from all files; of two pods with the same name, use that of the first file by name."""
        shown: dict[str, Pod] = {}
        names: dict[str, str] = {}
        self._conflicts = {}
        for file, pod in self._files.pods():
            uid, name = uid_of(pod), name_of(pod)
            other = names.get(name) or names.get(uid)
            if other:
                self._conflicts[file] = f"pod {name} is in {other} already, and that one is used: remove one"
                continue
            names[name] = names[uid] = file
            shown[uid] = self._with_phase(uid, pod)
        self._remember({uid: phase for uid, phase in self._phases.items() if uid in shown})
        if shown != self._pods:
            self._pods = shown

    def _with_phase(self, uid: str, pod: Pod) -> Pod:
        phase = self._phases.get(uid)
        if phase is None:
            return pod
        shown = self._pods.get(uid)
        ended = cast("Pod", {**pod, "status": {**(pod.get("status") or {}), "phase": phase}})
        return shown if shown == ended else ended

    def _log_problems(self) -> None:
        """Log each problem once, not at every listing."""
        problems = self.problems
        for file, reason in problems.items():
            if self._logged.get(file) != reason:
                logger.warning("manifest not used", extra={"facts": {"file": file, "reason": reason}})
        self._logged = problems
