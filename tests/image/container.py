"""Containers of the image by runc, with the restrictions of the manifests."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.environments.server.daemon import Daemon, running

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_NAMESPACES: Final = ("mount", "ipc", "uts", "pid")  # not network, so that tests reach loopback
_SYSTEM_MOUNTS: Final = (
    {"destination": "/proc", "type": "proc", "source": "proc"},
    {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
    {"destination": "/sys", "type": "bind", "source": "/sys", "options": ["rbind", "ro"]},
)
_CAPABILITIES: Final = {"SYS_NICE": 23}  # capabilities in the manifests, with the kernel's numbers
_numbers = count(1)


@dataclass(frozen=True)
class Locked:
    """Rights of a container, as in Kubernetes' SecurityContext."""

    user: int
    group: int
    capabilities: frozenset[str]

    @classmethod
    def of(cls, container: Mapping[str, Any], pod: Mapping[str, Any]) -> Locked:
        """Read the specification of a container and its pod from the manifests."""
        own, common = container["securityContext"], pod["securityContext"]
        assert own["readOnlyRootFilesystem"] is True
        assert own["allowPrivilegeEscalation"] is False
        assert own["capabilities"]["drop"] == ["ALL"]
        merged = {**common, **own}
        return cls(merged["runAsUser"], merged["runAsGroup"], frozenset(own["capabilities"].get("add", ())))


@dataclass(frozen=True)
class Container:
    """A running container."""

    daemon: Daemon
    state: tuple[str, ...]  # the command that prints its state

    def locked(self) -> Locked:
        """Return the rights of its process from the kernel; check that its root is read-only."""
        state = subprocess.run(self.state, capture_output=True, text=True, check=True).stdout
        process = Path("/proc") / str(json.loads(state)["pid"])
        lines = (line.split() for line in (process / "mountinfo").read_text().splitlines())
        assert [line[5].split(",")[0] for line in lines if line[4] == "/"] == ["ro"]
        fields = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
        assert fields["NoNewPrivs"] == "1"
        masks = {int(fields[name], 16) for name in ("CapPrm", "CapBnd", "CapEff")}
        (mask,) = masks
        names = frozenset(name for name, number in _CAPABILITIES.items() if mask >> number & 1)
        assert mask.bit_count() == len(names), f"{mask:x}"
        return Locked(int(fields["Uid"].split()[0]), int(fields["Gid"].split()[0]), names)


@contextmanager
def container(
    root: Path,
    locked: Locked,
    command: Sequence[str],
    folder: Path,
    *,
    env: Mapping[str, str],
    mounts: Mapping[str, Path],
) -> Iterator[Container]:
    """Run a command until the block ends; `mounts` are read-only, except folders below /run and /var."""
    bundle = folder / f"container-{next(_numbers)}"
    bundle.mkdir()
    spec = _spec(root, locked, command, env, mounts, bundle.name)
    (bundle / "config.json").write_text(json.dumps(spec, indent=2))
    runc = ("runc", f"--root={folder / 'runc'}")
    command = (*runc, "run", f"--bundle={bundle}", bundle.name)
    try:
        with running(bundle.name, command, bundle / "log") as daemon:
            yield Container(daemon, (*runc, "state", bundle.name))
    finally:
        subprocess.run((*runc, "delete", "--force", bundle.name), check=False, capture_output=True)


def _spec(
    root: Path,
    locked: Locked,
    command: Sequence[str],
    env: Mapping[str, str],
    mounts: Mapping[str, Path],
    name: str,
) -> dict[str, Any]:
    """Return the OCI runtime configuration of the container."""
    capabilities = [f"CAP_{name}" for name in sorted(locked.capabilities)]
    process = {
        "user": {"uid": locked.user, "gid": locked.group},
        "args": list(command),
        "env": [f"{key}={value}" for key, value in env.items()],
        "cwd": "/",
        "capabilities": dict.fromkeys(("bounding", "effective", "permitted", "inheritable"), capabilities),
        "noNewPrivileges": True,
    }
    bound = [
        {
            "destination": there,
            "type": "bind",
            "source": str(here),
            "options": ["rbind", "rw" if there.startswith(("/run", "/var")) else "ro"],
        }
        for there, here in mounts.items()
    ]
    return {
        "ociVersion": "1.0.2",
        "process": process,
        "root": {"path": str(root), "readonly": True},
        "hostname": "container",
        "mounts": [*_SYSTEM_MOUNTS, *bound],
        "linux": {
            "namespaces": [{"type": kind} for kind in _NAMESPACES],
            "cgroupsPath": f"/corepin-image-{os.getpid()}-{name}",
        },
    }
