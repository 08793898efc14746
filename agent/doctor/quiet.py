"""Check that interrupts are kept off the CPUs of pods under the policy `quiet`, by the agent's state. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.doctor.check import finding, ok

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.doctor.check import Check
    from published.agent_state import KeptInterrupts, Quiet, QuietPart


def quiet_checks(quiet: Quiet | None) -> Iterator[Check]:
    """Yield the checks of quiet CPUs; none if the agent moves no interrupts, or no pod has the policy `quiet`."""
    if quiet is None or not quiet.cpus:
        return
    yield from _moved(quiet)
    if quiet.managed:
        message = f"the kernel alone places {', '.join(quiet.managed)}, which may use CPUs {quiet.cpus}"
        remedy = "submit I/O to these devices from other CPUs: such an interrupt comes to the CPU that submitted the I/O"
        yield ok("managed interrupts", message, remedy)
    fully = quiet.cpus if quiet.fully is None else quiet.fully
    for part in quiet.parts:
        if fully or part.reason:  # otherwise only failed restores are reported
            yield from _part(part, fully or quiet.cpus)
    for kept in quiet.kept:
        yield from _kept(kept)


def _kept(kept: KeptInterrupts) -> Iterator[Check]:
    subject = "irq-policy"
    if kept.names:
        yield ok(subject, f"{kept.container} has interrupts {', '.join(kept.names)} on its CPUs {kept.cpus}")
    if kept.note:
        remedy = "correct its annotation irq-policy (the names are the folders in /proc/irq/N), or do what the message says"
        yield finding(subject, f"{kept.container}: {kept.note}", remedy)


def _part(part: QuietPart, cpus: str) -> Iterator[Check]:
    subject = "quiet parts"
    for name in part.conflicts:
        remedy = "stop it (TuneD, a script of the node), or let it leave out these CPUs"
        yield finding(subject, f"another program keeps changing {name} back to CPUs {cpus}", remedy)
    if part.reason and not part.conflicts:
        remedy = "do what the message says; the agent tries again with each of its rounds"
        yield finding(subject, f"{part.name} are not kept off CPUs {cpus}: {part.reason}", remedy)
    if not part.reason:
        yield ok(subject, f"{part.name} are kept off CPUs {cpus}")


def _moved(quiet: Quiet) -> Iterator[Check]:
    subject = "quiet CPUs"
    if quiet.irqbalance:
        remedy = (
            f"write IRQBALANCE_BANNED_CPULIST={quiet.cpus} into irqbalance's file (/etc/default/irqbalance or "
            "/etc/sysconfig/irqbalance), with every CPU that pods under quiet may get, restart irqbalance, and set "
            "quiet.irqbalance: ignore in the agents' configuration"
        )
        yield finding(subject, f"no interrupt is moved: {quiet.irqbalance}", remedy)
    elif quiet.is_off:
        yield ok(subject, f"interrupts may use CPUs {quiet.cpus}, as configured: {quiet.reason}")
    elif quiet.reason and not quiet.conflicts:
        remedy = "do what the message says; the agent tries again with each of its rounds"
        yield finding(subject, f"interrupts may use CPUs {quiet.cpus}: {quiet.reason}", remedy)
    for name in quiet.conflicts:
        message = f"another program keeps moving interrupt {name} back to CPUs {quiet.cpus}"
        remedy = "stop it (TuneD, a driver's script, an irqbalance in a container), or let it ban these CPUs"
        yield finding(subject, message, remedy)
    if not quiet.reason:
        yield ok(subject, f"interrupts are kept off CPUs {quiet.cpus}")
