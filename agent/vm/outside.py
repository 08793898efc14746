"""The threads of a virtual machine that are not in its process: the kernel's, and those of Kata's other processes."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from agent.errors import AgentError
from agent.vm.find import ids_in, names_sandbox
from agent.vm.names import companion_role
from agent.vm.process import MOST_THREADS, opened
from pinning.planning.vm_threads import Role, VMThread

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from agent.vm.node import KernelThread, Node
    from pinning.planning.vm_threads import VMM, VMThreads

_VHOST: Final = "vhost-"
_TIMER: Final = "kvm-pit/"


def vhost_threads(node: Node, own: frozenset[int], cgroups: Iterable[str]) -> Iterator[VMThread]:
    """Yield the kernel's vhost threads of a process with these threads.

    Before Linux 6.4 they are children of kthreadd with the number of the thread that asked for them, in the cgroup
    that it was in then.
    """
    found = {thread.tid: thread for thread in node.kernel_threads if _number(thread.name) in own}
    hierarchy = node.roots.hierarchy
    tasks = ids_in(hierarchy, cgroups, hierarchy.tasks) if hierarchy else []
    for task in tasks[:MOST_THREADS]:
        if task not in own and task not in found and (thread := node.kernel_thread(task)):
            found[task] = thread
    for thread in found.values():
        if thread.name.startswith(_VHOST):
            yield _of_kernel(thread, Role.VHOST)


def _of_kernel(thread: KernelThread, role: Role) -> VMThread:
    return VMThread(thread.tid, role, thread.name, process=thread.tid, started=thread.started)


def count_vhost_threads(node: Node, own: Container[int]) -> int:
    """Return how many of the kernel's vhost threads have the number of one of these threads."""
    return sum(_number(thread.name) in own for thread in node.kernel_threads)


def pit_threads(node: Node, vmm: VMM) -> tuple[list[VMThread], str]:
    """Return the kernel's timer of a VMM, with its number in its own pid namespace; or none, and why it is left.

    VMMs in other namespaces may have the same number, and not every guest has a timer: so several may match, or one that
    another VMM may have made. What is older than a VMM is none of it.
    """
    timers = [thread for thread in node.kernel_threads if thread.name.startswith(_TIMER)]
    if not any(timer.started >= vmm.started for timer in timers):
        return [], ""
    with opened(node.roots.proc, vmm.pid) as process:
        number = process.ids()[-1]
    found = [timer for timer in timers if _is_called(timer, number) and timer.started >= vmm.started]
    vmms = {
        vmm.pid,
        *(pid for pid, at in node.vmms_called(number) if any(at <= timer.started for timer in found)),
    }
    if len(found) == len(vmms) == 1:
        return [_of_kernel(found[0], Role.PIT)], ""
    return [], _unclear(found, vmms) if found else ""


def _is_called(timer: KernelThread, number: int) -> bool:
    return timer.name == f"{_TIMER}{number}"


def _unclear(timers: Sequence[KernelThread], vmms: Iterable[int]) -> str:
    tids, pids = (", ".join(map(str, sorted(ids))) for ids in ((timer.tid for timer in timers), vmms))
    return f"threads {tids} are called {timers[0].name}, and processes {pids} may have made them: left as they are"


def companion_threads(node: Node, sandbox_id: str) -> Iterator[VMThread]:
    """Yield the threads of a Kata sandbox's shim and file system daemons."""
    for command in node.commands_of(sandbox_id):
        if role := companion_role(command.program):
            with suppress(AgentError), opened(node.roots.proc, command.pid) as process:
                for task, name in process.names().items():
                    yield VMThread(task.tid, role, name, process=command.pid, started=task.started)


def still_outside(node: Node, known: VMThreads, own: frozenset[int], sandbox_id: str) -> Iterator[VMThread]:
    """Yield the threads outside that were found at an earlier look and are there, and vhost's that came since."""
    there = [
        thread for thread in known.threads if thread.tid not in own and _is_there(node, thread, sandbox_id)
    ]
    yield from there
    kept = {thread.tid for thread in there}
    yield from (thread for thread in vhost_threads(node, own, ()) if thread.tid not in kept)


def _is_there(node: Node, thread: VMThread, sandbox_id: str) -> bool:
    """Say whether a thread outside is what it was, and of this sandbox: its id may be another thread's by now."""
    if thread.role in (Role.VIRTIOFSD, Role.SHIM):
        command = node.command(thread.process)
        if companion_role(command.program) is not thread.role or not names_sandbox(command.words, sandbox_id):
            return False
    return is_outside(node, thread)


def is_outside(node: Node, thread: VMThread) -> bool:
    """Say whether a thread outside of the VMM is there: the kernel's by name, parent and start, else by its process."""
    if thread.role in (Role.VHOST, Role.PIT):
        found = node.kernel_thread(thread.tid)
        return found is not None and (found.name, found.started) == (thread.name, thread.started)
    with suppress(AgentError), opened(node.roots.proc, thread.process) as process:
        return process.has(thread.task)
    return False


def _number(name: str) -> int | None:
    number = name.partition("-")[2]
    return int(number) if number.isdecimal() else None
