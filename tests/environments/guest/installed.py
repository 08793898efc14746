"""Inside the guest: corepin installed from the manifests; its programs are read from the host's disk.

Unpacking an image of Python takes minutes under emulation, so the image here contains only links: Python and
the checkout are mounted into the pods. Everything else of the manifests applies: accounts, rights,
capabilities, users.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.environments.guest.guest import CHECKOUT
from tests.environments.node.image_archive import add_link, write_archive

if TYPE_CHECKING:
    from tests.environments.node.containerd import Containerd

IMAGE = "docker.io/library/corepin:0.1.0"  # full name of the image that the manifests name
CMK_IMAGE = "docker.io/library/cmk:v1.5.2"
COMMAND = Path(sys.executable).with_name("corepin")
WORKLOADS = {  # kind, namespace and container of each
    "corepin-certs": ("Deployment", "corepin-system", "certs"),
    "corepin-webhook": ("Deployment", "corepin-system", "webhook"),
    "corepin-agent": ("DaemonSet", "corepin-agent", "agent"),
}
PATIENT = {"timeoutSeconds": 60, "failureThreshold": 30}  # starting takes a minute and more here
REVIEW_SECONDS = 30  # the API server's longest wait for a webhook


def load_image(containerd: Containerd) -> None:
    """Import the image of the manifests into containerd."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as files:
        for name in ("bin", "sbin", "lib", "lib64"):
            add_link(files, name, f"usr/{name}")
    archive = containerd.directory / "corepin.tar"
    entry = {"Entrypoint": [sys.executable, str(COMMAND)], "Env": [f"PATH={COMMAND.parent}:/usr/bin"]}
    write_archive(archive, IMAGE, layer.getvalue(), entry)
    containerd.load(archive)


def load_cmk_image(containerd: Containerd) -> None:
    """Import an image with the name in CMK's pods: bash with its libraries, and busybox."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as files:
        for file in ("/bin/bash", *_libraries("/bin/bash")):
            files.add(os.path.realpath(file), file.lstrip("/"))
        files.add(str(shutil.which("busybox")), "bin/busybox")
        for name in ("echo", "sleep", "sh", "cat"):
            add_link(files, f"bin/{name}", "busybox")
    archive = containerd.directory / "cmk.tar"
    write_archive(archive, CMK_IMAGE, layer.getvalue(), {"User": "65532:65532", "Env": ["PATH=/bin"]})
    containerd.load(archive)


def _libraries(program: str) -> list[str]:
    """Return the libraries of a program, and its loader, by the paths where they are searched."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return [word for line in listed.splitlines() for word in line.split() if word.startswith("/")]


def write_overlay(
    folder: Path,
    manifests: Path = CHECKOUT / "manifests/hardened",
    replicas: int = 1,
    components: tuple[Path, ...] = (),
) -> Path:
    """Write the overlay: components, replicas of the webhook, longer timeouts, and the paths of the programs."""
    folder.mkdir(exist_ok=True)
    patches = [{"patch": json.dumps(_mounted(name))} for name in WORKLOADS]
    patches += [_patient_registration("Mutating", 1), _patient_registration("Validating", 3)]
    patches.append({"patch": json.dumps(_open_namespace())})
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(manifests, folder)],
        "components": [os.path.relpath(component, folder) for component in components],
        "replicas": [{"name": "corepin-webhook", "count": replicas}],
        "patches": patches,
    }
    (folder / "kustomization.yaml").write_text(json.dumps(overlay, indent=2))
    return folder


def _mounted(name: str) -> dict[str, Any]:
    kind, namespace, container = WORKLOADS[name]
    folders = _program_folders()
    mounts = [
        {"name": f"host-{number}", "mountPath": folder, "readOnly": True}
        for number, folder in enumerate(folders)
    ]
    volumes = [
        {"name": f"host-{number}", "hostPath": {"path": folder, "type": "Directory"}}
        for number, folder in enumerate(folders)
    ]
    patient: dict[str, Any] = {"name": container, "volumeMounts": mounts, "livenessProbe": PATIENT}
    if container != "certs":
        patient["readinessProbe"] = PATIENT
    spec: dict[str, Any] = {"template": {"spec": {"volumes": volumes, "containers": [patient]}}}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def _program_folders() -> list[str]:
    """Return the folders of Python, its packages and the checkout, without nested ones."""
    packages = {path for path in map(Path, sys.path) if path.is_absolute() and path.is_dir()}
    folders = packages | {Path("/usr"), Path(sys.base_prefix), Path(sys.prefix), CHECKOUT}
    return sorted(
        str(folder)
        for folder in folders
        if not any(folder.is_relative_to(other) for other in folders - {folder})
    )


def _patient_registration(kind: str, entries: int) -> dict[str, Any]:
    steps = [
        {"op": "replace", "path": f"/webhooks/{number}/timeoutSeconds", "value": REVIEW_SECONDS}
        for number in range(entries)
    ]
    return {"target": {"kind": f"{kind}WebhookConfiguration"}, "patch": json.dumps(steps)}


def _open_namespace() -> dict[str, Any]:
    """Return the namespace with a lower security level, because pods here mount folders of the host."""
    labels = {f"pod-security.kubernetes.io/{mode}": "privileged" for mode in ("enforce", "warn")}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "corepin-system", "labels": labels},
    }
