"""Run the cluster on this machine: etcd, kube-apiserver, controllers and scheduler, containerd and a kubelet."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final
from unittest import SkipTest

from demo.cluster.page import PROGRAMS, dashboard
from demo.cluster.remains import own_folder
from demo.cluster.stopping import until_stopped, wait
from demo.cluster.tour import guide, write_pods
from tests.environments.cluster.start import start_cluster
from tests.environments.node.containerd import RuntimeMissing
from tests.environments.server.build import BuildFailed, GoMissing, build_missing
from tests.environments.server.catalog import ETCD, KUBE_APISERVER, KUBECTL, NEWEST, NODE_SERVERS
from tests.environments.server.daemon import DaemonFailed
from tests.image.build import BuildFailed as ImageFailed
from tests.image.build import build_image

if TYPE_CHECKING:
    from pathlib import Path

    from tests.environments.cluster.cluster import Cluster

# Errors that are printed in one line: missing requirements, and failed starts.
FAILURES: Final = (
    SkipTest,
    RuntimeMissing,
    GoMissing,
    BuildFailed,
    ImageFailed,
    DaemonFailed,
    AssertionError,
)


def main() -> int:
    """Run the cluster until it is ended; return 0, or 1 if it cannot run."""
    with until_stopped():
        try:
            with ExitStack() as stack:
                cluster, folder = start(stack)
                server = cluster.plane.server
                show(stack, folder, server.kubeconfig(), server.binaries.kubectl, cluster.cores)
                wait()
        except FAILURES as failure:
            sys.stderr.write(f"make try: {failure}\n")
            return 1
    return 0


def start(stack: ExitStack) -> tuple[Cluster, Path]:
    """Return the cluster with corepin installed, and the folder of its files, deleted at the end."""
    build_missing(sys.stderr, (ETCD, KUBE_APISERVER[NEWEST], KUBECTL, *NODE_SERVERS))
    say(
        "making the image of corepin, unless it is there: this takes minutes, once for each state of the checkout"
    )
    build_image()
    folder = stack.enter_context(own_folder())
    say("starting etcd, kube-apiserver, controllers, scheduler, containerd and a kubelet")
    cluster = start_cluster(stack, folder)
    say("installing corepin from manifests/base")
    cluster.install(replicas=1)
    return cluster, folder


def show(stack: ExitStack, folder: Path, kubeconfig: Path, kubectl: Path, cores: int) -> None:
    """Serve the cluster's dashboard, and print the tour."""
    write_pods(folder, cores)
    page = stack.enter_context(dashboard(kubeconfig, folder))
    say(guide(folder, kubeconfig, (kubectl.parent, PROGRAMS), page))


def say(text: str) -> None:
    """Print and flush, so that pipes get the line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
