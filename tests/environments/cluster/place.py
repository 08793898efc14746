"""The node's environment: a network namespace and a mount namespace.

Network: a namespace with a route to this machine and one to each pod. The API server listens on this machine,
at the address of the Service `kubernetes`, so that pods reach it without a proxy for Services.

Files: a mount namespace in which the folders of runtime, kubelet and corepin have their usual paths.
"""

from __future__ import annotations

import shlex
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.environments.server.daemon import running
from tests.environments.server.host import host_apart, ip
from tests.environments.server.mount_points import mount_points

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

RUNTIME, KUBELET, STATE = (Path(name) for name in ("/run/containerd", "/var/lib/kubelet", "/var/lib/corepin"))
CMK_PROGRAMS, CMK_STATE = Path("/opt/bin"), Path("/etc/cmk")  # Intel CMK's, and corepin's command `cmk`
LOGS: Final = Path("/var/log/containers")  # the kubelet links the logs of containers there
_NAMED_NETWORKS: Final = Path("/run/netns")  # the runtime's folder for the logs of pods


@dataclass(frozen=True)
class Place:
    """Network and mount namespace of a node."""

    near: str  # this machine
    address: str  # the node
    pods: str  # the network of the pods
    services: str  # the network of Services; its first address is `near`
    run: tuple[str, ...]  # the beginning of a command line that is run there


@contextmanager
def node_place(directory: Path, folders: Mapping[Path, Path]) -> Iterator[Place]:
    """Create a place in which `folders` replace those of the machine, until the block ends."""
    networks = directory / "netns"
    networks.mkdir()
    folders = {**folders, _NAMED_NETWORKS: networks}
    with host_apart() as host, mount_points(folders):
        pods, services = (f"10.{second}.{host.near.split('.')[2]}.0/24" for second in (232, 231))
        ip("route", "add", pods, "via", host.address, "dev", host.interface)
        ready = directory / "ready"
        # Shared propagation, as under systemd, so that volume mounts reach the pods.
        steps = ["mount --make-rshared /"]
        steps += [f"mount --bind {own} {there}" for there, own in folders.items()]
        steps += ["echo 1 >/proc/sys/net/ipv4/ip_forward", f"touch {shlex.quote(str(ready))}"]
        script = f"{' && '.join(steps)} && exec sleep 1000000"
        network = f"--net=/run/netns/{host.name}"
        command = ("nsenter", network, "unshare", "--mount", "--propagation", "slave", "sh", "-c", script)
        with running("the node's machine", command, directory / "machine.log") as machine:
            machine.wait_until(ready.exists)
            target = f"--target={machine.process.pid}"
            yield Place(host.near, host.address, pods, services, ("nsenter", target, "--net", "--mount"))
