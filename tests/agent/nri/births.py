"""Containers that report their own start: time, CPUs and environment."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from pinning.machine.cpuset import CPUSet
from tests.environments.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.environments.node.containerd_node import ContainerdNode, Windows

# The first line has the CPUs at the first instructions, and the uptime before and after them.
TELLING = (
    "/bin/sh",
    "-c",
    """
read before rest < /proc/uptime
while read name value; do
  case $name in Cpus_allowed_list:) break;; esac
done < /proc/self/status
read after rest < /proc/uptime
echo "$before $after $value $CMK_CPUS_ASSIGNED $CMK_CPUS_ASSIGNED_MASK $CMK_CPUS_SHARED $CMK_CPUS_INFRA"
exec /bin/sleep 1000000
""",
)


class Birth(NamedTuple):
    """The line that a container prints first."""

    name: str
    before: float  # seconds since boot, with a resolution of 0.01 s
    after: float
    cpus: CPUSet
    environment: tuple[str, ...]  # CMK's variables: assigned CPUs, mask, shared and infra pool; or ()


class Tenure(NamedTuple):
    """A period in which a container certainly owned its CPUs."""

    cpus: CPUSet
    since: float
    until: float


def now() -> float:
    """Return the time since boot, as containers read it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def birth(node: ContainerdNode, name: str) -> Birth:
    """Wait until a pod's container has printed its first line, and return it."""
    [line] = until(f"first line of {name}", lambda: node.log(name)[:1])
    before, after, cpus, *environment = line.split()
    return Birth(name, float(before), float(after), CPUSet.parse(cpus), tuple(environment))


def environment(own: CPUSet, shared: CPUSet) -> tuple[str, ...]:
    """Return the variables of CMK's contract of a container with its own CPUs: CPU lists, and a hexadecimal mask."""
    listed = ",".join(map(str, shared))
    return ",".join(map(str, own)), f"{sum(1 << cpu for cpu in own):X}", listed, listed


def born(node: ContainerdNode, windows: Windows, name: str, **claim: str) -> Birth:
    """Start a pod with annotations; wait for its first line and its unpinned time, and return both."""
    node.add(name, command=TELLING, annotations=claim)
    found = birth(node, name)
    until(f"window of {name}", lambda: name in windows.seconds)
    return found


def trespassers(births: Iterable[Birth], tenures: Iterable[Tenure]) -> list[tuple[Birth, Tenure]]:
    """Return the containers that started on CPUs which another container owned at that time."""
    owned = list(tenures)
    return [
        (born, tenure)
        for born in births
        for tenure in owned
        if tenure.since < born.before and born.after < tenure.until and born.cpus & tenure.cpus
    ]
