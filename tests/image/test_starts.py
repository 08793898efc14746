"""Every program of the image starts under the manifests' restrictions: read-only root, few capabilities."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from certs.issue import CA
from corepin.cli import VERBS
from tests.environments import plain_http
from tests.environments.server.daemon import free_port
from tests.image.container import Locked, container
from tests.manifests.rendered import objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.image.archive import Archive

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: here
clusters: [{name: here, cluster: {server: 'http://127.0.0.1:1'}}]
users: [{name: me, user: {token: none}}]
contexts: [{name: here, context: {cluster: here, user: me}}]
"""


def workload(component: str, install: str) -> Any:
    """Return the pod of a component in an installation of the manifests."""
    (found,) = [
        it["spec"]["template"]["spec"]
        for it in objects(install)
        if it["kind"] in {"Deployment", "DaemonSet"} and it["metadata"]["name"] == f"corepin-{component}"
    ]
    return found


def readable(folder: Path, files: dict[str, bytes]) -> Path:
    """Write files as in a volume of the kubelet: readable only for the pod's group."""
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o440)
        os.chown(folder / name, 0, 65532)
    return folder


def account(folder: Path) -> dict[str, Path]:
    """Return a service account's mount with a dummy token."""
    files = {"token": b"none", "ca.crt": CA.create().cert, "namespace": b"corepin-system"}
    return {"/run/secrets/kubernetes.io/serviceaccount": readable(folder / "account", files)}


def webhook_mounts(folder: Path) -> dict[str, Path]:
    """Return the mounts of the webhook: its certificate."""
    leaf = CA.create().issue_cert("corepin-webhook.corepin-system.svc")
    return {"/etc/corepin/tls": readable(folder / "tls", {"tls.crt": leaf.cert, "tls.key": leaf.key})}


def agent_mounts(folder: Path) -> dict[str, Path]:
    """Return the agent's host mounts, with this machine's cgroups and without a runtime."""
    mounts = {there: folder / there.replace("/", "-") for there in ("/run/corepin", "/var/lib/corepin")}
    for here in mounts.values():
        here.mkdir()
    (folder / "machine-id").write_text(f"{'1234' * 8}\n")
    mounts |= {"/etc/machine-id": folder / "machine-id", "/host/sys/fs/cgroup": Path("/sys/fs/cgroup")}
    return {**mounts, **account(folder)}


def guard_mounts(folder: Path) -> dict[str, Path]:
    """Return the guard's host mounts, without the runtime's socket."""
    (folder / "nri").mkdir()
    return {"/var/run/nri": folder / "nri"}


@pytest.mark.server  # kubectl renders the manifests
@pytest.mark.parametrize(
    ("component", "install", "flag", "path", "mounts"),
    [
        pytest.param("webhook", "base", "metrics", "/readyz", webhook_mounts, id="webhook"),
        pytest.param("agent", "base", "metrics", "/healthz", agent_mounts, id="agent"),
        pytest.param("certs", "base", "metrics", "/metrics", account, id="certs"),
        pytest.param("guard", "guard", "health", "/healthz", guard_mounts, id="guard"),
        pytest.param("dashboard", "dashboard", "", "/", account, id="dashboard"),
    ],
)
def test_starts_as_the_manifests_lock_it_up(
    component: str,
    install: str,
    flag: str,
    path: str,
    mounts: Callable[[Path], dict[str, Path]],
    image: Archive,
    root: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With the manifest's user, capabilities and arguments the program answers its probe; the start time is printed."""
    pod = workload(component, install)
    (described,) = pod["containers"]
    locked = Locked.of(described, pod)
    assert locked.capabilities == ({"SYS_NICE"} if component == "agent" else set())
    port = free_port()
    command = [
        *image.settings["Entrypoint"],
        *described["args"],
        f"{f'--{flag}-listen' if flag else '--listen'}=127.0.0.1:{port}",
    ]
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
    """Return whether a GET succeeds."""
    try:
        return plain_http.get(url).is_success
    except httpx.TransportError:
        return False


def inside(root: Path, *words: str, text: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a chroot of the image, as its user, without /proc and /sys."""
    chroot = shutil.which("chroot")
    assert chroot
    begun = [chroot, "--userspec=65532:65532", str(root), f"/opt/corepin/bin/{words[0]}", *words[1:]]
    return subprocess.run(begun, env=env, input=text, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("verb", [module.rpartition(".")[2] for module in VERBS])
def test_every_verb_explains_itself(verb: str, root: Path) -> None:
    """Each verb prints its help in the image."""
    done = inside(root, "corepin", verb, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: corepin {verb} ")


def test_commands_work_without_a_cluster(root: Path) -> None:
    """In the image `inject`, `validate` and `plan` work on an example pod of CMK."""
    pod = Path("examples/smt/cores-of-cmk.yaml").read_text(encoding="utf-8")
    injected = inside(root, "corepin", "inject", "-f", "-", text=pod)
    assert "CMK_NUM_CORES" in injected.stdout, injected.stderr
    assert inside(root, "corepin", "validate", "-f", "-", text=injected.stdout).returncode == 0
    with shown(root, Path("demo/two-sockets.json")) as machine:
        planned = inside(root, "corepin", "plan", "-f", "-", "--topology", machine, text=pod)
        assert planned.stdout.startswith("2 sockets"), planned.stderr


def test_kubeconfig_and_texts(root: Path, tmp_path: Path) -> None:
    """In the image a kubeconfig is read, an unreachable cluster is an error, and the output is UTF-8."""
    config = tmp_path / "config"
    config.write_text(KUBECONFIG)
    with shown(root, config) as there:
        done = inside(root, "corepin", "why", "web", KUBECONFIG=there)
    assert done.returncode == 2
    assert done.stderr.startswith("corepin why: the API server is out of reach")
    assert inside(root, "python", "-c", "import sys; print(sys.stdout.encoding)").stdout == "utf-8\n"


def test_own_tracebacks_show_their_lines(root: Path) -> None:
    """A traceback has the source lines of corepin's own code."""
    fail = "import msgspec; from pinning.machine.cpuset import CPUSet; CPUSet.parse(msgspec)"
    told = inside(root, "python", "-c", fail).stderr
    assert re.search(r'pinning/machine/cpuset.py", line \d+, in \w+\n    \w', told), told


@contextmanager
def shown(root: Path, file: Path) -> Iterator[str]:
    """Copy a file into the image's root until the block ends, and yield its path there."""
    there = root / "tmp" / file.name
    shutil.copy(file, there)
    try:
        yield f"/tmp/{file.name}"
    finally:
        there.unlink()
