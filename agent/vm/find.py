"""Which process is the VMM of a pod: of KubeVirt's compute container, of a Kata sandbox.

What a process calls itself proves nothing by itself: a VMM is looked for in the cgroups of its pod, or among the
processes that are in no container. Its start time is kept with it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from agent.errors import AgentError, Gone
from agent.kernel.cgroupfs import PROCS, ids_below
from agent.vm.names import companion_role, has_dragonball, kind_of, parts_of
from agent.vm.process import opened
from agent.vm.qemu_args import read_args, read_shape
from pinning.planning.vm_threads import VMM, Role

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.kernel.cgroupfs import Hierarchy
    from agent.vm.node import Command, Node, Roots
    from pinning.planning.vm_threads import GuestShape, Kind

MOST_COMMAND_BYTES: Final = 2**19  # of a guest with hundreds of devices; who starts the process chooses them
MOST_PROCESSES: Final = 256  # of one container or sandbox, that are looked at: KubeVirt's have a dozen
_FIRST_WORDS: Final = 64  # libvirt names the guest in the third


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A Kata sandbox, as its runtime knows it."""

    id: str
    pid: int = 0  # of its VMM, as the runtime says; 0: not said
    cgroups: tuple[str, ...] = ()  # where its processes may be: its own, and Kata's for overhead


def find_container_vmm(node: Node, cgroup: str) -> VMM | None:
    """Return the QEMU that runs the guest of KubeVirt's compute container; None while there is none.

    libvirt starts others for a moment to learn what QEMU can do: their guests have no name.
    """
    commands = _commands(node, ids_in(node.roots.hierarchy, [cgroup], PROCS))
    guests = [command for command in commands if kind_of(command.program) == "qemu" and _guest_name(command)]
    return min(_vmms(node, guests), key=lambda vmm: (vmm.started, vmm.pid), default=None)


def find_sandbox_vmm(node: Node, sandbox: Sandbox) -> VMM | None:
    """Return the VMM of a Kata sandbox; None when none is found, or several are.

    The runtime's pid counts if the process names the sandbox or is in its cgroup: the pid may be reused by now.
    """
    inside = ids_in(node.roots.hierarchy, sandbox.cgroups, PROCS)
    said = _commands(node, [sandbox.pid] if sandbox.pid else [])
    if said and (said[0].pid in inside or names_sandbox(said[0].words, sandbox.id)):
        return next(iter(_vmms(node, said)), None)
    found = _parents(
        node, [command for command in _commands(node, inside) if _kind(node, command) != "other"]
    )
    if len(found) != 1:
        several = {command.pid for command in found}
        named = (command for command in node.commands_of(sandbox.id) if _kind(node, command) != "other")
        found = _parents(node, [command for command in named if not several or command.pid in several])
    vmms = _vmms(node, found)
    return vmms[0] if len(vmms) == 1 else None


def _parents(node: Node, commands: list[Command]) -> list[Command]:
    """Return the processes that no other of these started: crosvm runs each device in a child of its own."""
    pids = {command.pid for command in commands}
    return [command for command in commands if node.parent(command.pid) not in pids - {command.pid}]


def _kind(node: Node, command: Command) -> Kind:
    """Return which VMM a process is; Kata's shim is Dragonball if threads of it are its vCPUs."""
    if companion_role(command.program) is not Role.SHIM:
        return kind_of(command.program)
    with suppress(AgentError), opened(node.roots.proc, command.pid) as process:
        if has_dragonball(process.names().values()):
            return "dragonball"
    return "other"


def names_sandbox(words: Iterable[str], sandbox_id: str) -> bool:
    """Say whether a command line has a sandbox's id as a word, as a part of a path, or as the name of a guest."""
    return sandbox_id in parts_of(words)


def read_guest_shape(roots: Roots, vmm: VMM) -> GuestShape | None:
    """Return what QEMU's command line says of the guest; None for another VMM; raise Gone, Refused."""
    if vmm.kind != "qemu":
        return None
    with opened(roots.proc, vmm.pid) as process:
        if process.started() != vmm.started:
            raise Gone(f"process {vmm.pid} is another one now")
        return read_shape(read_args(process.command_line(MOST_COMMAND_BYTES)))


def _guest_name(command: Command) -> str:
    return read_args(command.words[:_FIRST_WORDS]).name.get("guest", "")


def ids_in(hierarchy: Hierarchy | None, cgroups: Iterable[str], file: str) -> list[int]:
    """Return what is listed in a file of some cgroups and those below, ascending; those that are gone list nothing."""
    if hierarchy is None:
        return []
    return sorted({number for cgroup in cgroups for number in ids_below(hierarchy.folder(cgroup), file)})


def _commands(node: Node, pids: Iterable[int]) -> list[Command]:
    return [command for command in map(node.command, islice(pids, MOST_PROCESSES)) if command.words]


def _vmms(node: Node, commands: Iterable[Command]) -> list[VMM]:
    found = []
    for command in commands:
        with suppress(AgentError), opened(node.roots.proc, command.pid) as process:
            found.append(VMM(command.pid, process.started(), _kind(node, command)))
    return found
