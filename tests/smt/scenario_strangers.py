"""Inside the guest: strangers on a pod's exclusive CPUs, what `corepin doctor --noise` says, and where one by exec is put."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import threading
import time
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cri_api.v1 import api_pb2

from corepin.cli import main as corepin
from pinning.contract import CRANE_CPU_MANAGER
from pinning.machine.cpuset import CPUSet
from tests.environments.guest.inside import POD_ROOT, WORK, Node, ask, online, report
from tests.environments.guest.polling import wait_until
from tests.smt.quiet_files import IRQ, WORKQUEUES, busiest, place_interrupts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CGROUPS: Final = Path("/sys/fs/cgroup")
MASK: Final = WORKQUEUES / "cpumask"
WATCHED: Final = "5"  # seconds of the guest, whose clock may be faster than the host's
REST: Final = 0.02  # seconds between two turns of a foreign thread; all of them run on two CPUs
KERNEL_THREAD: Final = "kcompactd0"  # looks for work twice a second
PROCESSES: Final = {  # their names, and their cgroups: those of systemd, of CRI-O, of Docker, and of a pod
    "noisy-service": "system.slice/noisy.service",
    "noisy-session": "user.slice/user-1000.slice/session-3.scope",
    "noisy-conmon": "system.slice/crio-conmon-0123456789ab.scope",
    "noisy-machine": "machine.slice/docker-0123456789ab.scope",
    "noisy-pod": f"{POD_ROOT.strip('/')}/pod0a1b2c3d-0000-4000-8000-000000000001/0123456789ab",
    "noisy-root": "",
}
REAL_TIME: Final = "noisy-realtime"
REAL_TIME_CGROUP: Final = "system.slice/realtime.service"
EXEC: Final = ("/bin/sh", "-c", "while :; do :; done")
AGENT: Final = f"{CGROUPS}{POD_ROOT}/pod0a1b2c3d-0000-4000-8000-000000000002/{'c' * 64}"
NO_CLUSTER: Final = {  # such a pod has no token: the library of kubeconfigs takes a quarter of a minute to import
    "KUBERNETES_SERVICE_HOST": "127.0.0.1",
    "KUBERNETES_SERVICE_PORT": "1",
}


def strangers(node: Node, cpus: CPUSet) -> None:
    """Report the doctor's findings without and with foreign threads on the CPUs."""
    others = CPUSet.parse(online()) - cpus
    with kept_off(cpus, others):
        tell("none", cpus)
        with ExitStack() as stack:
            for name, cgroup in PROCESSES.items():
                stack.enter_context(forked(name, CGROUPS / cgroup, partial(bound, cpus)))
            realtime = partial(one_real_time_thread, cpus, others)
            stack.enter_context(forked(REAL_TIME, CGROUPS / REAL_TIME_CGROUP, realtime))
            stack.enter_context(entered(node, "hot"))
            stack.enter_context(kernel_thread(cpus, others))
            stack.enter_context(unbound_work(cpus, others))
            stack.enter_context(interrupts(cpus, others))
            stack.enter_context(repeated(work_on_each_cpu))
            tell("all", cpus)


def tell(step: str, cpus: CPUSet) -> None:
    """Report the doctor's findings."""
    flags = {
        "--socket": WORK / "agent.sock",
        "--runtime-endpoint": WORK / "containerd/containerd.sock",
        "--kubelet-state": WORK / "no-kubelet",
        "--state-dir": WORK / "state",
        "--noise": WATCHED,
        "--output": "json",
    }
    os.environ.update(NO_CLUSTER)
    with redirect_stdout(io.StringIO()) as said:
        status = corepin(["doctor", *(str(word) for flag in flags.items() for word in flag)])
    report("doctor", step=step, cpus=str(cpus), status=status, **json.loads(said.getvalue()))


@contextmanager
def kept_off(cpus: CPUSet, others: CPUSet) -> Iterator[None]:
    """Keep interrupts, unbound workqueues and threads off the CPUs until the block ends, as an operator would."""
    place_interrupts(others)
    MASK.write_text(others.to_mask())
    while [task for task in host_threads() if not is_within(task, others) and moved(task, others)]:
        pass  # one that was started in between by a thread that had not been moved is found by the next look
    try:
        yield
    finally:
        MASK.write_text((others | cpus).to_mask())
        for task in host_threads():
            if is_within(task, others):
                moved(task, others | cpus)


def host_threads() -> list[int]:
    """Return all threads outside of pods."""
    found = []
    for task in Path("/proc").glob("[0-9]*/task/[0-9]*"):
        with suppress(OSError):
            if POD_ROOT not in (task / "cgroup").read_text():
                found.append(int(task.name))
    return found


def name_of(task: int) -> str:
    """Return the name of a thread, or an empty string if it has exited."""
    with suppress(OSError):
        return Path(f"/proc/{task}/comm").read_text().strip()
    return ""


def is_within(task: int, cpus: CPUSet) -> bool:
    """Return whether a thread may run on these CPUs only, or has exited."""
    try:
        return CPUSet(os.sched_getaffinity(task)) <= cpus
    except ProcessLookupError:
        return True


def moved(task: int, cpus: CPUSet) -> bool:
    """Move a thread; return False if it has exited or is bound to one CPU."""
    try:
        os.sched_setaffinity(task, cpus)
    except OSError:
        return False
    return True


