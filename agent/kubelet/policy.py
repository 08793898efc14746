"""CPU and memory policy of the node's kubelet, from its state files.

With the CPU policy `static` the agent only observes; with the memory policy `Static` it binds no memory. The files are
the kubelet's own (`cpu_manager_state` and `memory_manager_state` in its root directory); the agent never writes them.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Final

from pinning.contract import KubeletPolicy
from pinning.json_text import parse_json

MEMORY_STATE: Final = "memory_manager_state"
LOOK_SECONDS: Final = 2.0  # between two checks whether the mounted file was replaced


def read_kubelet_policy(state: Path) -> KubeletPolicy:
    """Return the policy in a `cpu_manager_state` file; UNKNOWN if it is absent, damaged or of an unknown form."""
    return _named(state)


def read_memory_policy(state: Path) -> KubeletPolicy:
    """Return the Memory Manager's policy, from the file beside `cpu_manager_state`."""
    return _named(state.with_name(MEMORY_STATE))


def versions(state: Path) -> tuple[tuple[int, int] | None, ...]:
    """Return inode and time of writing of both files, None for an absent one; they change when the kubelet writes."""
    cpus, memory = state_files(state)
    return _version(cpus), _version(memory)


@lru_cache(maxsize=4)
def state_files(state: Path) -> tuple[str, str]:
    """Return the paths of both files as text; cached, because the files are checked every second."""
    return str(state), str(state.with_name(MEMORY_STATE))


def _version(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 half of the time of Path.stat
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


class MountedState:
    """The kubelet's state files as they were mounted when this process began.

    A mount of a single file keeps the old file after the kubelet has replaced it (its link count is then 0), so only a
    new container sees the new one. Only a file with the policy `none` counts: the kubelet writes one only after a change
    of the policy. Under `static` it replaces the file with every pod, and the agent only observes by an old file, which
    is safe. A file in an unknown format does not count, because a new container could not read it either.
    """

    def __init__(self, state: Path) -> None:
        # A file without links from the start is on a file system that does not count them.
        self._files = [path for path in state_files(state) if _links(path)]

    def replaced(self) -> str:
        """Return a message with the file that the kubelet has replaced; empty if there is none."""
        for path in self._files:
            if _links(path) == 0 and _named(Path(path)) is KubeletPolicy.NONE:
                return f"{path}: the kubelet has replaced this file since it was mounted, so its policy may have changed"
        return ""


def _links(path: str) -> int | None:
    try:
        return os.stat(path).st_nlink  # noqa: PTH116 as above
    except OSError:
        return None


def _named(state: Path) -> KubeletPolicy:
    try:
        saved = parse_json(state.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return KubeletPolicy.UNKNOWN
    name = saved.get("policyName") if isinstance(saved, dict) else None
    return policy_of(name)


def policy_of(name: object) -> KubeletPolicy:
    """Parse a policy's name; the Memory Manager capitalizes it."""
    words = {"none": KubeletPolicy.NONE, "static": KubeletPolicy.STATIC}
    return words.get(name.lower(), KubeletPolicy.UNKNOWN) if isinstance(name, str) else KubeletPolicy.UNKNOWN
