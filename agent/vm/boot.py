"""Affinity of VMM processes of Kata sandboxes that boot, which the runtime does not list (interface `BootingMachines`).

Kata starts the VMM from its shim, after it moved the shim into the sandbox's cgroup below the pod's, or into a cgroup
for overhead. Threads and child processes inherit the affinity of the thread that starts them.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final

from agent.errors import AgentError
from agent.kernel.affinity import KERNEL, Affinities
from agent.kernel.cgroupfs import PROCS, subfolders
from agent.kernel.mover import Bound, move_threads
from agent.vm.find import MOST_PROCESSES, ids_in
from agent.vm.process import MOST_THREADS, opened
from agent.vm.shared_reads import SharedReads
from agent.vm.thread_names import companion_role, kind_of
from agent.vm_interfaces import ConfinedBoot
from pinning.machine.cpuset import union

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from agent.vm.process import Process
    from agent.vm.shared_reads import Roots
    from agent.vm_interfaces import BootScope
    from pinning.machine.cpuset import CPUSet

BOUND: Final = Bound(rounds=8, listed=MOST_THREADS)  # the next poll moves threads that started since
OVERHEADS: Final = ("/kata_overhead", "/kata.slice/kata-overhead.slice")
# a pod's uid; users may choose it for static pods, so it must not contain a path
_UID: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")
_QOS: Final = re.compile(r"(?:.*-)?(?:burstable|besteffort)(?:\.slice)?")
_SLICE: Final = ".slice"
_TICKS: Final = os.sysconf("SC_CLK_TCK")  # clock ticks per second


class KernelBootingMachines:
    """Finds VMMs and shims of starting pods, and sets their threads' affinity."""

    def __init__(
        self,
        roots: Roots,
        pod_roots: Collection[str] = (),
        affinities: Affinities = KERNEL,
        boot_time: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self._roots = roots
        self._pod_roots = frozenset(pod_roots)
        self._affinities = affinities
        self._boot_time = boot_time

    def confine(self, scope: BootScope, cpus: CPUSet) -> tuple[ConfinedBoot, ...]:
        """Set the affinity `cpus` on every thread that may run elsewhere; return the VMMs with a moved thread."""
        reads = SharedReads(self._roots)
        pids = ids_in(self._roots.hierarchy, self._cgroups(scope), PROCS)
        return tuple(moved for pid in islice(pids, MOST_PROCESSES) if (moved := self._put(reads, pid, cpus)))

    def _put(self, reads: SharedReads, pid: int, cpus: CPUSet) -> ConfinedBoot | None:
        program = reads.command(pid).program
        is_vmm = kind_of(program) != "other"
        if not is_vmm and companion_role(program) is None:
            return None
        with suppress(AgentError), opened(self._roots.proc, pid) as process:
            if (
                len(process.ids()) > 1
            ):  # a process of a container: only Kata's own processes run in the node's pid namespace
                return None
            before = self._move(process, cpus)
            if before and is_vmm:
                return ConfinedBoot(pid, before, self._boot_time() - process.started() / _TICKS)
        return None

    def _move(self, process: Process, cpus: CPUSet) -> CPUSet:
        """Move the threads to these CPUs; return the CPUs on which moved threads could run before.

        The next poll finds threads that started in between.
        """
        before: dict[int, CPUSet] = {}

        def target(task: int, mask: CPUSet) -> CPUSet | None:
            if mask <= cpus:
                return None
            before[task] = mask
            return cpus

        moved = move_threads(process.threads(), target, self._affinities, BOUND)
        return union(before[task] for task, found in moved.masks.items() if found <= cpus)

    def _cgroups(self, scope: BootScope) -> Iterator[str]:
        """Yield the cgroups of the pods, and the overhead cgroups of sandboxes that the runtime does not list."""
        hierarchy = self._roots.hierarchy
        if hierarchy is None:
            return
        uids = [uid for uid in scope.pods if _UID.fullmatch(uid)]
        for root in self._pod_roots | scope.pod_roots:
            levels = [
                child.name for child in subfolders(hierarchy.folder(root)) if _QOS.fullmatch(child.name)
            ]
            for parent in (root, *(f"{root}/{level}" for level in levels)):
                yield from (f"{parent}/{name}" for uid in uids for name in _pod_names(parent, uid))
        for overhead in OVERHEADS:
            for child in subfolders(hierarchy.folder(overhead)):
                if _sandbox_of(child.name) not in scope.sandboxes:
                    yield f"{overhead}/{child.name}"


def _pod_names(parent: str, uid: str) -> Iterator[str]:
    """Yield the name of a pod's cgroup below its parent, as systemd's slice or as cgroupfs folder."""
    above = parent.rpartition("/")[2]
    if above.endswith(_SLICE):
        yield f"{above.removesuffix(_SLICE)}-pod{uid.replace('-', '_')}{_SLICE}"
    else:
        yield f"pod{uid}"


def _sandbox_of(name: str) -> str:
    """Return the sandbox id in the name of an overhead cgroup: ID, or runtime-rs-ID.scope."""
    return name.removesuffix(".scope").rpartition("-")[2]
