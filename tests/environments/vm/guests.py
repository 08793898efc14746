"""The command lines of QEMU, as libvirt writes them for KubeVirt and as Kata's shim does."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

PACKAGES: Final = {"qemu-system-x86": "qemu-system-x86_64"}
QEMU: Final = "/usr/bin/qemu-system-x86_64"
CPU: Final = "max-x86_64-cpu"  # QEMU's type of `-cpu max`, to plug one more
FIRMWARE: Final = "firmware"
OVERHEARD: Final = "overheard.sock"  # socket of the further monitor
_MEGABYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Guest:
    """A virtual machine: its CPUs, devices with threads, and whether threads have names."""

    vcpus: int = 2
    cores: int = 1  # cores per socket
    threads: int = 1  # threads per core
    most: int = 0  # maximum of vCPUs with hotplug; 0: no hotplug
    iothreads: tuple[str, ...] = ()
    is_named: bool = True  # debug-threads=on
    is_paused: bool = True
    host_nodes: tuple[int, ...] = ()  # NUMA nodes that its memory is bound to: guestMappingPassthrough
    vsock: int = 0  # vsock address, for which the kernel has a vhost thread; 0: none
    is_target: bool = False  # whether it waits for an incoming migration
    is_overheard: bool = False  # whether it has a monitor on which the test listens: see `SocketsFolder`

    def running(self) -> Guest:
        """Return the same guest, not paused; a firmware beside its monitor keeps the vCPUs busy."""
        return replace(self, is_paused=False)


def libvirt_command(guest: Guest, name: str, qmp: Path) -> list[str]:
    """Return the command line that libvirt writes for a VMI."""
    return [
        *(QEMU, "-name", f"guest=default_{name}{_names(guest)}"),
        *_machine(guest, qmp),
        *_bound_memory(guest),
        *(word for number, key in enumerate(guest.iothreads) for word in _disk(number, key)),
    ]


def kata_command(guest: Guest, sandbox: str, qmp: Path, pidfile: Path) -> list[str]:
    """Return the command line that Kata writes for a sandbox; the test uses a second monitor."""
    return [
        *(QEMU, "-name", f"sandbox-{sandbox}{_names(guest)}"),
        *_machine(guest, qmp),
        *(word for key in guest.iothreads for word in ("-object", f"iothread,id={key}")),
        *("-pidfile", str(pidfile)),
    ]


def _names(guest: Guest) -> str:
    return ",debug-threads=on" if guest.is_named else ""


def _machine(guest: Guest, qmp: Path) -> list[str]:
    most = guest.most or guest.vcpus
    sockets = most // (guest.cores * guest.threads)
    smp = f"{guest.vcpus},maxcpus={most},sockets={sockets},dies=1,cores={guest.cores},threads={guest.threads}"
    return [
        *("-machine", "q35", "-accel", "tcg,thread=multi,tb-size=8", "-cpu", "max"),
        *("-smp", smp, "-m", str(_MEGABYTES)),
        *("-nodefaults", "-no-user-config", "-display", "none", "-vga", "none", "-nic", "none"),
        *("-qmp", f"unix:path={qmp},server=on,wait=off"),
        *(["-S"] if guest.is_paused else ["-bios", str(qmp.parent / FIRMWARE)]),
        *(["-device", f"vhost-vsock-pci,guest-cid={guest.vsock}"] if guest.vsock else []),
        *(["-incoming", "defer"] if guest.is_target else []),
        *(["-qmp", f"unix:path={qmp.parent / OVERHEARD},server=off"] if guest.is_overheard else []),
    ]


def _bound_memory(guest: Guest) -> list[str]:
    if not guest.host_nodes:
        return []
    backend = {
        "qom-type": "memory-backend-ram",
        "id": "ram-node0",
        "size": _MEGABYTES * 2**20,
        "host-nodes": list(guest.host_nodes),
        "policy": "bind",
    }
    last = (guest.most or guest.vcpus) - 1
    return ["-object", json.dumps(backend), "-numa", f"node,nodeid=0,cpus=0-{last},memdev=ram-node0"]


def _disk(number: int, iothread: str) -> list[str]:
    """Return an iothread with an empty disk."""
    node = {"driver": "null-co", "node-name": f"libvirt-{number}", "size": 2**20, "read-zeroes": True}
    device = {
        "driver": "virtio-blk-pci",
        "iothread": iothread,
        "drive": f"libvirt-{number}",
        "id": f"ua-{number}",
    }
    return [
        *("-object", json.dumps({"qom-type": "iothread", "id": iothread})),
        *("-blockdev", json.dumps(node), "-device", json.dumps(device)),
    ]
