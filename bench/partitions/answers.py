"""Inside the guest: the kernel's answers to partitions of containers, and to writes beside a partition."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.partitions.cgroups import CGROUPS, OWN, partition, process, read, write
from pinning.machine.cpuset import CPUSet
from tests.environments.guest.inside import POD_ROOT, online, report

if TYPE_CHECKING:
    from collections.abc import Sequence

PODS: Final = CGROUPS / POD_ROOT.strip("/")
CHILDREN: Final = 4
FOUR_CHILDREN: Final = "for i in 1 2 3 4; do (while :; do :; done) & done; wait"
SECONDS: Final = 5
LAST_CPU: Final = 38  # index of the last CPU in /proc/PID/stat


def answers(container: Path, neighbour: Path, cpus: CPUSet, pids: Sequence[int]) -> None:
    """Report the kernel's answers, step by step. The cpusets are not restored."""
    tell("isolated on the container alone", write(container, partition="isolated"))
    write(container, partition="member")
    is_there = (container / "cpuset.cpus.exclusive").exists()
    tell("cpuset.cpus.exclusive", "there" if is_there else "not there")
    for kind in ("root", "isolated"):
        with partition(kind, cpus, pids, container):
            tell(f"CPUs of four children of one shell, without pins, in a partition {kind}", children(pids))
            if kind == "isolated":
                beside(neighbour)
    chain(container, cpus)


def tell(to: str, says: object) -> None:
    """Report one answer."""
    report("answer", to=to, says=str(says))


def children(owner: Sequence[int]) -> str:
    """Return the last CPU of each of four busy processes in the partition, while the owner is stopped."""
    for pid in owner:
        os.kill(pid, signal.SIGSTOP)
    with process(FOUR_CHILDREN, OWN) as shell:
        found: list[str] = []
        while len(found) < CHILDREN:
            time.sleep(0.5)
            found = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
        time.sleep(SECONDS)
        cpus = [Path(f"/proc/{pid}/stat").read_text().split()[LAST_CPU] for pid in found]
    for pid in owner:
        os.kill(pid, signal.SIGCONT)
    return " ".join(cpus)


def beside(neighbour: Path) -> None:
    """Report the effect of cpuset writes to other cgroups that contain the partition's CPUs."""
    was = (neighbour / "cpuset.cpus").read_text().strip()
    says = attempt(neighbour)
    tell("all CPUs written to another container", f"{says}; it has {read(neighbour, 'effective')}")
    (neighbour / "cpuset.cpus").write_text(was)
    says = attempt(PODS)
    tell("all CPUs written to kubepods", f"{says}; the partition is {read(OWN, 'partition')!r}")


def attempt(folder: Path) -> str:
    """Write all CPUs to a cgroup, as a kubelet can; return the kernel's answer."""
    try:
        (folder / "cpuset.cpus").write_text(online())
    except OSError as error:
        return error.strerror or str(error)
    return "accepted"


def chain(container: Path, cpus: CPUSet) -> None:
    """Make each cgroup above a container a partition, which Linux before 6.7 needs, then the container."""
    pod = container.parent
    pods = CPUSet.parse(online()) - CPUSet((0, 1))
    tell(f"root on kubepods with CPUs {pods}", write(PODS, str(pods), "root"))
    tell("CPUs of the host's tasks then", read(CGROUPS, "effective"))
    tell(f"root on the pod with CPUs {cpus}", write(pod, str(cpus), "root"))
    tell("isolated on the container with all CPUs of its pod", write(container, str(cpus), "isolated"))
    tell(
        "CPUs of the container and of the pod's sandbox",
        f"{read(container, 'effective')}, {sandbox(container)}",
    )


def sandbox(container: Path) -> str:
    """Return the CPUs of the other cgroups of a container's pod."""
    found = (it for it in sorted(container.parent.iterdir()) if it.is_dir() and it != container)
    return " ".join(read(it, "effective") for it in found)
