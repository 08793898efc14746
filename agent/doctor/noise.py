"""Findings of `corepin doctor --noise`: sources of noise on exclusive CPUs, each with its remedy. Pure."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from agent.doctor.check import finding, ok, unknown

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Mapping

    from agent.doctor.check import Check
    from agent.quiet.counters import Row
    from agent.quiet.noise import Noise, Periodic, Waited
    from pinning.machine.cpuset import CPUSet

_LISTED: Final = 8  # entries of a kind, to keep the output readable
UNBOUND_WORKERS: Final = "kworker/u"  # name prefix of the kernel threads that run unbound workqueues
_QUEUES: Final = "each serves I/O that a task on its CPU, or on one that shares the queue, submitted: keep that I/O to other CPUs"


def noise_checks(
    noise: Noise, movable: Counter[str], fixed: Counter[str], exclusive: CPUSet, others: CPUSet
) -> Iterator[Check]:
    """Yield a check per kind of noise counted on exclusive CPUs; `others` are CPUs to which sources could move."""
    yield from _interrupts(noise, others)
    yield from _kernel_threads(movable, others)
    yield from _entered(noise.waited)
    yield from _waits(noise.waited)
    yield from _unmovable(noise, fixed, exclusive)
    yield from _periodic(noise.periodic, exclusive, others)


def _interrupts(noise: Noise, others: CPUSet) -> Iterator[Check]:
    subject = "interrupts"
    table, managed = noise.interrupts, noise.managed
    if isinstance(table, str):
        remedy = (
            "run this command on the node itself, or mount its /proc/interrupts and name it with --interrupts"
        )
        yield unknown(subject, f"not counted ({table})", remedy)
        return
    devices = [row for row in table if row.is_device and row.name not in managed]
    for row in devices[:_LISTED]:
        yield finding(
            subject,
            f"interrupt {row.label} came {row.count} times",
            _interrupt_remedy(row, others),
        )
    if len(devices) > _LISTED:
        yield finding(
            subject,
            f"more interrupts of devices: {len(devices) - _LISTED}",
            "move the first ones and look again",
        )
    if noise.offline:
        yield unknown(
            subject, f"CPUs {noise.offline} were offline for a part of the time: not counted", "look again"
        )
    if noise.freed:
        named = ", ".join(row.label for row in noise.freed[:_LISTED])
        more = f" and {len(noise.freed) - _LISTED} more" if len(noise.freed) > _LISTED else ""
        yield unknown(
            subject,
            f"{named}{more}: not counted completely, because freed by the driver in between",
            "look again",
        )
    elif not (devices or noise.offline):
        yield ok(
            subject,
            "no device interrupted exclusive CPUs" + " by an interrupt that can be moved" * bool(managed),
        )


def _interrupt_remedy(row: Row, others: CPUSet) -> str:
    """Return the command that moves an interrupt; whether its driver permits that is known only after the write."""
    return (
        f"echo {others} > /proc/irq/{row.name}/smp_affinity_list, and where irqbalance runs IRQBALANCE_BANNED_CPULIST;"
        " if the write fails, the kernel manages it: it then serves I/O of the CPU's own tasks"
    )


def _kernel_threads(movable: Counter[str], others: CPUSet) -> Iterator[Check]:
    subject = "kernel threads"
    by_count = sorted(movable, key=lambda name: (-movable[name], name))
    workers = [name for name in by_count if name.startswith(UNBOUND_WORKERS)]
    if workers:
        remedy = (
            f"keep unbound workqueues to CPUs {others} with the mask /sys/devices/virtual/workqueue/cpumask, or have the"
            " agent do it (quiet.workqueues: true, for pods under noise-policy: quiet)"
        )
        yield finding(subject, f"{len(workers)} workers of unbound workqueues ran", remedy)
    rest = [name for name in by_count if not name.startswith(UNBOUND_WORKERS)]
    for name in rest[:_LISTED]:
        yield finding(
            subject,
            f"{name} ran",
            f"taskset -pc {others} $(pgrep -x {shlex.quote(name)}), or boot with isolcpus=",
        )
    if not by_count:
        yield ok(subject, "no movable kernel thread ran")


def _entered(waited: Mapping[str, Waited]) -> Iterator[Check]:
    subject = "exec"
    entered = {name: lost.entered for name, lost in waited.items() if lost.entered}
    remedy = "a probe by httpGet, tcpSocket or grpc runs in the kubelet, not on the container's CPUs"
    for name in sorted(entered, key=lambda name: (-entered[name].total(), name))[:_LISTED]:
        yield finding(
            subject, f"{_names(entered[name])} ran in {name}, started from outside (exec or a probe)", remedy
        )
    if len(entered) > _LISTED:
        yield finding(subject, f"and in {len(entered) - _LISTED} more containers", remedy)


def _waits(waited: Mapping[str, Waited]) -> Iterator[Check]:
    subject = "waiting"
    by_wait = sorted(waited, key=lambda name: (-waited[name].seconds, name))
    for name in by_wait[:_LISTED]:
        lost = waited[name]
        if not lost.threads:
            yield ok(
                subject,
                f"how long threads of {name} waited is not known: no thread existed during the whole measurement",
            )
            continue
        threads = f"{lost.threads} thread{'s' * (lost.threads != 1)}"
        threads += f" of {lost.of}" if lost.of > lost.threads else ""
        message = f"{threads} of {name} waited {1000 * lost.seconds:.3f} ms for their CPUs"
        yield ok(subject, f"{message} and were interrupted {lost.involuntary_switches} times")
    if len(by_wait) > _LISTED:
        yield ok(subject, f"threads of {len(by_wait) - _LISTED} more containers waited less")


def _unmovable(noise: Noise, fixed: Counter[str], exclusive: CPUSet) -> Iterator[Check]:
    """Yield checks of noise that cannot be moved without a reboot."""
    subject = "not movable"
    boot = f"only the kernel's command line changes that: nohz_full={exclusive} rcu_nocbs={exclusive}, and a restart"
    rows = () if isinstance(noise.interrupts, str) else noise.interrupts
    if queues := [row for row in rows if row.name in noise.managed]:
        listed = ", ".join(f"{row.label} {row.count}" for row in queues[:_LISTED])
        yield ok(subject, f"interrupts of queues that the kernel manages: {listed}", _QUEUES)
    if counted := [row for row in rows if not row.is_device]:
        listed = ", ".join(f"{row.label} {row.count}" for row in counted[:_LISTED])
        yield ok(subject, f"interrupts of the kernel: {listed}", boot)
    if isinstance(noise.softirqs, str):
        yield unknown(subject, f"softirqs are not counted ({noise.softirqs})", "mount the host's /proc")
    elif noise.softirqs:
        listed = ", ".join(f"{row.name} {row.count}" for row in noise.softirqs[:_LISTED])
        yield ok(subject, f"softirqs: {listed}", boot)
    if fixed:
        yield ok(subject, f"threads of the kernel that serve one CPU: {_names(fixed)}", boot)


def _periodic(periodic: Periodic, exclusive: CPUSet, others: CPUSet) -> Iterator[Check]:
    """Yield checks of node-wide kernel settings for periodic work, which corepin does not change."""
    subject = "periodic work"
    if periodic.stat_interval is not None:
        remedy = "sysctl vm.stat_interval=120 makes that rarer, on every CPU of the node: its statistics are then older"
        message = (
            f"the kernel updates statistics of memory every {periodic.stat_interval} s (vm.stat_interval)"
        )
        yield ok(subject, message, remedy)
    if periodic.watchdog:
        remedy = f"echo {others} > /proc/sys/kernel/watchdog_cpumask: lockups of CPUs {exclusive} are then not found"
        yield ok(subject, f"the watchdog checks CPUs {periodic.watchdog}", remedy)


def _names(names: Counter[str]) -> str:
    """Return the most frequent names, each with its count, as text."""
    often = sorted(names, key=lambda name: (-names[name], name))
    more = ", ..." if len(often) > _LISTED else ""
    return ", ".join(f"{name} ({names[name]})" for name in often[:_LISTED]) + more
