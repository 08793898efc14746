"""Objects of which every input that a user controls can be made larger, each on its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.pods import CORES, CPU_MANAGER, DEDICATED, LAUNCHER, SMT

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_MEMBERS: Final = 100  # of each kind of containers: more than 200 are refused unread
RESOURCES: Final[tuple[dict[str, Any], ...]] = (
    {"limits": {"cpu": "2", "memory": "1Gi"}},
    {"requests": {CORES: "1"}, "limits": {CORES: "1", "cpu": "1m"}},
    {"limits": {"cpu": "1500m"}},
    {},
)
POD_INPUTS: Final = (
    "containers", "init", "names", "ghosts", "keys", "scopes", "named", "limits", "others", "values", "ranged",
    "mutate", "env", "preset", "mounts", "volumes", "tolerations", "amounts", "devices", "labels", "selectors",
)  # fmt: skip
MACHINE_INPUTS: Final = (
    "features", "policies", "mask", "members", "depth", "disks", "text", "ghosts", "keys", "others", "amounts",
)  # fmt: skip


def pod(size: Mapping[str, int], mark: str, labels: dict[str, str] = LAUNCHER) -> dict[str, Any]:
    """Return a pod, a virtual machine's launcher unless it has other labels; `mark` makes every word of two states differ that an update may change."""
    count = {name: size.get(name, 1) for name in POD_INPUTS}
    members = [_container("c", at, count) for at in range(min(count["containers"], MOST_MEMBERS))]
    first = [_container("i", at, count) for at in range(min(count["init"], MOST_MEMBERS))]
    members[0] |= {
        "env": [{"name": f"E{at}", "value": "v"} for at in range(count["env"])],
        "volumeMounts": [{"name": "v", "mountPath": f"/m{at}"} for at in range(count["mounts"])],
    }
    members[0]["resources"] = {
        "limits": {CORES: "1", "cpu": f"{len(mark) + 1}m"}
        | {f"example.com/d{at}": "1" for at in range(count["devices"])},
        "requests": {CORES: "1"} | {f"example.com/r{at}": "1" for at in range(count["amounts"])},
    }
    members[0]["env"] += [{"name": "CMK_NUM_CORES", "value": f"{at}"} for at in range(count["preset"])]
    return {
        "metadata": {
            "labels": {f"l{at}": "v" for at in range(count["labels"])} | labels,
            "annotations": _annotations(count, mark, [one["name"] for one in members]),
        },
        "spec": {
            "containers": members,
            "initContainers": first,
            "nodeSelector": {f"s{at}": "v" for at in range(count["selectors"])} | DEDICATED,
            "tolerations": [{"key": f"t{at}", "operator": "Exists"} for at in range(count["tolerations"])],
            "volumes": [{"name": f"v{at}", "hostPath": {"path": "/x"}} for at in range(count["volumes"])],
        },
    }


def _container(kind: str, at: int, count: Mapping[str, int]) -> dict[str, Any]:
    name = f"{kind}{at}{'n' * count['names']}" if at < 4 else f"{kind}{at}"
    return {"name": name, "resources": RESOURCES[at % 4]}


def _annotations(count: Mapping[str, int], mark: str, names: list[str]) -> dict[str, str]:
    long = "k" * count["keys"]
    ranged = "; ".join(f"cpu request for container c{at}" for at in range(count["ranged"]))
    told = {f"cpu-manager.corepin.io/container.{mark}{at}": "wrong" for at in range(count["ghosts"])}
    told |= {f"smt-policy.corepin.io/{mark}{at}": "prefer" for at in range(count["scopes"])}
    told |= {f"numa-policy.corepin.io/container.{name}": "packed" for name in names[: count["named"]]}
    told |= {f"sidecar-limits.corepin.io/{mark}{at}": "x" for at in range(count["limits"])}
    told |= {f"example.com/{mark}{at}": "x" for at in range(count["others"])}
    return told | {
        CPU_MANAGER: "exclusive",
        SMT: "isolate",
        f"numa-policy.corepin.io/{mark}{long}": "packed",
        f"numa-policy.corepin.io/container.{mark}{long}": "packed",
        "numa-policy.corepin.io/pod": mark + "w" * count["values"],
        "numa-memory.corepin.io/pod": "bind",
        "device-policy.corepin.io/pod": "require",
        "sidecar-limits.corepin.io/pod": "true",
        "kubernetes.io/limit-ranger": f"LimitRanger plugin set: {ranged}",
        "cmk.intel.com/mutate": mark + "m" * count["mutate"],
    }


def machine(size: Mapping[str, int], mark: str) -> dict[str, Any]:
    """Return a VirtualMachineInstance."""
    count = {name: size.get(name, 1) for name in MACHINE_INPUTS}
    deep: Any = mark
    for _ in range(min(count["depth"], 400)):
        deep = {"d": deep}
    cpu = {
        "cores": 2,
        "dedicatedCpuPlacement": True,
        "features": [{"name": f"{mark}{at}", "policy": "wrong"} for at in range(count["features"])],
        "realtime": {"mask": ",".join(f"{at}" for at in range(count["mask"]))},
        "model": mark + "m" * count["policies"],
    }
    amounts = {f"r{at}": "1" for at in range(count["amounts"])}
    annotations = {f"smt-policy.corepin.io/{mark}{at}": "wrong" for at in range(count["ghosts"])}
    annotations |= {f"example.com/{mark}{at}": "x" for at in range(count["others"])}
    annotations[f"numa-policy.corepin.io/{mark}{'k' * count['keys']}"] = "wrong"
    return {
        "metadata": {"annotations": annotations},
        "spec": {
            "domain": {"cpu": cpu, "resources": {"requests": {"memory": "1Gi"} | amounts}},
            "deep": deep,
            "disks": [{"name": f"{mark}{at}"} for at in range(count["disks"])],
            "text": mark + "t" * count["text"],
        }
        | {f"{mark}m{at}": at for at in range(count["members"])},
    }
