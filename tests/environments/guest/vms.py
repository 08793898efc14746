"""Inside the guest: a virtual machine like KubeVirt's, pinned by the installed agent with the manifests' rights."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from pinning.contract import STATUS_CPUS
from tests.environments.guest.cluster import PODS
from tests.environments.guest.inside import report
from tests.environments.node.containerd import IMAGE
from tests.environments.vm.guests import Guest
from tests.environments.vm.machines import Machine, SocketsFolder
from tests.environments.vm.pods import EXCLUSIVE, SOCKETS, launcher_command, launcher_pod, mount_host
from tests.environments.vm.seen import see
from tests.environments.vm.threads import find_qemu

if TYPE_CHECKING:
    from tests.environments.guest.cluster import Cluster

NAME: Final = "virt-launcher-vm"
GUEST: Final = Guest(2, threads=2, iothreads=("iothread1",))


def virtual_machine(cluster: Cluster) -> None:
    """Create the pod, wait until its status has each vCPU's CPU, report the kernel's masks, and delete it."""
    sockets = SocketsFolder.new()
    document = launcher_pod(NAME, GUEST, launcher_command(GUEST, NAME, SOCKETS), EXCLUSIVE)
    del document["metadata"]["uid"]
    mount_host(document, IMAGE, str(sockets.path))
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(document))
    cluster.until("each vCPU has a CPU", lambda: _told(cluster).get("oneToOne"))
    machine = Machine(NAME, sockets.path, find_qemu, sockets)
    report("vm", seen=see(machine.truth()).to_dict(), told=_told(cluster))
    cluster.kubectl("get", "pod", NAME, "-o", "yaml")
    cluster.kubectl("delete", f"pod/{NAME}")
    machine.clean()
    cluster.settle()


def _told(cluster: Cluster) -> dict[str, Any]:
    """Return the virtual machine in the pod's status."""
    annotations = cluster.get(f"{PODS}/{NAME}")["metadata"].get("annotations") or {}
    found: dict[str, Any] = json.loads(annotations.get(STATUS_CPUS, "{}")).get("vm") or {}
    return found
