"""Inside the guest: preparation of the machine before Kubernetes is installed; the host stays unchanged."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from typing import Final

from pinning.machine.cpuset import CPUSet

CORES: Final = [CPUSet((first, first + 1)) for first in range(0, 8, 2)]
SERVICE_ADDRESS = "10.0.0.1"  # address of the Service `kubernetes`, on which the API server itself listens
NODE_ADDRESS = "10.1.0.1"
NODE = "guest"
_LAYERS = Path("/run/layers")


def prepare() -> None:
    """Make the folders writable that a node needs, and configure host name and addresses."""
    # Shared propagation, as under systemd, so that volume mounts reach the pods.
    _run("mount", "--make-rshared", "/")
    for folder in ("/etc", "/opt"):
        _make_writable(folder)
    for folder in ("/var/lib", "/var/log"):  # empty ones, not the host's
        _run("mount", "-t", "tmpfs", "tmpfs", folder)
    socket.sethostname(NODE)
    _make_network()


def _make_writable(folder: str) -> None:
    """Mount a folder in memory over a folder of the host."""
    upper, work = (_LAYERS / part / folder.strip("/") for part in ("upper", "work"))
    for layer in (upper, work):
        layer.mkdir(parents=True)
    layers = f"lowerdir={folder},upperdir={upper},workdir={work}"
    _run("mount", "-t", "overlay", "overlay", "-o", layers, folder)


def _make_network() -> None:
    """Configure loopback and a dummy interface, whose default route gives the kubelet its address."""
    for words in (
        "link set lo up",
        "link add node0 type dummy",
        f"address add {NODE_ADDRESS}/24 dev node0",
        f"address add {SERVICE_ADDRESS}/32 dev node0",
        "link set node0 up",
        f"route add default dev node0 src {NODE_ADDRESS}",
    ):
        _run("ip", *words.split())


def make_door(address: str) -> None:
    """Configure the interface by which the host reaches the machine."""
    _run("modprobe", "virtio_net")
    (name,) = (path.parent.name for path in Path("/sys/class/net").glob("*/device"))
    _run("ip", "address", "add", f"{address}/24", "dev", name)
    _run("ip", "link", "set", name, "up")


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
