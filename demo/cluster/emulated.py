"""The cluster in an emulated machine of four cores with two threads each, with access to its API server."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from demo.cluster.guest import DOOR, SERVED
from demo.cluster.here import FAILURES, say, show
from demo.cluster.reached import Reached, write_kubeconfig
from demo.cluster.remains import own_folder
from demo.cluster.steps import NeverReached, Steps
from demo.cluster.stopping import until_stopped
from pinning.contract import ISOLATED_CORES
from tests.environments.cluster.start import PACKAGES
from tests.environments.guest.guest import GuestMachine, running_guest
from tests.environments.guest.installed import WORKLOADS, write_overlay
from tests.environments.guest.setup import EmulatorMissing
from tests.environments.guest.start import be_patient
from tests.environments.node.containerd import install_packages
from tests.environments.server.build import ASSETS, build_missing, cache_folder
from tests.environments.server.catalog import ETCD, KUBE_APISERVER, KUBECTL, NEWEST, NODE_SERVERS
from tests.environments.server.daemon import free_port
from tests.environments.server.start import require

if TYPE_CHECKING:
    from pathlib import Path

    from tests.environments.guest.guest import Guest

GUEST: Final = "demo.cluster.guest"
PORT: Final = 443  # port of the API server in the machine
WEBHOOK: Final = "corepin-webhook"
_LONGEST_SECONDS: Final = 7 * 86400.0


def main() -> int:
    """Run the machine until it is ended; return 0, or 1 if it cannot run."""
    with until_stopped():
        try:
            with ExitStack() as stack:
                guest = start(stack)
                guest.process.wait()
                raise guest.failure("the machine ended by itself")
        except (*FAILURES, EmulatorMissing, NeverReached) as failure:
            sys.stderr.write(f"make try: {failure}\n")
            return 1
    return 0


def start(stack: ExitStack) -> Guest:
    """Boot the machine, install corepin in it, print the commands to try, and return the machine."""
    build_missing(sys.stderr, (ETCD, KUBE_APISERVER[NEWEST], KUBECTL, *NODE_SERVERS))
    install_packages(PACKAGES)
    folder = stack.enter_context(own_folder())
    port = free_port()
    be_patient()
    say("starting an emulated machine and a cluster in it: four minutes, and more while this machine is busy")
    steps = Steps(say)
    guest = stack.enter_context(
        running_guest(GUEST, folder, machine=machine(port), kernel_options=_options())
    )
    steps.done("the machine has booted, and starts etcd and kube-apiserver")
    served = steps.until("kube-apiserver answers", lambda: guest.facts().get(SERVED))[0]
    kubeconfig = write_kubeconfig(folder, f"https://127.0.0.1:{port}", served["ca"], served["token"])
    (kubectl,) = require(KUBECTL)
    cores = install(Reached(guest, kubeconfig, kubectl), steps, folder)
    show(stack, folder, kubeconfig, kubectl, cores)
    return guest


def install(cluster: Reached, steps: Steps, folder: Path) -> int:
    """Install corepin from its manifests, and return the node's number of exclusive cores.

    The webhook is scaled up once its certificate exists; otherwise the kubelet retries the mount with backoff.
    """
    overlay = write_overlay(folder / "overlay", replicas=0)
    steps.until("manifests/hardened is applied", lambda: cluster.has_applied(overlay))
    steps.until("the node is ready", cluster.is_node_ready)
    steps.until("corepin-certs has issued the webhook's certificate", cluster.has_certificate)
    steps.until("the webhook is started", lambda: cluster.has_scaled(WEBHOOK, 1))
    steps.until("corepin-agent offers the cores of the node", lambda: cluster.offered(ISOLATED_CORES))
    for name in WORKLOADS:
        steps.until(f"{name} is ready", lambda name=name: cluster.is_rolled_out(name))  # type: ignore[misc]
    steps.until("pods are reviewed", cluster.is_reviewed)
    return cluster.offered(ISOLATED_CORES)


def machine(port: int) -> GuestMachine:
    """Return the emulated machine: without network access, except for its API server on a loopback port."""
    door = f"user,id=door,restrict=on,hostfwd=tcp:127.0.0.1:{port}-{DOOR}:{PORT}"
    devices = ("-netdev", door, "-device", "virtio-net-pci,netdev=door")
    return GuestMachine("8,sockets=1,cores=4,threads=2", "6G", seconds=_LONGEST_SECONDS, devices=devices)


def _options() -> str:
    environment = {"COREPIN_CACHE": str(cache_folder().parent), ASSETS: os.environ.get(ASSETS, "")}
    return " ".join(f"{name}={value}" for name, value in environment.items() if value)


if __name__ == "__main__":
    sys.exit(main())
