"""Find the VMM process of a pod: of KubeVirt's compute container, or of a Kata sandbox.

Any process may choose its name, so only processes in the pod's cgroups or outside of all containers are candidates.
The start time is stored to detect reuse of the pid.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from agent.errors import AgentError, Gone
from agent.kernel.cgroupfs import PROCS, ids_below
from agent.vm.process import opened
from agent.vm.qemu_args import read_args, read_shape
from agent.vm.thread_names import companion_role, has_dragonball, kind_of, parts_of
from pinning.guests.threads import VMM, Role

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.kernel.cgroupfs import Hierarchy
    from agent.vm.shared_reads import Command, Roots, SharedReads
    from pinning.guests.threads import GuestShape, Kind

# bytes of a command line, for a guest with hundreds of devices; bounded, because users control it
MOST_COMMAND_BYTES: Final = 2**19
MOST_PROCESSES: Final = 256  # processes examined in one container or sandbox; KubeVirt's have a dozen
_FIRST_WORDS: Final = 64  # words of a command line: libvirt's guest name is the third


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A Kata sandbox, as the runtime lists it."""

    id: str
    pid: int = 0  # pid of its VMM, as the runtime reports it; 0: unknown
    cgroups: tuple[str, ...] = ()  # cgroups of its processes: the sandbox's own, and Kata's overhead cgroup


def find_container_vmm(reads: SharedReads, cgroup: str) -> VMM | None:
    """Return the QEMU process of KubeVirt's compute container.

    Returns None if it does not run yet. QEMU processes without a guest name are skipped: libvirt starts them to probe
    features.
    """
    commands = _commands(reads, ids_in(reads.roots.hierarchy, [cgroup], PROCS))
    guests = [command for command in commands if kind_of(command.program) == "qemu" and _guest_name(command)]
    return min(_vmms(reads, guests), key=lambda vmm: (vmm.started, vmm.pid), default=None)


def find_sandbox_vmm(reads: SharedReads, sandbox: Sandbox) -> VMM | None:
    """Return the VMM of a Kata sandbox; None if none or several match.

    The pid from the runtime is used only if the process names the sandbox or is in its cgroup, because the pid may have
    been reused.
    """
    inside = ids_in(reads.roots.hierarchy, sandbox.cgroups, PROCS)
    said = _commands(reads, [sandbox.pid] if sandbox.pid else [])
    if said and (said[0].pid in inside or names_sandbox(said[0].words, sandbox.id)):
        return next(iter(_vmms(reads, said)), None)
    found = _parents(
        reads, [command for command in _commands(reads, inside) if _kind(reads, command) != "other"]
    )
    if len(found) != 1:
        several = {command.pid for command in found}
        named = (command for command in reads.commands_of(sandbox.id) if _kind(reads, command) != "other")
        found = _parents(reads, [command for command in named if not several or command.pid in several])
    vmms = _vmms(reads, found)
    return vmms[0] if len(vmms) == 1 else None


def _parents(reads: SharedReads, commands: list[Command]) -> list[Command]:
    """Return the processes whose parent is not in the list, because crosvm runs each device in a child process."""
    pids = {command.pid for command in commands}
    return [command for command in commands if reads.parent(command.pid) not in pids - {command.pid}]


def _kind(reads: SharedReads, command: Command) -> Kind:
    """Return the kind of VMM; Kata's shim is Dragonball if some of its threads are vCPUs."""
    if companion_role(command.program) is not Role.SHIM:
        return kind_of(command.program)
    with suppress(AgentError), opened(reads.roots.proc, command.pid) as process:
        if has_dragonball(process.names().values()):
            return "dragonball"
    return "other"


def names_sandbox(words: Iterable[str], sandbox_id: str) -> bool:
    """Return whether a command line contains a sandbox's id as a word, a path component or a guest name."""
    return sandbox_id in parts_of(words)


def read_guest_shape(roots: Roots, vmm: VMM) -> GuestShape | None:
    """Return the guest's shape from QEMU's command line; None for other VMMs; raise Gone, Refused."""
    if vmm.kind != "qemu":
        return None
    with opened(roots.proc, vmm.pid) as process:
        if process.started() != vmm.started:
            raise Gone(f"process {vmm.pid} has exited, and its pid is reused")
        return read_shape(read_args(process.command_line(MOST_COMMAND_BYTES)))


def _guest_name(command: Command) -> str:
    return read_args(command.words[:_FIRST_WORDS]).name.get("guest", "")


def ids_in(hierarchy: Hierarchy | None, cgroups: Iterable[str], file: str) -> list[int]:
    """Return the process or thread ids in a file of cgroups and of their children, ascending; skip removed cgroups."""
    if hierarchy is None:
        return []
    return sorted({number for cgroup in cgroups for number in ids_below(hierarchy.folder(cgroup), file)})


def _commands(reads: SharedReads, pids: Iterable[int]) -> list[Command]:
    return [command for command in map(reads.command, islice(pids, MOST_PROCESSES)) if command.words]


def _vmms(reads: SharedReads, commands: Iterable[Command]) -> list[VMM]:
    found = []
    for command in commands:
        with suppress(AgentError), opened(reads.roots.proc, command.pid) as process:
            found.append(VMM(command.pid, process.started(), _kind(reads, command)))
    return found
