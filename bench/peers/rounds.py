"""One round of `bench.peers`: pods that start and end beside one plugin, and their cost."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from agent.kernel.cgroupfs import find_hierarchy
from agent.kernel.sysfs import read_topology
from pinning.machine.cpuset import CPUSet
from tests.agent.nri.births import TELLING
from tests.environments.node.containerd import CGROUP_ROOT, FOREVER
from tests.environments.node.node import Container
from tests.environments.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bench.peers.plugins import Plugin
    from tests.environments.node.containerd import Containerd, Pod

BYSTANDERS: Final = 5
REST_SECONDS: Final = 0.3  # between two changes, as in bench.pod_cost
LONGEST_SECONDS: Final = 5.0  # timeout after which freed CPUs count as lost
NAME: Final = "main"
NANOSECONDS: Final = 1e9
_MB: Final = 1024


@dataclass
class Figures:
    """Figures of one round."""

    plain_ms: float = 0.0  # CPU time for a pod without claims
    owner_ms: float = 0.0
    idle: float = 0.0  # per cent of a CPU
    pss: float = 0.0  # MB
    rss: float = 0.0
    births: int = 0
    right: int = 0  # on their CPUs at the first instruction
    starts: list[float] = field(default_factory=list)  # ms from CreateContainer to the end of StartContainer
    freed: list[float] = field(default_factory=list)  # ms until the other pods have a removed owner's CPUs
    not_freed: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{title} {pick(self):.2f}" for title, pick in ROWS)


ROWS: Final[Sequence[tuple[str, Callable[[Figures], float]]]] = (
    ("CPU time, a pod that asks for nothing, ms", lambda it: it.plain_ms),
    ("CPU time, an owner that comes and goes, ms", lambda it: it.owner_ms),
    ("idle with 6 pods, % of a CPU", lambda it: it.idle),
    ("PSS, MB", lambda it: it.pss),
    ("RSS, MB", lambda it: it.rss),
    ("create and start of a plain pod's container, p50 ms", lambda it: median(it.starts)),
    ("births", lambda it: float(it.births)),
    ("of these on their CPUs at the first instruction", lambda it: float(it.right)),
    ("freed CPUs are back at the others after, p50 ms", lambda it: median(it.freed or [nan])),
    ("not given back within 5 s, owners", lambda it: float(it.not_freed)),
)


class Round:
    """The pods of one round."""

    def __init__(self, plugin: Plugin, containerd: Containerd) -> None:
        self.figures = Figures()
        self._plugin = plugin
        self._containerd = containerd
        self._all = read_topology(Path("/")).online
        self._pods: dict[str, Pod] = {}
        self._bystanders: list[Container] = []

    def bystander(self, name: str) -> None:
        """Start a pod that keeps running."""
        self._plugin.plain(name)
        self._bystanders.append(self._start(name, {}, {}, FOREVER))

    def plain(self, name: str) -> None:
        """Start and end a pod without claims; it must start on the bystanders' CPUs."""
        self._plugin.plain(name)
        began = time.perf_counter()
        self._start(name, {}, {}, TELLING)
        self.figures.starts.append((time.perf_counter() - began) * 1e3)
        self._count(name, self._bystanders[0].cpus)
        time.sleep(REST_SECONDS)
        self._remove(name)
        time.sleep(REST_SECONDS)

    def owner(self, name: str) -> None:
        """Start and end an owner of one CPU; the bystanders must leave the CPU, and get it back."""
        annotations, environment = self._plugin.owner(name)
        own = self._start(name, annotations, environment, TELLING).cpus
        until("the others left", lambda: not any(it.cpus & own for it in self._bystanders))
        self._count(name, own if len(own) == 1 else CPUSet())
        time.sleep(REST_SECONDS)
        self._remove(name)
        began = time.perf_counter()
        while any(it.cpus != self._all for it in self._bystanders):
            if time.perf_counter() - began > LONGEST_SECONDS:
                self.figures.not_freed += 1
                break
            time.sleep(0.0002)
        else:
            self.figures.freed.append((time.perf_counter() - began) * 1e3)
        time.sleep(REST_SECONDS)

    def _start(
        self,
        name: str,
        annotations: Mapping[str, str],
        environment: Mapping[str, str],
        command: Sequence[str],
    ) -> Container:
        pod = self._pods[name] = self._containerd.run_pod(name, f"uid-{name}", annotations)
        key = pod.start(pod.create(NAME, command, environment=environment))
        folder = self._containerd.container_folder(f"uid-{name}", key)
        return Container(key, 0, find_hierarchy(CGROUP_ROOT), folder)

    def _remove(self, name: str) -> None:
        self._plugin.forget(name)
        self._containerd.remove_pod(self._pods.pop(name).id)
        self._containerd.remove_pod_cgroup(f"uid-{name}")

    def _count(self, name: str, expected: CPUSet) -> None:
        """Compare the CPUs of a container's first instruction."""
        file = self._containerd.directory / "logs" / f"uid-{name}" / f"{NAME}.log"
        line = until(f"first line of {name}", lambda: file.exists() and file.read_text().partition("\n")[0])
        found = CPUSet.parse(str(line).split()[5])
        self.figures.births += 1
        self.figures.right += found == expected
        if found != expected:
            sys.stderr.write(f"{name} started on {found}, expected {expected}\n")


def measure(plugin: Plugin, containerd: Containerd, name: str, pods: int, idle_seconds: float) -> Figures:
    """Start and end pods beside a plugin; return their cost.

    `name` identifies the round in the names of its pods, because logs of earlier pods are kept.
    """
    found = Round(plugin, containerd)
    for number in range(BYSTANDERS):
        found.bystander(f"bystander-{number}-{name}")
    time.sleep(1)
    for live in (found.plain, found.owner):
        live(f"first-{live.__name__}-{name}")
    found.figures = figures = Figures()
    figures.plain_ms = _cost(plugin, found.plain, name, pods)
    figures.owner_ms = _cost(plugin, found.owner, name, pods)
    found.bystander(f"idle-{name}")
    time.sleep(5)
    began, used = time.monotonic(), cpu_seconds(plugin.pid)
    time.sleep(idle_seconds)
    figures.idle = (cpu_seconds(plugin.pid) - used) / (time.monotonic() - began) * 100
    figures.pss, figures.rss = memory(plugin.pid)
    return figures


def _cost(plugin: Plugin, live: Callable[[str], None], name: str, pods: int) -> float:
    """Return the plugin's CPU time in milliseconds per pod."""
    used = cpu_seconds(plugin.pid)
    for number in range(pods):
        live(f"{live.__name__}-{number}-{name}")
    return (cpu_seconds(plugin.pid) - used) / pods * 1e3


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process's threads."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in tasks) / NANOSECONDS


def memory(pid: int) -> tuple[float, float]:
    """Return PSS and RSS of a process in MB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    values = {line.split(":")[0]: int(line.split()[1]) / _MB for line in lines[1:]}
    return values["Pss"], values["Rss"]
