"""Names of cgroups that systemd, the kubelet and runtimes derive from other names. Pure."""

from __future__ import annotations

import re
from typing import Final

SLICE: Final = ".slice"
_PODS: Final = "kubepods"
# Container's cgroup: ID (containerd) or crio-ID (CRI-O), for systemd with a prefix and ".scope"; not crio-conmon-ID.
_CONTAINER: Final = re.compile(r"(?:(?:cri-containerd|crio)-)?([0-9a-f]{64})(?:\.scope)?")


# Uid of a pod in a cgroup's name; it has no dashes for a static pod.
_UID: Final = "[0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12}"
# A reader in a cgroup namespace of its own sees paths of other pods begin with /.. and without the pod root.
_IN_POD: Final = re.compile(rf"{_PODS}|[/-]pod(?P<uid>{_UID})")
# A pod's own cgroup by either cgroup driver of the kubelet; in the name of a slice each "-" of the uid is a "_".
_POD: Final = re.compile(r".+-pod(?P<escaped>[^-]+)\.slice|pod(?P<uid>(?!.*\.slice$).+)")


def slice_path(name: str) -> str:
    """Return the cgroup path of a systemd slice: a-b.slice is in a.slice; "-.slice" is the root (systemd.slice(5))."""
    stem = name.removesuffix(SLICE)
    if stem == "-":
        return ""
    parts = stem.split("-")
    return "".join(f"/{'-'.join(parts[:depth])}{SLICE}" for depth in range(1, len(parts) + 1))


def pod_uid(folder: str) -> str | None:
    """Return the pod uid, in the runtime's form, in the name of a pod's cgroup; None for any other cgroup."""
    found = _POD.fullmatch(folder)
    if found is None:
        return None
    return found["uid"] or found["escaped"].replace("_", "-")


def pod_roots(cgroup_root: str = "/") -> tuple[str, str]:
    """Return the cgroup above all pods for a kubelet's `cgroupRoot`: first for the systemd driver, then for cgroupfs.

    For systemd the kubelet joins the parts of a name, with "_" for each "-" in them
    (https://github.com/kubernetes/kubernetes/blob/v1.37.1/pkg/kubelet/cm/cgroup_manager_linux.go).
    """
    parts = [*(part for part in cgroup_root.split("/") if part), _PODS]
    escaped = "-".join(part.replace("-", "_") for part in parts)
    return slice_path(f"{escaped}{SLICE}"), f"/{'/'.join(parts)}"


def container_id(name: str) -> str | None:
    """Return the id in the name of a container's cgroup, None for any other cgroup."""
    found = _CONTAINER.fullmatch(name)
    return found[1] if found else None


def pod_of(path: str) -> str | None:
    """Return the uid of the pod in a cgroup's path; "" if it is below the pod root without a uid, None if outside.

    The first uid in the path is returned, because a container that may create cgroups chooses the names below its own.
    """
    found = [match["uid"] or "" for match in _IN_POD.finditer(path)]
    return next(filter(None, found), "").replace("_", "-") if found else None


def is_within(seen: str, cgroup: str) -> bool:
    """Return whether a cgroup is `cgroup` or below it, given a path from /proc without its leading "/..".

    `cgroup` is a full path. A reader with a cgroup namespace of its own, as containerd and CRI-O give to containers on
    cgroup v2, sees paths without the part that they share with its own cgroup.
    """
    name = cgroup.rpartition("/")[2]
    above, found, _ = f"{seen}/".partition(f"/{name}/")
    return bool(found) and cgroup.endswith(f"{above}/{name}")
