"""What the names of programs and threads say about them. Pure.

QEMU names its threads with debug-threads=on, and always from version 11 on; the other VMMs always do.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from pinning.planning.vm_threads import Kind, Role

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
_SANDBOX: Final = "sandbox-"  # Kata names a guest of QEMU so, and then the sandbox's id
UNKNOWN: Final = (
    "the program is none whose vCPUs have known names: QEMU, cloud-hypervisor, Firecracker, Dragonball, StratoVirt,"
    " OpenVMM, crosvm"
)
_ROUND_ROBIN: Final = "ALL CPUs/TCG"
_MONITOR: Final = "IO mon_iothread"  # QEMU's own, for its monitors: no disk is served by it
_ROLES: Final = (
    (re.compile(r"vhost-[0-9]+"), Role.VHOST),
    (re.compile(r"worker|iou-(?:wrk|sqp)-[0-9]+"), Role.WORKER),
)
_IOTHREADS: Final[Mapping[Kind, re.Pattern[str]]] = {
    "qemu": re.compile(r"IO .*"),
    "cloud-hypervisor": re.compile(r".*_qp?[0-9]+"),  # of each queue of a disk or network device
}


class Told(NamedTuple):
    """Which threads are vCPUs, with their indexes; and why that is not the whole answer, if it is not."""

    indexes: Mapping[int, int]
    why_not: str = ""


@lru_cache(maxsize=1024)
def kind_of(program: str) -> Kind:
    """Return which VMM a program is."""
    return next((kind for pattern, kind in _VMMS if pattern.fullmatch(program)), "other")


@lru_cache(maxsize=1024)
def companion_role(program: str) -> Role | None:
    """Return what a program of Kata's beside the VMM does; None for another program."""
    return next((role for pattern, role in _COMPANIONS if pattern.fullmatch(program)), None)


def parts_of(words: Iterable[str]) -> frozenset[str]:
    """Return what a command line names: its words, the parts of its paths, and the sandbox of a guest."""
    parts = (part.removeprefix(_SANDBOX) for word in words for part in re.split(r"[/=,]", word))
    return frozenset(filter(None, parts))


@lru_cache(maxsize=1024)
def role_of(kind: Kind, name: str) -> Role:
    """Return what a thread does that is no vCPU."""
    iothreads = _IOTHREADS.get(kind)
    if iothreads and iothreads.fullmatch(name) and name != _MONITOR:
        return Role.IOTHREAD
    return next((role for pattern, role in _ROLES if pattern.fullmatch(name)), Role.EMULATOR)


def has_dragonball(names: Iterable[str]) -> bool:
    """Say whether threads of these names run the vCPUs of a Dragonball machine: the shim itself is the VMM then."""
    return any(_VCPUS["dragonball"].fullmatch(name) for name in names)


def tell_by_names(kind: Kind, names: Mapping[int, str]) -> Told:
    """Return the vCPUs by the names of all threads but the first."""
    pattern = _VCPUS.get(kind)
    if pattern is None:
        return Told({}, UNKNOWN)
    found = {task: int(match[1]) for task, name in names.items() if (match := pattern.fullmatch(name))}
    twice = [index for index, times in Counter(found.values()).items() if times > 1]
    if twice:  # a thread is called like the one that made it until it has a name of its own
        return Told({}, f"several threads are called vCPU {twice[0]}")
    if _ROUND_ROBIN in names.values():
        return Told({}, "one thread runs all vCPUs in turn")
    return Told(found, "" if found else "no thread is called a vCPU")
