"""Inside the guest: start all servers of a cluster of one node, before corepin is installed."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.agent.cri import containerd_config
from tests.environments.cluster.place import KUBELET, RUNTIME, Place
from tests.environments.cluster.start import _program, _write_network
from tests.environments.guest.cluster import SECONDS
from tests.environments.guest.installed import load_cmk_image, load_image
from tests.environments.guest.machine import NODE, NODE_ADDRESS, SERVICE_ADDRESS
from tests.environments.node import containerd as containers
from tests.environments.node.containerd import VERSIONS, start_containerd
from tests.environments.node.kubelet import start_kubelet
from tests.environments.server import catalog, daemon
from tests.environments.server.control_plane import start_control_plane, start_controllers, start_scheduler

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.environments.node.containerd import Containerd
    from tests.environments.node.kubelet import Kubelet
    from tests.environments.server.apiserver import ApiServer

API: Final = Path("/run/api")
KUBELET_FILES: Final = Path("/var/lib/kubelet-files")
PLACE: Final = Place(SERVICE_ADDRESS, NODE_ADDRESS, "10.2.0.0/24", "10.0.0.0/24", ())
API_FLAGS: Final = (
    f"--bind-address={SERVICE_ADDRESS}",  # where pods look for it: there is no proxy for Services
    "--enable-aggregator-routing=true",  # webhooks are called at their endpoints, for the same reason
    "--kubelet-preferred-address-types=InternalIP",  # the node has no other name that can be resolved here
)
CONTROLLERS: Final = (  # the others only cost time here
    "deployment-controller",
    "replicaset-controller",
    "daemonset-controller",
    "endpointslice-controller",
    "serviceaccount-controller",
    "root-ca-certificate-publisher-controller",
    "node-lifecycle-controller",
    "resourceclaim-controller",
)
CONTROLLER_FLAGS: Final = (
    f"--controllers={','.join(CONTROLLERS)}",
    "--node-monitor-grace-period=30m",  # an emulated kubelet may be silent for long
)
SETTINGS: Final = {
    "address": NODE_ADDRESS,  # address for the API server's requests for logs and exec
    "nodeStatusUpdateFrequency": "10s",
    "fileCheckFrequency": "1h",
    "runtimeRequestTimeout": "30m",  # creating one of a hundred containers exceeds the default of two minutes
}


def be_patient() -> None:
    """Raise all timeouts to those of an emulated machine."""
    containers._SECONDS = daemon.START_SECONDS = SECONDS


@contextmanager
def start_cluster() -> Iterator[ApiServer]:
    """Run etcd, kube-apiserver, controllers, scheduler, containerd 2.4 and the kubelet until the block ends."""
    with ExitStack() as stack:
        server = stack.enter_context(start_servers())
        start_node(stack, server)
        yield server


@contextmanager
def start_servers(flags: tuple[str, ...] = ()) -> Iterator[ApiServer]:
    """Run the servers besides the node until the block ends; `flags` come last for kube-apiserver and win."""
    os.environ["GOMAXPROCS"] = "2"  # more threads than host CPUs would wait for each other
    API.mkdir()
    with ExitStack() as stack:
        plane = start_control_plane(API, SERVICE_ADDRESS, 443, (*API_FLAGS, *flags))
        server = stack.enter_context(plane).server
        controllers = _program(catalog.KUBE_CONTROLLER_MANAGER)
        stack.enter_context(start_controllers(controllers, server, CONTROLLER_FLAGS))
        stack.enter_context(start_scheduler(_program(catalog.KUBE_SCHEDULER), server))
        yield server


def start_node(stack: ExitStack, server: ApiServer) -> None:
    """Start containerd, with the images of corepin and CMK, and the kubelet; `stack` stops them."""
    containerd = start_runtime(stack)
    load_image(containerd)
    load_cmk_image(containerd)
    start_kubelet_over(stack, server, containerd)


def start_runtime(stack: ExitStack, host: tuple[str, ...] = ()) -> Containerd:
    """Start containerd, by a prefix of its command line; `stack` stops it.

    It waits long for the agent's plugin, because it would create a container without its CPUs after a timeout.
    """
    containerd_config.NRI_TIMEOUT = f"{SECONDS:.0f}s"
    RUNTIME.mkdir()
    _write_network(RUNTIME / "cni", PLACE)
    return stack.enter_context(start_containerd(VERSIONS[1], RUNTIME, host))


def start_kubelet_over(
    stack: ExitStack, server: ApiServer, containerd: Containerd, host: tuple[str, ...] = ()
) -> Kubelet:
    """Start the kubelet, by a prefix of its command line; `stack` stops it."""
    KUBELET.symlink_to(KUBELET_FILES / "root")
    return stack.enter_context(
        start_kubelet(
            *(_program(catalog.KUBELET), server, NODE, KUBELET_FILES, containerd.socket, "/"),
            host=host,
            flags=(f"--node-ip={NODE_ADDRESS}",),
            settings=SETTINGS,
        )
    )
