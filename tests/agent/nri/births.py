"""Containers that tell themselves how they were born: when, on which CPUs, with which environment."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from pinning.machine.cpuset import CPUSet
from tests.node.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.agent.containerd_node import ContainerdNode, Windows

# The first line tells the CPUs of the first instructions, and the time since the boot before and after them.
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
    """What a container wrote first."""

    name: str
    before: float  # in seconds since the boot, in hundredths
    after: float
    cpus: CPUSet
    environment: tuple[str, ...]  # CMK's words: assigned, the same as a mask, shared, infra; none: no claim


class Tenure(NamedTuple):
    """How long a container certainly ran on CPUs of its own."""

    cpus: CPUSet
    since: float
    until: float


def now() -> float:
    """Return the time since the boot, as containers read it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def birth(node: ContainerdNode, name: str) -> Birth:
    """Return what the container of a pod wrote first, as soon as it is there."""
    [line] = until(f"first line of {name}", lambda: node.log(name)[:1])
    before, after, cpus, *environment = line.split()
    return Birth(name, float(before), float(after), CPUSet.parse(cpus), tuple(environment))


def environment(own: CPUSet, shared: CPUSet) -> tuple[str, ...]:
    """Return what a container with CPUs of its own reads in CMK's words: lists with commas, and a mask in hexadecimal."""
    listed = ",".join(map(str, shared))
    return ",".join(map(str, own)), f"{sum(1 << cpu for cpu in own):X}", listed, listed


def born(node: ContainerdNode, windows: Windows, name: str, **claim: str) -> Birth:
    """Start a pod and wait until its first line and its window are known; `claim` are its annotations."""
    node.add(name, command=TELLING, annotations=claim)
    found = birth(node, name)
    until(f"window of {name}", lambda: name in windows.seconds)
    return found


def trespassers(births: Iterable[Birth], tenures: Iterable[Tenure]) -> list[tuple[Birth, Tenure]]:
    """Return who was born on a CPU that was another's own from before its first instruction until after it."""
    owned = list(tenures)
    return [
        (born, tenure)
        for born in births
        for tenure in owned
        if tenure.since < born.before and born.after < tenure.until and born.cpus & tenure.cpus
    ]