def bound(cpus: CPUSet) -> None:
    """Run on these CPUs for a short time repeatedly."""
    os.sched_setaffinity(0, cpus)
    while True:
        time.sleep(REST)


def one_real_time_thread(cpus: CPUSet, others: CPUSet) -> None:
    """Run a thread with the highest priority on the CPUs; the rest of the process runs elsewhere."""

    def run() -> None:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
        bound(cpus)

    threading.Thread(target=run).start()
    bound(others)


@contextmanager
def forked(name: str, cgroup: Path, run: Callable[[], None]) -> Iterator[None]:
    """Run a function in a process with a name in a cgroup, until the block ends."""
    cgroup.mkdir(parents=True, exist_ok=True)
    pid = os.fork()
    if not pid:
        try:
            Path("/proc/self/comm").write_text(name)
            (cgroup / "cgroup.procs").write_text("0")
            run()
        finally:
            os._exit(1)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@contextmanager
def entered(node: Node, name: str) -> Iterator[int]:
    """Run a process in a pod's container that was started from outside, as `kubectl exec` does; yield its pid."""
    before = processes(node, name)
    container = node.cgroup(name).name
    request = api_pb2.ExecSyncRequest(container_id=container, cmd=EXEC, timeout=0)
    call = partial(node.containerd.call, "ExecSync", request, api_pb2.ExecSyncResponse)
    with beside(call):
        pid = new_shell(node, name, before)
        try:
            yield pid
        finally:
            os.kill(pid, signal.SIGKILL)


def execs(node: Node, name: str) -> None:
    """Report where a process that enters a pod's container runs, beside an agent with a cgroup namespace of its own."""
    config = WORK / "config.yaml"
    before = config.read_text()
    config.write_text(f"{before}execAffinity: last\n")
    node.edit(name, 2, {CRANE_CPU_MANAGER: "exclusive"})
    node.agent.start(cgroup=AGENT)
    node.settle()
    cpus = CPUSet.parse(node.cpuset(name))
    with entered(node, name) as pid:
        wait_until(lambda: len(os.sched_getaffinity(pid)) < len(cpus) and shown_execs(name))
        report(
            "exec",
            cpus=str(cpus),
            allowed=str(CPUSet(os.sched_getaffinity(pid))),
            shown=shown_execs(name),
            namespaces=[
                str(Path(f"/proc/{it}/ns/cgroup").readlink()) for it in (os.getpid(), node.agent.pid)
            ],
        )
    node.agent.kill()
    config.write_text(before)


def shown_execs(name: str) -> dict[str, object]:
    """Return what the agent shows of the processes that entered a pod's container."""
    pods = (ask() or {}).get("pods", ())
    return next((it["containers"]["app"].get("execs", {}) for it in pods if it["name"] == name), {})


def new_shell(node: Node, name: str, before: set[int]) -> int:
    """Wait for the new shell in a pod's container, and return it."""

    def shells() -> list[int]:  # and none that is still the runtime's, which becomes one
        return [pid for pid in processes(node, name) - before if name_of(pid) == "sh"]

    if not wait_until(shells):
        raise TimeoutError("no process entered the container")
    return shells()[0]


def processes(node: Node, name: str) -> set[int]:
    """Return the processes of a pod's container."""
    return {int(pid) for pid in (node.cgroup(name) / "cgroup.procs").read_text().split()}


@contextmanager
def kernel_thread(cpus: CPUSet, others: CPUSet) -> Iterator[None]:
    """Move a kernel thread to the CPUs."""
    (pid,) = (task for task in host_threads() if name_of(task) == KERNEL_THREAD)
    os.sched_setaffinity(pid, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(pid, others)


def work_on_each_cpu() -> None:
    """Make the bound kernel worker of each CPU do work."""
    with suppress(OSError):  # EINVAL if a statistic is below zero for a moment
        Path("/proc/sys/vm/stat_refresh").write_text("1")


@contextmanager
def unbound_work(cpus: CPUSet, others: CPUSet) -> Iterator[None]:
    """Queue work of an unbound workqueue that is confined to these CPUs: it delivers input of a terminal."""
    MASK.write_text(cpus.to_mask())
    master, terminal = pty.openpty()

    def type_a_line() -> None:
        os.write(master, b"x\n")
        os.read(terminal, 64)

    try:
        with repeated(type_a_line):
            yield
    finally:
        os.close(master)
        os.close(terminal)
        MASK.write_text(others.to_mask())


@contextmanager
def interrupts(cpus: CPUSet, others: CPUSet) -> Iterator[None]:
    """Move the interrupt of the host's file system to these CPUs and cause it."""
    number = busiest()
    file = IRQ / number / "smp_affinity_list"
    file.write_text(str(cpus))
    report("planted", interrupt=number)
    try:
        with repeated(partial(os.statvfs, "/")):
            yield
    finally:
        file.write_text(str(others))


@contextmanager
def repeated(work: Callable[[], object]) -> Iterator[None]:
    """Repeat some work until the block ends."""
    done = threading.Event()

    def run() -> None:
        while not done.wait(REST):
            work()

    with beside(run):
        try:
            yield
        finally:
            done.set()


@contextmanager
def beside(run: Callable[[], object]) -> Iterator[None]:
    """Run a function in a thread until the block has ended."""
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()
