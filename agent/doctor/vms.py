"""Checks for virtual machines: vCPU threads that can be identified, the kubelet's CPU policy, and labels. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from agent.doctor.check import finding, ok
from pinning.contract import CPUMANAGER_LABELS, KUBEVIRT_SCHEDULABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.doctor.check import Check

_UNIDENTIFIED: Final = (
    "a machine whose vCPU threads are not identified runs on all of its CPUs, without one CPU for each vCPU"
)


class VMFacts(NamedTuple):
    """Facts about virtual machines."""

    has_kvm: bool = False  # the kernel can run virtual machines
    has_debugfs: bool = False  # its debugfs folder is readable
    may_probe: bool = False  # the user may trace other processes
    # why the kubelet does not report the CPUs it assigned; empty: it does; None: it was not asked
    kubelet_silence: str | None = None
    labels: Mapping[str, str] | None = None  # labels of the Node object; None: unknown


NO_VMS: Final = VMFacts()


def vm_checks(facts: VMFacts, *, can_pin: bool) -> Iterator[Check]:
    """Yield the checks for virtual machines; fewer if the node has none."""
    if facts.has_kvm:
        yield _threads(facts)
    if facts.kubelet_silence is not None:
        yield _kubelet(facts.kubelet_silence)
    if facts.labels is not None and KUBEVIRT_SCHEDULABLE in facts.labels:
        yield _kubevirt(facts.labels, can_pin=can_pin)


def _threads(facts: VMFacts) -> Check:
    """Return the check of how vCPU threads are identified; never a problem, because most VMMs name their threads."""
    subject = "vCPU threads"
    if facts.has_debugfs:
        return ok(subject, "identified by the kernel (debugfs)")
    remedy = "mount debugfs on the node (systemd: sys-kernel-debug.mount), or name its place with --debugfs"
    if facts.may_probe:
        return ok(subject, "identified by their names, otherwise by their system calls (no debugfs)", remedy)
    message = f"identified by their names alone (neither debugfs nor SYS_PTRACE); {_UNIDENTIFIED}"
    return ok(subject, message, f"{remedy}; or take the component vm-probe (Helm: agent.vmProbe: true)")


def _kubelet(silence: str) -> Check:
    subject = "CPUs of the kubelet"
    if not silence:
        return ok(subject, "it reports which ones it assigned")
    message = (
        f"it does not report which ones it assigned ({silence}), so corepin takes the CPUs of containers from their"
        " cpusets"
    )
    remedy = "mount pod-resources of the kubelet's root directory, in which the file of --kubelet-state is"
    return finding(subject, message, remedy)


def _kubevirt(labels: Mapping[str, str], *, can_pin: bool) -> Check:
    subject = "KubeVirt"
    wrong = [f"{name}={labels.get(name, '')}" for name in CPUMANAGER_LABELS if labels.get(name) != "true"]
    if not wrong:
        return ok(subject, "machines with dedicated CPUs may be placed here")
    message = f"no machine with dedicated CPUs is placed here ({', '.join(wrong)})"
    if not can_pin:
        return ok(subject, message, "let corepin or the kubelet's static policy allocate CPUs here")
    remedy = (
        "add CPUManager to the agent's --feature-gates; where it is, look again in a minute, because KubeVirt's"
        " handler overwrites these labels and the agent puts them back"
    )
    return finding(subject, message, remedy)
