"""Every program of the image starts as locked up as the manifests have it: read-only root, no capabilities but theirs."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from certs.issue import CA
from tests.image.container import Locked, container
from tests.manifests.rendered import objects
from tests.servers.daemon import free_port

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.image.archive import Archive


def workload(component: str) -> Any:
    """Return the pod of a component in the manifests."""
    (found,) = [
        it["spec"]["template"]["spec"]
        for it in objects("base")
        if it["kind"] in {"Deployment", "DaemonSet"} and it["metadata"]["name"] == f"corepin-{component}"
    ]
    return found


def readable(folder: Path, files: dict[str, bytes]) -> Path:
    """Write files as the kubelet gives them to a pod: for its group, and for nobody else."""
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o440)
        os.chown(folder / name, 0, 65532)
    return folder


def account(folder: Path) -> dict[str, Path]:
    """Return an account's mount; its token is good for nothing, and nobody is asked."""
    files = {"token": b"none", "ca.crt": CA.create().cert, "namespace": b"corepin-system"}
    return {"/run/secrets/kubernetes.io/serviceaccount": readable(folder / "account", files)}


def webhook_mounts(folder: Path) -> dict[str, Path]:
    """Return what the webhook needs: its certificate."""
    leaf = CA.create().issue_cert("corepin-webhook.corepin-system.svc")
    return {"/etc/corepin/tls": readable(folder / "tls", {"tls.crt": leaf.cert, "tls.key": leaf.key})}


def agent_mounts(folder: Path) -> dict[str, Path]:
    """Return what the agent needs of its host: here it may only read cgroups, and there is no runtime yet."""
    mounts = {there: folder / there.replace("/", "-") for there in ("/run/corepin", "/var/lib/corepin")}
    for here in mounts.values():
        here.mkdir()
    (folder / "machine-id").write_text(f"{'1234' * 8}\n")
    mounts |= {"/etc/machine-id": folder / "machine-id", "/host/sys/fs/cgroup": Path("/sys/fs/cgroup")}
    return {**mounts, **account(folder)}


@pytest.mark.server  # kubectl renders the manifests
@pytest.mark.parametrize(
    ("component", "path", "mounts"),
    [
        pytest.param("webhook", "/readyz", webhook_mounts, id="webhook"),
        pytest.param("agent", "/healthz", agent_mounts, id="agent"),
        pytest.param("certs", "/metrics", account, id="certs"),
    ],
)
def test_starts_as_the_manifests_lock_it_up(
    component: str,
    path: str,
    mounts: Callable[[Path], dict[str, Path]],
    image: Archive,
    root: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With the manifest's user, capabilities and arguments it answers its probe; how soon is told."""
    pod = workload(component)
    (described,) = pod["containers"]
    locked = Locked.of(described, pod)
    assert locked.capabilities == ({"SYS_NICE"} if component == "agent" else set())
    port = free_port()
    command = [*image.settings["Entrypoint"], *described["args"], f"--metrics-listen=127.0.0.1:{port}"]
    if component == "webhook":
        command.append("--listen=127.0.0.1:0")
    env = dict(entry.split("=", 1) for entry in image.settings["Env"])
    env |= {
        it["name"]: "here" if "valueFrom" in it else it.get("value", "") for it in described.get("env", ())
    }
    env |= {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(free_port())}
    started = time.monotonic()
    with container(root, locked, command, tmp_path, env=env, mounts=mounts(tmp_path)) as it:
        it.daemon.wait_until(lambda: answers(f"http://127.0.0.1:{port}{path}"))
        seconds = time.monotonic() - started
        assert it.locked() == locked
    with capsys.disabled():
        sys.stdout.write(f"\n{component}: answers {seconds:.1f} s after the container's start\n")


def answers(url: str) -> bool:
    """Tell whether a GET succeeds."""
    try:
        return httpx.get(url, trust_env=False, timeout=10).is_success
    except httpx.TransportError:
        return False
