"""This machine as one on which each core is a NUMA node: for the agent, for the kubelet, and devices on two nodes."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.kernel.sysfs import read_topology
from pinning.machine.cpuset import CPUSet
from tests.node.restarting import restart_kubelet
from tests.node.starts.over_nri import agent_over_nri

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.environments.node.node import Node

DEVICES: Final = "device-policy.corepin.io/pod"
NODES: Final = Path("/sys/devices/system/node")
MEMORY: Final = 2**20  # kB of each node: what the kubelet reports of it is not used
NEAR, FAR = 10, 20  # distances


def machine_of_nodes(root: Path) -> tuple[Path, CPUSet]:
    """Return the `/` of a machine on which each core of this one is a NUMA node, and a CPU that is offline.

    That CPU is all that is reserved, so that there is a choice also on a machine of two CPUs.
    """
    here, system = read_topology(Path("/")), root / "sys/devices/system"
    for name in ("proc", "etc"):
        root.joinpath(name).symlink_to(Path("/", name))
    absent = max(here.cpus) + 1
    for cpu in (*here.cpus, absent):
        siblings = CPUSet([cpu]) if cpu == absent else here.siblings_of(CPUSet([cpu]))
        folder = system / f"cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "core_cpus_list").write_text(str(siblings))
        (folder / "physical_package_id").write_text("0")
    (system / "cpu/online").write_text(str(here.online))
    for number, core in enumerate(here.cores):
        node = system / f"node/node{number}"
        node.mkdir(parents=True)
        (node / "cpulist").write_text(str(core.cpus))
    return root, CPUSet([absent])


@contextmanager
def agent_of_nodes(node: Node, folder: Path, *flags: str) -> Iterator[Node]:
    """Let the agent see several NUMA nodes and be a plugin of the runtime, with further flags, until the block ends."""
    folder.joinpath("machine").mkdir()
    root, reserved = machine_of_nodes(folder / "machine")
    config = folder / "config.json"
    config.write_text(json.dumps({"reserved": str(reserved)}))
    own = ("--sysfs-root", str(root), "--config", str(config), "--state-dir", str(folder / "state"))
    with agent_over_nri(node, *own, *flags):
        yield node


def plugins_folder(node: Node) -> Path:
    """Return the folder where device plugins find the kubelet, which has it for itself."""
    return node.kubelet.directory / "apart/kubelet/device-plugins"


def allocatable(node: Node, resource: str) -> str:
    """Return the number of allocatable devices."""
    return str(node.document()["status"]["allocatable"].get(resource, ""))


@contextmanager
def kubelet_of_nodes(node: Node, folder: Path) -> Iterator[None]:
    """Let the kubelet see the same nodes from its next start on, until the block ends with a restart as before."""
    _write_nodes(folder)
    command = (
        'set -e; mount --make-private "$(stat --format=%m "$1")"; mount --bind "$2" "$1"; shift 2; exec "$@"'
    )
    kubelet, file = node.kubelet, node.kubelet.directory / "config.json"
    before, config = kubelet.host, file.read_text()
    kubelet.host = (*before, "sh", "-c", command, "nodes", str(NODES), str(folder))
    try:
        yield
    finally:
        kubelet.host = before
        file.write_text(config)
        restart_kubelet(node)


def use_policy(node: Node, policy: str) -> None:
    """Restart the kubelet with a policy of its topology manager."""
    file = node.kubelet.directory / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "topologyManagerPolicy": policy}))
    restart_kubelet(node)


def _write_nodes(folder: Path) -> None:
    """Write what the kubelet reads of NUMA nodes, one of each core."""
    cores = read_topology(Path("/")).cores
    every = CPUSet(range(len(cores)))
    for number, core in enumerate(cores):
        node = folder / f"node{number}"
        node.joinpath("hugepages").mkdir(parents=True)
        for cpu in core.cpus:
            node.joinpath(f"cpu{cpu}").symlink_to(f"/sys/devices/system/cpu/cpu{cpu}")
        lines = {
            "cpulist": str(core.cpus),
            "cpumap": f"{sum(1 << cpu for cpu in core.cpus):x}",
            "meminfo": "\n".join(f"Node {number} {name}: {MEMORY} kB" for name in ("MemTotal", "MemFree")),
            "distance": " ".join(str(NEAR if other == number else FAR) for other in every),
        }
        for name, text in lines.items():
            node.joinpath(name).write_text(f"{text}\n")
    for name in ("online", "possible", "has_cpu", "has_memory", "has_normal_memory"):
        folder.joinpath(name).write_text(f"{every}\n")
