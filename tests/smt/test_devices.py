"""CPUs of containers with devices on a machine whose kernel knows the devices' NUMA nodes."""

from __future__ import annotations

from typing import Any

import pytest

from pinning.machine.cpuset import CPUSet
from tests.environments.guest.facts import SOCKETS, cpus
from tests.environments.guest.guest import Report
from tests.smt.scenario_devices import PODS

MEMORY_ALONE = "2"  # the number that the kernel gives to the NUMA node without CPUs


def listed(node: Report, pod: str) -> dict[str, tuple[list[int], bool | None]]:
    """Return the NUMA nodes of a pod's devices by resource, as its status has them, and whether its CPUs are near."""
    found: dict[str, Any] = node.one("devices")["told"][pod]
    return {it["resource"]: (it.get("nodes", []), it.get("near")) for it in found["devices"]}


def test_kernel_knows_the_nodes_of_devices(node: Report) -> None:
    """The kernel reports the NUMA nodes of devices; a node without CPUs is nearest to the second socket."""
    pci = node.one("pci")
    numbers = {resource: device["numa_node"] for resource, device in pci["devices"].items()}

    assert numbers == {
        "example.com/first": "0",
        "example.com/nic": "1",
        "example.com/disk": "1",
        "example.com/hbm": MEMORY_ALONE,
        "example.com/unplaced": "-1",
    }
    assert pci["nodes"][f"node{MEMORY_ALONE}"] == {"cpulist": "", "distance": "40 12 10"}
    assert pci["devices"]["example.com/hbm"]["local_cpulist"] == ""


@pytest.mark.parametrize(
    ("pod", "socket"),
    [
        pytest.param("beside-first", 0, id="a device of the first socket"),
        pytest.param("beside-two", 1, id="network and disk of the second socket"),
        pytest.param("beside-memory", 1, id="a device beside memory alone"),
    ],
)
def test_container_runs_beside_its_devices(node: Report, pod: str, socket: int) -> None:
    """A container starts on the socket nearest to its device, and stays there with its tasks and its memory."""
    seen = node.one("devices")
    mine = cpus(seen, pod)

    assert len(mine) == 2
    assert mine <= SOCKETS[socket]
    assert CPUSet.parse(seen["first"][pod]) == mine
    assert (seen["memory"][pod], seen["told"][pod]["numaNodes"]) == (str(socket), [socket])


def test_status_says_what_the_kernel_says(node: Report) -> None:
    """The status has the kernel's NUMA node of each device; CPUs are near for each device with a node."""
    pci = node.one("pci")["devices"]
    for pod, resources in PODS.items():
        numbers = {resource: int(pci[resource]["numa_node"]) for resource in resources}
        wanted = {
            resource: ([], None) if number < 0 else ([number], True) for resource, number in numbers.items()
        }
        assert listed(node, pod) == wanted


def test_device_without_a_node_leaves_its_container_anywhere(node: Report) -> None:
    """A container whose device has no NUMA node runs anywhere, also under `require`."""
    assert len(cpus(node.one("devices"), "beside-none")) == 2
    assert node.one("devices")["refusals"] == []
