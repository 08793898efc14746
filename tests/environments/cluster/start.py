"""Start of a cluster: etcd, API server, controllers, scheduler here; containerd and kubelet in a `Place`."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.cluster.names import DOMAIN, serve_names
from tests.environments.cluster.cluster import Cluster
from tests.environments.cluster.place import (
    CMK_PROGRAMS,
    CMK_STATE,
    KUBELET,
    LOGS,
    RUNTIME,
    STATE,
    Place,
    node_place,
)
from tests.environments.node.containerd import VERSIONS, _missing, install_packages, start_containerd
from tests.environments.node.kubelet import start_kubelet
from tests.environments.server import catalog
from tests.environments.server.build import cache_folder, find
from tests.environments.server.control_plane import start_control_plane, start_controllers, start_scheduler
from tests.environments.waiting import until
from tests.image.build import build_image

if TYPE_CHECKING:
    from contextlib import ExitStack

    from tests.environments.node.containerd import Containerd
    from tests.environments.server.catalog import Server
    from tests.environments.server.control_plane import ControlPlane

PLUGINS: Final = Path("/usr/lib/cni")  # Debian's path
PACKAGES: Final = {"containernetworking-plugins": str(PLUGINS / "ptp"), "util-linux": "nsenter"}
NODE: Final = "node-1"


def start_cluster(stack: ExitStack, directory: Path) -> Cluster:
    """Start everything, and wait until the node is ready; `stack` stops it."""
    if len(os.sched_getaffinity(0)) == 1:
        raise _missing("one CPU can be reserved or given out, not both")
    install_packages(PACKAGES)
    image = build_image()
    folders = {
        RUNTIME: directory / "containerd",
        KUBELET: directory / "kubelet/root",
        STATE: directory / "state",
        LOGS: directory / "kubelet/containers",
        CMK_PROGRAMS: directory / "programs",
        CMK_STATE: directory / "cmk",
    }
    for folder in (directory / "api", directory / "overlays", *folders.values()):
        folder.mkdir(parents=True)
    for part in ("root", "state"):  # images and containers: a gigabyte, which pytest would keep
        stack.callback(shutil.rmtree, folders[RUNTIME] / part, ignore_errors=True)
    place = stack.enter_context(node_place(directory, folders))
    plane = _start_servers(stack, directory / "api", place)
    containerd = _start_runtime(stack, folders[RUNTIME], place)
    containerd.load(image)
    kubelet = stack.enter_context(
        start_kubelet(
            *(_program(catalog.KUBELET), plane.server, NODE, directory / "kubelet"),
            *(containerd.socket, containerd.cgroup),
            host=place.run,
            flags=(f"--node-ip={place.address}",),
            settings=_kubelet_settings(place),
        )
    )
    places = (directory / "overlays", folders[CMK_PROGRAMS])
    cluster = Cluster(NODE, plane, containerd, kubelet, *places)
    until("the kubelet is ready", cluster.is_ready)
    return cluster


def _start_servers(stack: ExitStack, directory: Path, place: Place) -> ControlPlane:
    """Start the servers of the control plane."""
    flags = (
        f"--bind-address={place.near}",
        f"--advertise-address={place.near}",
        f"--service-cluster-ip-range={place.services}",
        # The node has no other name that can be resolved here.
        "--kubelet-preferred-address-types=InternalIP",
        "--enable-aggregator-routing=true",  # webhooks are called at their endpoints: there is no kube-proxy
    )
    plane = stack.enter_context(start_control_plane(directory, place.near, 443, flags))
    stack.enter_context(start_controllers(_program(catalog.KUBE_CONTROLLER_MANAGER), plane.server))
    stack.enter_context(start_scheduler(_program(catalog.KUBE_SCHEDULER), plane.server))
    stack.enter_context(serve_names(plane.server, place.near))
    return plane


def _start_runtime(stack: ExitStack, directory: Path, place: Place) -> Containerd:
    _write_network(directory / "cni", place)
    return stack.enter_context(start_containerd(VERSIONS[1], directory, place.run))


def _program(server: Server) -> Path:
    path = find(server, cache_folder())
    if path is None:
        raise _missing(f"{server.label} is not built; run `python -m tests.environments.server`")
    return path


def _kubelet_settings(place: Place) -> dict[str, Any]:
    return {
        "address": place.address,
        "clusterDNS": [place.near],
        "clusterDomain": DOMAIN,
        "registerWithTaints": [
            {"key": "corepin.io/agent-not-ready", "effect": "NoSchedule"}
        ],  # as in the guide
        "syncFrequency": "5s",  # maximum delay of a changed Secret: the default is a minute
    }


def _write_network(folder: Path, place: Place) -> None:
    """Configure an address and a route for each pod, without bridge and netfilter."""
    folder.mkdir()
    for name in ("ptp", "host-local", "loopback"):
        (folder / name).symlink_to(PLUGINS / name)
    ipam = {
        "type": "host-local",
        "subnet": place.pods,
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": str(folder / "addresses"),
    }
    network = {"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp", "ipam": ipam}]}
    (folder / "10-pods.conflist").write_text(json.dumps(network))
