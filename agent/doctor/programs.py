"""The node's programs that matter to the checks, by the name of their process. Reads /proc only.

Any container may give its process any name, so it counts where a program of that name runs: services of the node run
outside of all pods. Zombies do nothing, and do not count.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.kernel.procfs import DEAD, STATE, read_stat

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

# By the name of the process, which the kernel cuts at 15 letters
SERVICES: Final = {"tuned": "tuned", "numad": "numad", "cset": "cset"}
IN_PODS: Final = {
    "koordlet": "koordlet",
    "crane-agent": "Crane's agent",
    "nri-resource-po": "an NRI resource policy",
    "dracpu": "dra-driver-cpu",
    "cpusetter": "CPU-Pooler",
    "cmk": "Intel CMK",
}
_UID: Final = "[0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12}"  # without dashes: of a static pod
# From a pod with a cgroup namespace of its own, paths of others begin with /.. and do not name the pods' root.
_POD: Final = re.compile(rf"kubepods|[/-]pod(?P<uid>{_UID})")


class Program(NamedTuple):
    """A process that is alive."""

    pid: int
    name: str
    pod: str | None  # uid of its pod; "" if its cgroup names none; None if it runs outside of all pods


def programs(proc: Path) -> Iterator[Program]:
    """Yield each process that is alive."""
    for folder in proc.glob("[0-9]*"):
        with suppress(OSError, IndexError):  # it ended
            name, fields = read_stat(folder)
            if fields[STATE] not in DEAD:
                cgroups = (folder / "cgroup").read_text(encoding="utf-8", errors="replace")
                yield Program(int(folder.name), name, pod_of(cgroups))


def pod_of(cgroups: str) -> str | None:
    """Return the uid of the pod in the path of a cgroup; "" if it names none, None if it is outside of all pods."""
    found = [match["uid"] or "" for match in _POD.finditer(cgroups)]
    return max(found).replace("_", "-") if found else None


def writers(running: Iterable[Program]) -> tuple[str, ...]:
    """Return the programs that are known to write cpusets, and where each runs."""
    return tuple(_writers(sorted(running)))


def _writers(running: Iterable[Program]) -> Iterator[str]:
    for pid, name, pod in running:
        if pod is None and (program := SERVICES.get(name) or IN_PODS.get(name)):
            yield f"{program} (pid {pid})"
        elif pod is not None and name in IN_PODS:
            where = f"pod {pod}" if pod else "a pod"
            yield f"{IN_PODS[name]} (pid {pid} in {where})"


def kubelet_runs(running: Iterable[Program]) -> bool:
    """Say whether a kubelet runs on the node itself."""
    return any(program.name == "kubelet" and program.pod is None for program in running)
