"""Read the threads of a virtual machine, in its VMM process and outside, re-listing until no new one appears."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from agent.errors import AgentError, Gone, Refused
from agent.vm.host_threads import companion_threads, is_outside, pit_threads, still_outside, vhost_threads
from agent.vm.process import MOST_THREADS, opened, task_ids, thread_count
from agent.vm.thread_names import role_of
from agent.vm.vcpus import identify_vcpus
from pinning.guests.threads import Role, VMThread, VMThreads

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from agent.vm.process import Process
    from agent.vm.shared_reads import Roots, SharedReads
    from pinning.guests.threads import VMM, Task


def count_threads(roots: Roots, vmm: VMM) -> int:
    """Return the VMM's number of threads, to compare with `own_count`; raise Gone, Refused.

    This costs one call. It does not notice that a new thread replaced an exited one.
    """
    return thread_count(roots.proc, vmm.pid)


def own_ids(roots: Roots, vmm: VMM) -> frozenset[int]:
    """Return the ids of the threads of a VMM; raise Gone when it exited, Refused."""
    return task_ids(roots.proc, vmm.pid, vmm.started)


def is_running(roots: Roots, vmm: VMM) -> bool:
    """Return False if a VMM exited; True also if the process cannot be read."""
    try:
        with opened(roots.proc, vmm.pid) as process:
            return process.started() == vmm.started
    except Refused:
        return True
    except Gone:
        return False


def is_there(reads: SharedReads, known: VMThreads, thread: VMThread) -> bool:
    """Return whether a thread still exists and its id was not reused."""
    if thread.process != known.vmm.pid:
        return is_outside(reads, thread)
    with suppress(AgentError), opened(reads.roots.proc, known.vmm.pid) as process:
        return process.started() == known.vmm.started and process.has(thread.task)
    return False


def _check_identity(process: Process, vmm: VMM) -> None:
    if process.started() != vmm.started:
        raise Gone(f"process {vmm.pid} has exited, and its pid is reused")


def read_threads(
    reads: SharedReads,
    vmm: VMM,
    cgroups: Sequence[str] = (),
    *,
    sandbox_id: str = "",
    known: VMThreads | None = None,
) -> VMThreads:
    """Return the threads of a virtual machine whose container or sandbox has these cgroups; raise Gone, Refused.

    Final names of known threads are not read again.
    """
    seen = _read_own(reads, vmm, known)
    own = frozenset(thread.tid for thread in seen.threads)
    outside = list(vhost_threads(reads, own, cgroups))
    if sandbox_id:
        # Dragonball runs inside of the shim, so some of these threads are already in the list.
        outside += [thread for thread in companion_threads(reads, sandbox_id) if thread.tid not in own]
    timers, note = pit_threads(reads, vmm)
    return _with(seen, outside + timers, (note,) if note else ())


def rescan_threads(reads: SharedReads, known: VMThreads, *, sandbox_id: str = "") -> VMThreads:
    """Return the known threads plus new ones in the process and new vhost threads; raise Gone, Refused."""
    seen = _read_own(reads, known.vmm, known)
    own = frozenset(thread.tid for thread in seen.threads)
    return _with(seen, still_outside(reads, known, own, sandbox_id), known.notes)


def _with(seen: VMThreads, outside: Iterable[VMThread], notes: tuple[str, ...]) -> VMThreads:
    threads = sorted((*seen.threads, *outside), key=lambda thread: thread.tid)
    return replace(seen, threads=tuple(threads), notes=notes)


def _read_own(reads: SharedReads, vmm: VMM, known: VMThreads | None) -> VMThreads:
    """Return the threads of the VMM process, without threads outside of it."""
    with opened(reads.roots.proc, vmm.pid) as process:
        _check_identity(process, vmm)
        if (count := process.count()) > MOST_THREADS:
            raise Refused(f"its {count} threads are too many to inspect")
        tasks = process.names(_settled(known))
        if known and known.identified_by and _are_same(known, tasks):
            return replace(known, threads=known.own)
        names = {task.tid: name for task, name in tasks.items()}
        probed = _probed(known, tasks)
        found = identify_vcpus(process, vmm.kind, names, reads.machines_of(frozenset(names)), probed)
    threads = tuple(_own_thread(vmm, task, name, found.indexes) for task, name in tasks.items())
    return VMThreads(vmm, threads, found.by, found.reason, len(threads), kvm_vcpus=found.kvm_vcpus)


def _are_same(known: VMThreads, tasks: Mapping[Task, str]) -> bool:
    """Return whether `tasks` are the known threads with the known names; both are ascending by id."""
    return len(known.own) == len(tasks) and all(
        (thread.tid, thread.started, thread.name) == (task.tid, task.started, name)
        for thread, (task, name) in zip(known.own, tasks.items(), strict=True)
    )


def _settled(known: VMThreads | None) -> dict[int, tuple[Task, str]]:
    """Return the known threads, each with its name if that is final, else "".

    A new thread at first has the name of the thread that created it. So a name is final only if vCPUs were identified
    and the name stands for a role.
    """
    if known is None:
        return {}
    is_final = bool(known.identified_by)
    return {
        thread.tid: (thread.task, thread.name if is_final and thread.role is not Role.EMULATOR else "")
        for thread in known.own
    }


def _probed(known: VMThreads | None, tasks: Container[Task]) -> dict[int, int]:
    """Return the vCPU indexes, by thread id, that an earlier probe found and whose threads still exist."""
    if known is None or known.identified_by in ("debugfs", "names"):
        return {}
    threads = (thread for thread in known.threads if thread.task in tasks)
    return {thread.tid: thread.index for thread in threads if thread.index is not None}


def _own_thread(vmm: VMM, task: Task, name: str, indexes: Mapping[int, int]) -> VMThread:
    tid = task.tid
    role = Role.EMULATOR if tid == vmm.pid else role_of(vmm.kind, name)
    return VMThread(
        tid,
        Role.VCPU if tid in indexes else role,
        name,
        indexes.get(tid),
        process=vmm.pid,
        started=task.started,
        folder=task.folder,
    )
