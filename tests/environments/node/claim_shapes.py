"""ResourceClaims and pods copied from other projects, and hugepage devices for one of the claims.

Names, classes, amounts and constraints are those of dra-driver-cpu's grouped examples, of the claims of nri-plugins' tests and of
VEP 152.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from pinning.contract import DRA_CAPACITY, DRA_DRIVER

Document = dict[str, Any]
HUGEPAGES: Final = "hugepages.example.com"  # a driver of other devices
NUMA_1 = 'device.attributes["resource.kubernetes.io"].numaNode == 1'


def request(name: str, amount: str, device_class: str = "dra.cpu", **more: Any) -> Document:
    """Return a request of a claim for CPUs."""
    exactly = {"deviceClassName": device_class, "capacity": {"requests": {DRA_CAPACITY: amount}}, **more}
    return {"name": name, "exactly": exactly}


def hugepages() -> Document:
    """Return VEP 152's request for the memory of a guest, which another driver serves."""
    exactly = {"deviceClassName": "dra.hugepages-1g", "capacity": {"requests": {"size": "4Gi"}}}
    return {"name": "mem", "exactly": exactly}


def claim(name: str, *requests: Document, **more: Any) -> Document:
    """Return a claim."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": list(requests), **more}},
    }


class Named(NamedTuple):
    """A container that names a claim of the pod, with its request if the claim has several."""

    container: str
    pod_claim: str
    claim: str
    cpus: int  # what the container gets
    amounts: Document = {}  # its limits, and its requests  # noqa: RUF012  # nothing changes it
    request: str = ""


class Shape(NamedTuple):
    """Claims and a pod as another project writes them."""

    claims: tuple[Document, ...]
    named: tuple[Named, ...]
    pod_level: str = ""  # CPUs of the pod
    others: tuple[str, ...] = ()  # containers without a claim

    def pod(self, document: Document) -> Document:
        """Return a pod with this shape's containers and claims, each container a copy of the document's one."""
        [template] = document["spec"]["containers"]
        containers = [{**template, "name": name, "resources": {}} for name in self.others]
        for it in self.named:
            named = {"name": it.pod_claim, **({"request": it.request} if it.request else {})}
            resources = {"limits": it.amounts, "requests": it.amounts, "claims": [named]}
            containers.append({**template, "name": it.container, "resources": resources})
        claims = [{"name": it.pod_claim, "resourceClaimName": it.claim} for it in self.named]
        spec = {**document["spec"], "containers": containers, "resourceClaims": claims}
        if self.pod_level:
            amounts = {"cpu": self.pod_level}
            spec["resources"] = {"limits": amounts, "requests": amounts}
        return {**document, "spec": spec}


MIRRORED = Shape(
    (claim("claim-cpu-capacity-10", request("req-cpu-slice", "10")),),
    (Named("workload-container", "pod-cpu-claim-ref", "claim-cpu-capacity-10", 10, {"cpu": "10"}),),
)
POD_LEVEL = Shape(
    (
        claim("claim-cpu-capacity-10", request("req-cpu-slice", "10")),
        claim("claim-cpu-capacity-4", request("req-cpu-slice-2", "4")),
    ),
    (
        Named("main-app", "container1-claim", "claim-cpu-capacity-10", 10),
        Named("worker", "container2-claim", "claim-cpu-capacity-4", 4),
    ),
    "16",
    ("sidecar",),
)
MAPPED = Shape(
    (claim("claim-cpu-capacity-10", request("req-cpu-slice", "10")),),
    (Named("workload-container", "pod-cpu-claim-ref", "claim-cpu-capacity-10", 10, {"cpu": "1m"}),),
)
NRI_PLUGINS = Shape(
    (
        claim(
            "cpus",
            request("cpus", "3", "topology-aware.nri.io", selectors=[{"cel": {"expression": NUMA_1}}]),
        ),
    ),
    (Named("main", "cpus", "cpus", 4),),
)
GUEST = {"cpu": "11"}  # eight vCPUs, one of the emulator, two of supplemental I/O threads
VEP_152 = Shape(
    (claim("vmi-1-cpu", request("cpu", "11")),),
    (Named("compute", "cpu-dra", "vmi-1-cpu", 12, GUEST, "cpu"),),
)
VEP_152_MEM = Shape(
    (
        claim(
            "vmi-1-dra",
            request("cpu", "11"),
            hugepages(),
            constraints=[
                {"matchAttribute": "resource.kubernetes.io/numaNode", "requests": ["cpu", "mem"]},
            ],
        ),
    ),
    (Named("compute", "vmi-dra", "vmi-1-dra", 12, GUEST, "cpu"),),
)
SHAPES: Final = {
    "dra-driver-cpu, mirrored": MIRRORED,
    "dra-driver-cpu, pod-level resources": POD_LEVEL,
    "dra-driver-cpu, mapped": MAPPED,
    "nri-plugins": NRI_PLUGINS,
    "VEP 152": VEP_152,
    "VEP 152 with memory of another driver": VEP_152_MEM,
}


def foreign_classes() -> list[Document]:
    """Return the classes of other projects that the claims name besides `dra.cpu`."""
    return [device_class("topology-aware.nri.io", DRA_DRIVER), device_class("dra.hugepages-1g", HUGEPAGES)]


def device_class(name: str, driver: str) -> Document:
    """Return a DeviceClass with all devices of a driver."""
    selectors = [{"cel": {"expression": f'device.driver == "{driver}"'}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": selectors},
    }


def hugepages_of(numa_nodes: int) -> list[Document]:
    """Return the hugepages of each NUMA node, as a driver of these publishes them."""
    return [
        {
            "name": f"hugepages-{numa_node}",
            "allowMultipleAllocations": True,
            "attributes": {"resource.kubernetes.io/numaNode": {"int": numa_node}},
            "capacity": {"size": {"value": "16Gi"}},
        }
        for numa_node in range(numa_nodes)
    ]


def pool_slice(node: str, driver: str, devices: list[Document]) -> Document:
    """Return the slice of a driver on a node."""
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{driver}"},
        "spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": devices},
    }
