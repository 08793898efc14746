"""Identify a VMM's vCPU threads: by KVM's debugfs, by names, or by a probe of their system calls, in that order."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.vm.process import read_piece
from agent.vm.thread_names import NamedThreads, identify_by_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from agent.vm.process import Process
    from pinning.guests.threads import IdentifiedBy, Kind

_VCPU: Final = "vcpu"
_RUN: Final = "0xae80"  # KVM_RUN, the request of ioctl(2) that runs a vCPU
_VCPU_FILE: Final = "anon_inode:kvm-vcpu:"
_USER_WORKER: Final = 0x4000  # PF_USER_WORKER: a kernel worker, which shows its creator's system call
_LOOKS: Final = 3  # number of samples, because a vCPU is not always in KVM_RUN
_PERMISSION: Final = "the system calls of its threads may not be read (component vm-probe)"


class Answer(NamedTuple):
    """Identified vCPUs and the source `by`; if that is empty, some are missing, for the given reason."""

    by: IdentifiedBy
    indexes: Mapping[int, int]  # index of the vCPU by thread id
    reason: str = ""
    # number of vCPUs that KVM created, with unplugged ones, if another source identified them; 0: unknown
    kvm_vcpus: int = 0


def identify_vcpus(
    process: Process, kind: Kind, names: Mapping[int, str], folders: Iterable[Path], before: Mapping[int, int]
) -> Answer:
    """Identify the vCPUs by the first source that finds all. `before` are those that an earlier probe found."""
    machines = [_runners(folder) for folder in folders]
    debugfs = identify_by_debugfs(machines, names.keys())
    if not debugfs.why_not:
        return Answer("debugfs", debugfs.indexes)
    made = len(machines[0]) if len(machines) == 1 else 0
    named = identify_by_names(kind, {task: name for task, name in names.items() if task != process.pid})
    if not named.why_not:
        return Answer("names", named.indexes, kvm_vcpus=made)
    probed = identify_by_probe(process, [task for task in names if task != process.pid], before)
    if not probed.why_not:
        return Answer("probe", probed.indexes, kvm_vcpus=made)
    return Answer("", probed.indexes, f"{debugfs.why_not}; {named.why_not}; {probed.why_not}")


def identify_by_debugfs(machines: Sequence[Mapping[int, int]], tasks: Iterable[int]) -> NamedThreads:
    """Return the vCPU threads by KVM's debugfs folders, in which vcpuN/pid is the thread that last ran vCPU N.

    An unplugged vCPU keeps its folder, with an exited thread.
    """
    if not machines:
        return NamedThreads({}, "KVM's debugfs shows no machine of it")
    if len(machines) > 1:
        return NamedThreads({}, "KVM's debugfs shows several machines of it")
    runners = machines[0]
    if not runners:
        return NamedThreads({}, "KVM's debugfs does not say which threads run its vCPUs")
    if 0 in runners.values():
        return NamedThreads({}, f"{list(runners.values()).count(0)} of {len(runners)} vCPUs have not run yet")
    present = frozenset(tasks)
    running = [(task, index) for index, task in runners.items() if task in present]
    if len(dict(running)) < len(running):
        return NamedThreads({}, "one thread runs several vCPUs")
    return NamedThreads(dict(running), "" if running else "KVM's debugfs names no thread of it")


def _runners(folder: Path) -> dict[int, int]:
    """Return the thread id of each vCPU by index, 0 for one that has not run; empty on kernels without the file."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.name.startswith(_VCPU)]
        return {int(name.removeprefix(_VCPU)): int(read_piece(f"{folder}/{name}/pid")) for name in names}
    except (OSError, ValueError):  # the machine exited, or this kernel lacks the file
        return {}


def identify_by_probe(process: Process, tasks: Iterable[int], before: Mapping[int, int]) -> NamedThreads:
    """Return the threads seen in KVM_RUN, with the index of the vCPU descriptor they run.

    A sample may miss a vCPU that is not in KVM_RUN at that moment, so results of earlier probes are added.
    """
    try:
        files = {
            number: int(target.removeprefix(_VCPU_FILE))
            for number, target in process.open_files().items()
            if target.startswith(_VCPU_FILE)
        }
        if not files:
            return NamedThreads({}, "it has no KVM vCPU open")
        found = _seen_running(process, tasks, files, before)
    except PermissionError:
        return NamedThreads({}, _PERMISSION)
    indexes = set(files.values())
    if sorted(found.values()) == sorted(indexes):
        return NamedThreads(found)
    return NamedThreads(found, f"of {len(indexes)} vCPUs {len(found)} were seen to run")


def _seen_running(
    process: Process, tasks: Iterable[int], files: Mapping[int, int], before: Mapping[int, int]
) -> dict[int, int]:
    tasks = list(tasks)
    found = {task: before[task] for task in tasks if task in before}
    for _ in range(_LOOKS):
        for task in tasks:
            if task not in found and (index := _vcpu_run_by(process, task, files)) is not None:
                found[task] = index
        if len(found) >= len(files):
            break
    return found


def _vcpu_run_by(process: Process, task: int, files: Mapping[int, int]) -> int | None:
    """Return the index of the vCPU that a thread is running; None if it runs none, or exited."""
    try:
        call = process.system_call(task)
        if len(call) < len(("number", "descriptor", "request")) or call[2] != _RUN:
            return None
        return None if process.flags(task) & _USER_WORKER else files.get(int(call[1], 16))
    except (FileNotFoundError, ProcessLookupError):
        return None
