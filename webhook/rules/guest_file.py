"""A file in the guest of a Kata pod with the CPUs and vCPUs of its containers. Pure.

On the host a container reads its CPUs from its own cgroup; in a guest it sees only vCPUs. So the status annotation,
which only the agent may write, is mounted into each container that claims CPUs, and an environment variable has the
container's name.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final

from pinning.contract import CONTAINER_VARIABLE, CPUS_FILE, CPUS_FOLDER, CPUS_VOLUME, STATUS_CPUS
from pinning.pods.vm_handlers import is_vm_handler

if TYPE_CHECKING:
    from collections.abc import Container as Names
    from collections.abc import Iterable, Sequence

    from pinning.pods.resources import Member
    from pinning.pods.types import DownwardAPI, Pod, Volume
    from webhook.config.mutations import Fragment

POD: Final = ""  # JSON pointer to the pod
_FIELD: Final = f"metadata.annotations['{STATUS_CPUS}']"
_STATUS: Final[DownwardAPI] = {"items": [{"path": CPUS_FILE, "fieldRef": {"fieldPath": _FIELD}}]}


def plan_guest_file(pod: Pod, members: Iterable[Member], taken: Names[str]) -> dict[str, Fragment]:
    """Return the additions for these containers by JSON pointer; empty for pods without a virtual machine.

    `taken` has the names of volumes that are added elsewhere.
    """
    spec = pod.get("spec") or {}
    if not is_vm_handler(spec.get("runtimeClassName") or ""):
        return {}
    lacking = [member for member in members if not _has_something_there(member)]
    if not lacking:
        return {}
    volumes = spec.get("volumes") or ()
    there = next((volume["name"] for volume in volumes if _is_ours(volume)), "")
    name = there or _unused_name(volumes, taken)
    mount = {"name": name, "mountPath": CPUS_FOLDER, "readOnly": True}
    added: dict[str, Fragment] = {
        member.pointer: {
            "volumeMounts": [mount],
            "env": [{"name": CONTAINER_VARIABLE, "value": member.name}],
        }
        for member in lacking
    }
    if not there:
        added[POD] = {"spec": {"volumes": [{"name": name, "downwardAPI": _STATUS}]}}
    return added


def is_guest_volume(volume: Volume) -> bool:
    """Return whether a volume has one of the possible names of the file's volume."""
    return (volume.get("name") or "").startswith(CPUS_VOLUME)


def _has_something_there(member: Member) -> bool:
    """Return whether any volume, the file's own or the user's, is already mounted at the file's folder."""
    return any(
        (mount.get("mountPath") or "").rstrip("/") == CPUS_FOLDER
        for mount in member.container.get("volumeMounts") or ()
    )


def _is_ours(volume: Volume) -> bool:
    """Return whether a volume is the one that the webhook adds, ignoring members that the API server fills in."""
    items = (volume.get("downwardAPI") or {}).get("items") or ()
    shown = [(item.get("path"), (item.get("fieldRef") or {}).get("fieldPath")) for item in items]
    return is_guest_volume(volume) and shown == [(CPUS_FILE, _FIELD)]


def _unused_name(volumes: Sequence[Volume], taken: Names[str]) -> str:
    """Return a possible name for the volume that no other volume of the pod, nor one in `taken`, has."""
    named = {volume.get("name") for volume in volumes}
    names = (CPUS_VOLUME if number == 1 else f"{CPUS_VOLUME}-{number}" for number in count(1))
    return next(name for name in names if name not in named and name not in taken)
