"""Mounts of the agent's pod, by a real kubelet and containerd."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tests.environments.node.node import pod

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.environments.node.node import Container, Node

AGENT = Path("manifests/base/agent.yaml")
DEBUGFS = Path("/sys/kernel/debug")


@contextmanager
def debugfs() -> Iterator[None]:
    """Have a debugfs where every distribution has one, if this kernel can."""
    if not DEBUGFS.is_dir() or DEBUGFS.is_mount():
        yield
        return
    subprocess.run(["mount", "-t", "debugfs", "debugfs", str(DEBUGFS)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(DEBUGFS)], check=True)


def kernel_mount() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the volume and the mount by which the agent sees debugfs."""
    spec = yaml.safe_load(AGENT.read_text())["spec"]["template"]["spec"]
    (volume,) = (volume for volume in spec["volumes"] if volume["name"] == "sys-kernel")
    (mount,) = (mount for mount in spec["containers"][0]["volumeMounts"] if mount["name"] == "sys-kernel")
    return volume, mount


def options(container: Container) -> dict[str, set[str]]:
    """Return the options of every mount that a container sees, by its place."""
    table = Path(f"/proc/{container.pids[0]}/mountinfo").read_text().splitlines()
    return {fields[4]: set(fields[5].split(",")) for fields in map(str.split, table)}


def test_debugfs_is_seen_and_not_written(node: Node) -> None:
    """Debugfs is mounted read-only, with the mounts below it."""
    volume, mount = kernel_mount()
    document = pod("looking")
    document["spec"]["volumes"] = [volume]
    document["spec"]["containers"][0]["volumeMounts"] = [mount]
    with debugfs():
        below = {str(Path(mount["mountPath"], "debug"))} if DEBUGFS.is_mount() else set()
        [container] = node.run(document)
        seen = options(container)
    places = {place for place in seen if f"{place}/".startswith(f"{mount['mountPath']}/")}
    assert places >= {mount["mountPath"], *below}
    assert all("ro" in seen[place] for place in places)
