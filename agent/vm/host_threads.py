"""Threads of a virtual machine outside its process: kernel threads, and threads of Kata's companion processes."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from agent.errors import AgentError
from agent.vm.find import ids_in, names_sandbox
from agent.vm.process import MOST_THREADS, opened
from agent.vm.thread_names import companion_role
from pinning.guests.threads import Role, VMThread

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from agent.vm.shared_reads import KernelThread, SharedReads
    from pinning.guests.threads import VMM, VMThreads

_VHOST: Final = "vhost-"
_TIMER: Final = "kvm-pit/"


def vhost_threads(reads: SharedReads, own: frozenset[int], cgroups: Iterable[str]) -> Iterator[VMThread]:
    """Yield the kernel's vhost threads of the process whose thread ids are `own`.

    Before Linux 6.4 a vhost thread is a child of kthreadd. Its name has the id of the thread that created it, and it is
    in the cgroup in which that thread was then.
    """
    found = {thread.tid: thread for thread in reads.kernel_threads if _number(thread.name) in own}
    hierarchy = reads.roots.hierarchy
    tasks = ids_in(hierarchy, cgroups, hierarchy.tasks) if hierarchy else []
    for task in tasks[:MOST_THREADS]:
        if task not in own and task not in found and (thread := reads.kernel_thread(task)):
            found[task] = thread
    for thread in found.values():
        if thread.name.startswith(_VHOST):
            yield _of_kernel(thread, Role.VHOST)


def _of_kernel(thread: KernelThread, role: Role) -> VMThread:
    return VMThread(thread.tid, role, thread.name, process=thread.tid, started=thread.started)


def count_vhost_threads(reads: SharedReads, own: Container[int]) -> int:
    """Return the number of kernel threads whose name has the id of one of these threads."""
    return sum(_number(thread.name) in own for thread in reads.kernel_threads)


def pit_threads(reads: SharedReads, vmm: VMM) -> tuple[list[VMThread], str]:
    """Return the kernel's timer thread (kvm-pit) of a VMM, or no thread with the reason if the match is not certain.

    The thread's name has the pid of the VMM in its own pid namespace. VMMs in other namespaces may have the same pid,
    and not every guest has a timer thread, so several threads may match, or the match may belong to another VMM.
    Threads older than the VMM are left out.
    """
    timers = [thread for thread in reads.kernel_threads if thread.name.startswith(_TIMER)]
    if not any(timer.started >= vmm.started for timer in timers):
        return [], ""
    with opened(reads.roots.proc, vmm.pid) as process:
        number = process.ids()[-1]
    found = [timer for timer in timers if _is_called(timer, number) and timer.started >= vmm.started]
    vmms = {
        vmm.pid,
        *(pid for pid, at in reads.vmms_called(number) if any(at <= timer.started for timer in found)),
    }
    if len(found) == len(vmms) == 1:
        return [_of_kernel(found[0], Role.PIT)], ""
    return [], _unclear(found, vmms) if found else ""


def _is_called(timer: KernelThread, number: int) -> bool:
    return timer.name == f"{_TIMER}{number}"


def _unclear(timers: Sequence[KernelThread], vmms: Iterable[int]) -> str:
    tids, pids = (", ".join(map(str, sorted(ids))) for ids in ((timer.tid for timer in timers), vmms))
    return f"threads {tids} are called {timers[0].name}, and processes {pids} may have made them: left as they are"


def companion_threads(reads: SharedReads, sandbox_id: str) -> Iterator[VMThread]:
    """Yield the threads of a Kata sandbox's shim and file system daemons."""
    for command in reads.commands_of(sandbox_id):
        if role := companion_role(command.program):
            with suppress(AgentError), opened(reads.roots.proc, command.pid) as process:
                for task, name in process.names().items():
                    yield VMThread(task.tid, role, name, process=command.pid, started=task.started)


def still_outside(
    reads: SharedReads, known: VMThreads, own: frozenset[int], sandbox_id: str
) -> Iterator[VMThread]:
    """Yield known threads outside the VMM's process that still exist, and new vhost threads."""
    there = [
        thread for thread in known.threads if thread.tid not in own and _is_there(reads, thread, sandbox_id)
    ]
    yield from there
    kept = {thread.tid for thread in there}
    yield from (thread for thread in vhost_threads(reads, own, ()) if thread.tid not in kept)


def _is_there(reads: SharedReads, thread: VMThread, sandbox_id: str) -> bool:
    """Return whether a thread outside the VMM still exists and belongs to this sandbox: its id may have been reused."""
    if thread.role in (Role.VIRTIOFSD, Role.SHIM):
        command = reads.command(thread.process)
        if companion_role(command.program) is not thread.role or not names_sandbox(command.words, sandbox_id):
            return False
    return is_outside(reads, thread)


def is_outside(reads: SharedReads, thread: VMThread) -> bool:
    """Return whether a thread outside the VMM still exists: its id may have been reused.

    A kernel thread is compared by name, parent and start time, another one by start time within its process.
    """
    if thread.role in (Role.VHOST, Role.PIT):
        found = reads.kernel_thread(thread.tid)
        return found is not None and (found.name, found.started) == (thread.name, thread.started)
    with suppress(AgentError), opened(reads.roots.proc, thread.process) as process:
        return process.has(thread.task)
    return False


def _number(name: str) -> int | None:
    number = name.partition("-")[2]
    return int(number) if number.isdecimal() else None
