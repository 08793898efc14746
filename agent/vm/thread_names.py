"""Roles of threads by their names, and kinds of VMM by program name. Pure.

QEMU names its threads with debug-threads=on, and always from version 11 on; the other VMMs always do.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from pinning.guests.threads import Kind, Role

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_VMMS: Final[tuple[tuple[re.Pattern[str], Kind], ...]] = (
    (re.compile(r"qemu-(?:system-.*|kvm.*)"), "qemu"),
    (re.compile(r"cloud-hypervisor.*"), "cloud-hypervisor"),
    (re.compile(r"firecracker.*"), "firecracker"),
    (re.compile(r"stratovirt.*"), "stratovirt"),
    (re.compile(r"openvmm.*"), "openvmm"),
    (re.compile(r"crosvm.*"), "crosvm"),
)
_COMPANIONS: Final = (
    (re.compile(r"containerd-shim-kata-v2"), Role.SHIM),
    (re.compile(r"virtiofsd.*|nydusd.*"), Role.VIRTIOFSD),
)
_VCPUS: Final[Mapping[Kind, re.Pattern[str]]] = {
    "qemu": re.compile(r"CPU ([0-9]{1,5})/(?:KVM|MSHV|TCG)"),
    "cloud-hypervisor": re.compile(r"vcpu([0-9]{1,5})"),
    "firecracker": re.compile(r"fc_vcpu ([0-9]{1,5})"),
    "dragonball": re.compile(r"db_vcpu([0-9]{1,5})"),
    "stratovirt": re.compile(r"CPU ([0-9]{1,5})/KVM"),
    "openvmm": re.compile(r"vp-([0-9]{1,5})"),
    "crosvm": re.compile(r"crosvm_vcpu([0-9]{1,5})"),
}
_SANDBOX: Final = "sandbox-"  # prefix that Kata gives to a QEMU guest's name, before the sandbox id
UNKNOWN: Final = (
    "the names of this program's vCPU threads are not known, only those of: QEMU, cloud-hypervisor, Firecracker, Dragonball, StratoVirt,"
    " OpenVMM, crosvm"
)
_ROUND_ROBIN: Final = "ALL CPUs/TCG"
_MONITOR: Final = "IO mon_iothread"  # QEMU's own I/O thread for its monitors; it serves no disk
_ROLES: Final = (
    (re.compile(r"vhost-[0-9]+"), Role.VHOST),
    (re.compile(r"worker|iou-(?:wrk|sqp)-[0-9]+"), Role.WORKER),
)
_IOTHREADS: Final[Mapping[Kind, re.Pattern[str]]] = {
    "qemu": re.compile(r"IO .*"),
    "cloud-hypervisor": re.compile(r".*_qp?[0-9]+"),  # one thread for each queue of a disk or network device
}


class NamedThreads(NamedTuple):
    """The vCPU threads found by one source, with their indexes, and why others may be missing."""

    indexes: Mapping[int, int]
    why_not: str = ""


@lru_cache(maxsize=1024)
def kind_of(program: str) -> Kind:
    """Return the kind of VMM by a program's name; "other" for all other programs."""
    return next((kind for pattern, kind in _VMMS if pattern.fullmatch(program)), "other")


@lru_cache(maxsize=1024)
def companion_role(program: str) -> Role | None:
    """Return the role of a program that Kata runs in addition to the VMM, such as the shim; None for others."""
    return next((role for pattern, role in _COMPANIONS if pattern.fullmatch(program)), None)


def parts_of(words: Iterable[str]) -> frozenset[str]:
    """Return the words of a command line, the components of its paths, and the sandbox id in a guest name."""
    parts = (part.removeprefix(_SANDBOX) for word in words for part in re.split(r"[/=,]", word))
    return frozenset(filter(None, parts))


@lru_cache(maxsize=1024)
def role_of(kind: Kind, name: str) -> Role:
    """Return the role of a thread that is not a vCPU, by its name."""
    iothreads = _IOTHREADS.get(kind)
    if iothreads and iothreads.fullmatch(name) and name != _MONITOR:
        return Role.IOTHREAD
    return next((role for pattern, role in _ROLES if pattern.fullmatch(name)), Role.EMULATOR)


def has_dragonball(names: Iterable[str]) -> bool:
    """Return whether threads with these names are vCPUs of Dragonball, whose VMM runs inside the shim."""
    return any(_VCPUS["dragonball"].fullmatch(name) for name in names)


def identify_by_names(kind: Kind, names: Mapping[int, str]) -> NamedThreads:
    """Return the vCPU threads by their names; `names` are those of all threads except the first."""
    pattern = _VCPUS.get(kind)
    if pattern is None:
        return NamedThreads({}, UNKNOWN)
    found = {task: int(match[1]) for task, name in names.items() if (match := pattern.fullmatch(name))}
    twice = [index for index, times in Counter(found.values()).items() if times > 1]
    if twice:  # a new thread has its creator's name until it sets its own
        return NamedThreads({}, f"several threads are called vCPU {twice[0]}")
    if _ROUND_ROBIN in names.values():
        return NamedThreads({}, "one thread runs all vCPUs in turn")
    return NamedThreads(found, "" if found else "no thread has the name of a vCPU")
