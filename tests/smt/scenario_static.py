"""Inside the guest, at its end: a kubelet with the static policy, and a virtual machine on the CPUs that it assigns."""

from __future__ import annotations

import json
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.environments.guest.inside import WORK, ask, report
from tests.environments.guest.polling import wait_until
from tests.environments.node.containerd import IMAGE
from tests.environments.node.kubelet import start_kubelet
from tests.environments.server.build import cache_folder, find
from tests.environments.server.catalog import KUBELET
from tests.environments.vm.guests import Guest
from tests.environments.vm.machines import Machine, SocketsFolder
from tests.environments.vm.pods import SOCKETS, launcher_command, launcher_pod, mount_host
from tests.environments.vm.published_vm import published_vm
from tests.environments.vm.seen import see
from tests.environments.vm.threads import PROC, find_qemu

if TYPE_CHECKING:
    from tests.environments.guest.inside import Node

NAME: Final = "static"
CGROUP: Final = "/static"  # the kubelet's cgroup root, below which it removes unknown cgroups
GUEST: Final = Guest(4, cores=2, threads=2, iothreads=("iothread1",), vsock=110)


class Asking:
    """A client of the agent in the guest that only reads its state."""

    @staticmethod
    def state() -> object:
        """Return the agent's state."""
        return ask()


def static_kubelet(node: Node) -> None:
    """Let the kubelet assign four CPUs to a virtual machine, and report the masks of its threads."""
    node.agent.kill()
    for name in list(node.wanted):
        node.remove(name)
    for folder in ("/var/lib", "/var/log"):  # the host's are read-only here
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
    document, machine = pod()
    with ExitStack() as stack:
        program = find(KUBELET, cache_folder())
        assert program
        settings = {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0-1"}
        kubelet = stack.enter_context(
            start_kubelet(
                *(program, None, "guest", WORK / "kubelet", node.containerd.socket, CGROUP), settings=settings
            )
        )
        text = json.dumps(document)
        (kubelet.static_pods / "vm.json").write_text(text)
        (WORK / "pods" / "vm.json").write_text(text)
        flags = {"--kubelet-state": str(kubelet.cpu_manager_state), "--kubelet-cgroup-root": CGROUP}
        node.agent.arguments += [word for flag in flags.items() for word in flag]
        node.agent.start()
        tell(machine)


def pod() -> tuple[dict[str, Any], Machine]:
    """Return the pod of a machine as KubeVirt writes it, and the machine that it will be."""
    sockets = SocketsFolder.new()
    document = launcher_pod(NAME, GUEST, launcher_command(GUEST, NAME, SOCKETS), {})
    document["metadata"]["annotations"]["kubernetes.io/config.hash"] = document["metadata"]["uid"]
    mount_host(document, IMAGE, str(sockets.path))
    document["spec"]["hostNetwork"] = True
    document["spec"]["containers"][0]["securityContext"] = {"privileged": True}  # for /dev/vhost-vsock
    return document, Machine(NAME, sockets.path, find_qemu, sockets)


def tell(machine: Machine) -> None:
    """Report the masks of the threads once each vCPU has a CPU, or after a timeout."""
    truth = machine.truth()
    wait_until(lambda: published_vm(Asking(), NAME).get("oneToOne"))
    cgroup = (PROC / str(truth.pid) / "cgroup").read_text().strip().removeprefix("0::")
    cpuset = Path(f"/sys/fs/cgroup{cgroup}/cpuset.cpus.effective").read_text().strip()
    state = ask() or {}
    report(
        *("static",),
        seen=see(truth).to_dict(),
        cpuset=cpuset,
        told=published_vm(Asking(), NAME),
        sets=state.get("sets"),
        observes=state.get("observes"),
    )
