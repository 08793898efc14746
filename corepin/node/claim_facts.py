"""Facts about ResourceClaims for `corepin doctor`: host folders, and drivers and classes in the API server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from corepin.errors import CommandFailed
from corepin.node.kube_api import NotFound, get
from pinning.contract import DRA_CPU_CLASS, DRA_DRIVER
from pinning.dra.groups import cpus_of_device
from pinning.errors import BadQuantity
from pinning.pods.quantity import rounded_up

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from agent.doctor.claims import ClaimFacts, ClusterFacts

_GROUP = "/apis/resource.k8s.io/v1"


def claim_facts(args: argparse.Namespace, node: str | None) -> ClaimFacts:
    """Return the facts about claims on this machine; with those of the cluster if the node's name is known."""
    from agent.doctor.claims import NOT_WANTED, ClaimFacts

    if args.dra != "on":
        return NOT_WANTED
    root, cdi = Path(args.kubelet_root), Path(args.cdi_dir)
    folders = root / "plugins", root / "plugins_registry"
    facts = ClaimFacts(
        is_wanted=True,
        absent_folders=tuple(str(folder) for folder in folders if not folder.is_dir()),
        cdi_folder="" if os.access(cdi, os.W_OK) else str(cdi),
        is_listening=(folders[1] / f"{DRA_DRIVER}-reg.sock").exists(),
    )
    if node is None:
        return facts._replace(silence="the name of this node is not known")
    try:
        return facts._replace(cluster=_cluster(node, args.context))
    except CommandFailed as failure:
        return facts._replace(silence=str(failure))


def _cluster(node: str, context: str | None) -> ClusterFacts:
    from agent.doctor.claims import ClusterFacts

    selector = f"spec.nodeName={node}"
    try:
        slices = get(f"{_GROUP}/resourceslices", "ResourceSlices", context, fieldSelector=selector)["items"]
    except NotFound:
        return ClusterFacts(has_group=False)
    info = get(f"/api/v1/nodes/{quote(node, safe='')}", f"node {node}", context)["status"]
    version = (info.get("nodeInfo") or {}).get("kubeletVersion") or ""
    return ClusterFacts(drivers=_drivers(slices), kubelet=version, classes=_classes(context))


def _drivers(slices: list[Mapping[str, Any]]) -> dict[str, int]:
    """Return the number of CPUs that each CPU driver publishes in the newest generation of its pools."""
    found: dict[str, int] = {}
    newest: dict[tuple[str, str], int] = {}
    for spec in (item["spec"] for item in slices):
        key, generation = _pool(spec)
        newest[key] = max(generation, newest.get(key, generation))
    for spec in (item["spec"] for item in slices):
        key, generation = _pool(spec)
        if generation < newest[key]:
            continue
        for device in spec.get("devices") or ():
            amount = cpus_of_device(spec["driver"], device)
            if amount is not None:
                found[spec["driver"]] = found.get(spec["driver"], 0) + _count(amount)
    return found


def _pool(spec: Mapping[str, Any]) -> tuple[tuple[str, str], int]:
    """Return the pool of a slice, as driver and pool name, and the pool's generation."""
    pool = spec.get("pool") or {}
    return (spec["driver"], pool.get("name") or ""), pool.get("generation") or 0


def _count(value: object) -> int:
    try:
        return rounded_up(str(value))
    except BadQuantity:
        return 0


def _classes(context: str | None) -> frozenset[str] | None:
    """Return the existing DeviceClasses of CPUs; None without the right to get them, as in an agent's pod."""
    found = set()
    for name in (DRA_DRIVER, DRA_CPU_CLASS):
        try:
            get(f"{_GROUP}/deviceclasses/{name}", f"DeviceClass {name}", context)
        except NotFound:
            continue
        except CommandFailed:
            return None
        found.add(name)
    return frozenset(found)
