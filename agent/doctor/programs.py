"""Find programs on the node by process name: kubelet, guard, writers of cpusets. Reads /proc only.

Any container may choose any process name, so the pod is checked too: services of the node run outside of all pods.
Zombies are ignored.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.kernel.cgroup_names import pod_of
from agent.kernel.procfs import DEAD, STATE, read_stat
from pinning.contract import PRODUCT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

# process names, truncated by the kernel to 15 characters
SERVICES: Final = {"tuned": "tuned", "numad": "numad", "cset": "cset"}
IN_PODS: Final = {
    "koordlet": "koordlet",
    "crane-agent": "Crane's agent",
    "nri-resource-po": "an NRI resource policy",
    "dracpu": "dra-driver-cpu",
    "cpusetter": "CPU-Pooler",
    "cmk": "Intel CMK",
}
_READ: Final = 4096  # bytes of a command line: any process may have megabytes


class Program(NamedTuple):
    """A process that has not exited: its pid, its program and its pod."""

    pid: int
    name: str
    pod: str | None  # uid of its pod; "" if its cgroup names none; None if it runs outside of all pods


def programs(proc: Path) -> Iterator[Program]:
    """Yield each live process."""
    for folder in proc.glob("[0-9]*"):
        with suppress(OSError, IndexError):  # the process exited
            name, fields = read_stat(folder)
            if fields[STATE] not in DEAD:
                cgroups = (folder / "cgroup").read_text(encoding="utf-8", errors="replace")
                yield Program(int(folder.name), name, pod_of(cgroups))


def pods_of_verb(proc: Path, verb: str) -> Iterator[str | None]:
    """Yield the pod (see `Program.pod`) of each live process with the command line `corepin VERB`.

    Any process may choose its command line, so the caller must check that the pod is one of corepin's.
    """
    for folder in proc.glob("[0-9]*"):
        with suppress(OSError):  # the process exited
            with (folder / "cmdline").open("rb") as file:
                words = file.read(_READ).decode(errors="replace").split("\0")
            if _runs(words, verb):
                yield pod_of((folder / "cgroup").read_text(encoding="utf-8", errors="replace"))


def _runs(words: list[str], verb: str) -> bool:
    """Return whether a command line is `corepin VERB` or `python corepin VERB`, by any path."""
    program = PurePosixPath(words[0]).name
    command = words[1:] if program.startswith("python") else words
    return len(command) > 1 and PurePosixPath(command[0]).name == PRODUCT and command[1] == verb


def writers(running: Iterable[Program]) -> tuple[str, ...]:
    """Return the running programs that are known to write cpusets, as texts with pid and pod."""
    return tuple(_writers(sorted(running)))


def _writers(running: Iterable[Program]) -> Iterator[str]:
    for pid, name, pod in running:
        if pod is None and (program := SERVICES.get(name) or IN_PODS.get(name)):
            yield f"{program} (pid {pid})"
        elif pod is not None and name in IN_PODS:
            where = f"pod {pod}" if pod else "a pod"
            yield f"{IN_PODS[name]} (pid {pid} in {where})"


def kubelet_runs(running: Iterable[Program]) -> bool:
    """Return whether a kubelet runs on the node itself."""
    return any(program.name == "kubelet" and program.pod is None for program in running)
