"""The threads of a virtual machine that are not in its process: the kernel's, and those of Kata's other processes."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from agent.errors import AgentError
from agent.vm.find import ids_in, names_sandbox
from agent.vm.names import companion_role
from agent.vm.process import MOST_THREADS, opened
from pinning.vm_threads import Role, VMThread

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agent.vm.node import Node
    from pinning.vm_threads import VMM, VMThreads

_VHOST: Final = "vhost-"
_TIMER: Final = "kvm-pit/"


def vhost_threads(node: Node, own: frozenset[int], cgroups: Iterable[str]) -> Iterator[VMThread]:
    """Yield the kernel's vhost threads of a process with these threads.

    Before Linux 6.4 they are children of kthreadd with the number of the thread that asked for them, in the cgroup
    that it was in then.
    """
    found = {thread.tid: thread.name for thread in node.kernel_threads if _number(thread.name) in own}
    hierarchy = node.roots.hierarchy
    tasks = ids_in(hierarchy, cgroups, hierarchy.tasks) if hierarchy else []
    for task in tasks[:MOST_THREADS]:
        if task not in own and task not in found and (thread := node.kernel_thread(task)):
            found[task] = thread.name
    for tid, name in found.items():
        if name.startswith(_VHOST):
            yield VMThread(tid, Role.VHOST, name)


def pit_threads(node: Node, vmm: VMM) -> list[VMThread]:
    """Return the kernel threads that may be the timer of a VMM: they have its number in its own pid namespace.

    VMMs in other namespaces may have the same number, so several may match, and one that is older is none of it.
    """
    timers = [
        thread
        for thread in node.kernel_threads
        if thread.name.startswith(_TIMER) and thread.started >= vmm.started
    ]
    if not timers:
        return []
    with opened(node.roots.proc, vmm.pid) as process:
        name = f"{_TIMER}{process.ids()[-1]}"
    return [VMThread(thread.tid, Role.PIT, thread.name) for thread in timers if thread.name == name]


def companion_threads(node: Node, sandbox_id: str) -> Iterator[VMThread]:
    """Yield the threads of a Kata sandbox's shim and file system daemons."""
    for command in node.commands_of(sandbox_id):
        if role := companion_role(command.program):
            with suppress(AgentError), opened(node.roots.proc, command.pid) as process:
                yield from (VMThread(task, role, name) for task, name in process.names().items())


def still_outside(node: Node, known: VMThreads, own: frozenset[int], sandbox_id: str) -> Iterator[VMThread]:
    """Yield the threads outside that were found at an earlier look and are there."""
    for thread in known.threads:
        if thread.tid not in own and _is_there(node, thread, sandbox_id):
            yield thread


def _is_there(node: Node, thread: VMThread, sandbox_id: str) -> bool:
    """Say whether a thread outside is what it was: its id may be somebody else's by now."""
    if thread.role in (Role.VHOST, Role.PIT):
        found = node.kernel_thread(thread.tid)
        return found is not None and found.name == thread.name
    if thread.role in (Role.VIRTIOFSD, Role.SHIM):
        command = node.command(thread.tid)
        return companion_role(command.program) is thread.role and names_sandbox(command.words, sandbox_id)
    return False


def _number(name: str) -> int | None:
    number = name.partition("-")[2]
    return int(number) if number.isdecimal() else None
