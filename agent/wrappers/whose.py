"""In which container a process is, by its cgroup. Nothing that the process says counts."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from agent.errors import AgentError
from agent.kernel.cgroupfs import read_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.kernel.cgroupfs import Hierarchy

UP: Final = ".."


class CgroupIndex:
    """The cgroups of the node's containers, by path from the mount and by their last part."""

    def __init__(self, cgroups: Mapping[str, str]) -> None:
        self._by_path = cgroups
        self._by_name: defaultdict[str, list[str]] = defaultdict(list)
        for cgroup in cgroups:
            self._by_name[cgroup.rpartition("/")[2]].append(cgroup)

    def container_of(self, pid: int, path: str, hierarchy: Hierarchy) -> str | None:
        """Return the id of the container that a process in the cgroup `path` is in; None: in none that is known."""
        for found, whole in self.candidates(path):
            if not path.startswith(f"/{UP}") or _has(hierarchy, whole, pid):
                return found
        return None

    def candidates(self, path: str) -> Iterator[tuple[str, str]]:
        """Yield the ids of containers that a cgroup may be of, nearest first, each with the whole path of the cgroup.

        `path` is as the reader's cgroup namespace shows it. From a namespace of the agent's own it goes up before it
        goes down, and what it shares with the agent's own cgroup is not told: then there may be several, and the kernel
        has to be asked.
        """
        parts = path.split("/")[1:]
        if parts[:1] != [UP]:
            for depth in range(len(parts), 0, -1):
                if found := self._by_path.get(_joined(parts[:depth])):
                    yield found, path
            return
        below = [part for part in parts if part != UP]
        for depth in range(len(below), 0, -1):
            for cgroup in self._by_name.get(below[depth - 1], ()):
                if cgroup.endswith(_joined(below[:depth])):
                    yield self._by_path[cgroup], cgroup + _joined(below[depth:])


def _joined(parts: list[str]) -> str:
    return "".join(f"/{part}" for part in parts)


def _has(hierarchy: Hierarchy, cgroup: str, pid: int) -> bool:
    """Say whether the kernel shows a process in a cgroup."""
    try:
        return str(pid) in read_text(hierarchy.folder(cgroup) / hierarchy.tasks).split()
    except AgentError:
        return False
