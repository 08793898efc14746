"""Pods of virtual machines, like those of KubeVirt's virt-controller and of a Kata user."""

from __future__ import annotations

import json
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pinning.contract import LAUNCHER_CONTAINER, VIRT_LAUNCHER
from tests.environments.vm import lifeline
from tests.environments.vm.guests import Guest, kata_command, libvirt_command
from tests.environments.vm.kata.sandbox import QEMU, THIS_FOLDER, THIS_SANDBOX

if TYPE_CHECKING:
    from collections.abc import Mapping

HOST: Final = ("/usr", "/lib", "/lib64")  # QEMU's files on the host, mounted read-only
SOCKETS: Final = "/var/run/vm"  # folder in the container with the monitor's socket for the test
MONITOR: Final = "monitor.sock"
EXCLUSIVE: Final = MappingProxyType({"cpu-manager.corepin.io/pod": "exclusive"})
# virt-launcher-monitor with virt-launcher, and libvirt's processes; all of them end with the test
LAUNCHER: Final = f"""
/bin/sleep 1000000 & launcher=$!
"$@" </dev/null & qemu=$!
{lifeline.WAIT_FOR_END}
kill -9 $launcher $qemu
"""


def launcher_pod(
    name: str, guest: Guest, command: list[str], annotations: Mapping[str, str], cpus: int = 0
) -> dict[str, Any]:
    """Return the pod of a VMI; its compute container has this many CPUs, by default one for each vCPU."""
    amounts = {"cpu": str(cpus or guest.vcpus), "memory": "256Mi"}
    labels = {"kubevirt.io": VIRT_LAUNCHER, "vm.kubevirt.io/name": name}
    compute = {
        "name": LAUNCHER_CONTAINER,
        "command": command,
        "resources": {"limits": amounts, "requests": amounts},
    }
    return _pod(name, [compute], annotations, labels)


def launcher_command(guest: Guest, name: str, sockets: str) -> list[str]:
    """Return the command of a compute container whose QEMU has its monitor in a folder."""
    script = f"LIFELINE={sockets}/{lifeline.NAME}\n{LAUNCHER}"
    command = libvirt_command(guest, name, Path(sockets) / MONITOR)
    return ["/bin/sh", "-c", script, "virt-launcher-monitor", *command]


def mount_host(pod: dict[str, Any], image: str, sockets: str) -> None:
    """Let a launcher's pod start in a cluster: with an existing image, and the host's programs mounted."""
    paths = {**{path: path for path in HOST}, SOCKETS: sockets}
    volumes = {f"host-{number}": place for number, place in enumerate(paths)}
    (compute,) = pod["spec"]["containers"]
    compute |= {
        "image": image,
        "imagePullPolicy": "Never",
        "volumeMounts": [
            {"name": name, "mountPath": place, "readOnly": place != SOCKETS}
            for name, place in volumes.items()
        ],
    }
    pod["spec"] |= {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "volumes": [{"name": name, "hostPath": {"path": paths[place]}} for name, place in volumes.items()],
    }


def kata_pod(
    name: str, cpus: Mapping[str, int], annotations: Mapping[str, str], handler: str
) -> dict[str, Any]:
    """Return a Kata pod of containers with this many CPUs each; 0: without CPUs."""
    containers = [_container(container, count) for container, count in cpus.items()]
    pod = _pod(name, containers, annotations, {})
    pod["spec"]["runtimeClassName"] = handler
    return pod


def kata_annotations(guest: Guest, words: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Return the annotations for the shim: the command of QEMU with sandbox and folder."""
    folder = Path(THIS_FOLDER)
    extra = ["-qmp", f"unix:path={folder / 'qmp.sock'},server=on,wait=off"]  # the shim's own
    command = kata_command(guest, THIS_SANDBOX, folder / MONITOR, folder / "pid")
    return {QEMU: json.dumps([*command, *extra]), **words}


def _container(name: str, cpus: int) -> dict[str, Any]:
    amounts = {"cpu": str(cpus), "memory": "64Mi"} if cpus else {}
    return {"name": name, "resources": {"limits": amounts, "requests": amounts}}


def _pod(
    name: str, containers: list[dict[str, Any]], annotations: Mapping[str, str], labels: Mapping[str, str]
) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    metadata |= {"annotations": dict(annotations), "labels": dict(labels)}  # type: ignore[dict-item]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}
