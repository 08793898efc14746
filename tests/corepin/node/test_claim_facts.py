"""`corepin doctor` about ResourceClaims, where the agent is their driver: host folders, slices and classes."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from agent.doctor.claims import ClaimFacts, ClusterFacts
from corepin.node.claim_facts import claim_facts
from tests.corepin.nodes import api_objects

GROUP = "/apis/resource.k8s.io/v1"
SLICES = f"{GROUP}/resourceslices?fieldSelector=spec.nodeName=n1"
NODE = {"metadata": {"name": "n1"}, "status": {"nodeInfo": {"kubeletVersion": "v1.37.1"}}}


def device(value: object, capacity: str = "dra.cpu/cpu") -> dict[str, Any]:
    """Return a device of a slice."""
    return {"name": "d", "capacity": {capacity: {"value": value}}}


def facts(
    tmp_path: Path, objects: dict[str, Any], monkeypatch: pytest.MonkeyPatch, node: str | None = "n1"
) -> ClaimFacts:
    """Return the facts on a machine with these objects in the cluster."""
    args = Namespace(dra="on", kubelet_root=str(tmp_path / "k"), cdi_dir=str(tmp_path / "cdi"), context=None)
    with api_objects(tmp_path, objects) as config:
        monkeypatch.setenv("KUBECONFIG", str(config))
        return claim_facts(args, node)


def test_folders_slices_and_classes_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CPUs are summed by driver; devices of other kinds and amounts that cannot be read count for nothing."""
    for folder in ("k/plugins", "k/plugins_registry", "cdi"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "k/plugins_registry/cpu.corepin.io-reg.sock").touch()
    slices = [
        {"spec": {"driver": "cpu.corepin.io", "devices": [device("14"), device("8"), device("x")]}},
        {"spec": {"driver": "gpu.example.com", "devices": [device("80Gi", "memory"), {"name": "e"}]}},
        {"spec": {"driver": "dra.cpu"}},
    ]
    objects = {SLICES: {"items": slices}, "/api/v1/nodes/n1": NODE, f"{GROUP}/deviceclasses/dra.cpu": {}}
    found = facts(tmp_path, objects, monkeypatch)
    cluster = ClusterFacts(True, {"cpu.corepin.io": 22}, "v1.37.1", frozenset({"dra.cpu"}))
    assert found == ClaimFacts(True, (), "", True, cluster)


def test_cpus_without_amounts_count_for_upstreams_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device without a capacity counts as one CPU if its driver is `dra.cpu` (mode `individual`), else not at all."""
    slices = [
        {"spec": {"driver": "dra.cpu", "devices": [{"name": "cpudev000"}, {"name": "cpudev001"}]}},
        {"spec": {"driver": "gpu.example.com", "devices": [{"name": "gpu-0"}]}},
    ]
    found = facts(tmp_path, {SLICES: {"items": slices}, "/api/v1/nodes/n1": NODE}, monkeypatch)
    assert found.cluster
    assert found.cluster.drivers == {"dra.cpu": 2}


def test_only_the_newest_generation_of_a_pool_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only slices of a pool's newest generation count, as in the scheduler."""

    def published(generation: int, count: str, pool: str = "n1") -> dict[str, Any]:
        named = {"name": pool, "generation": generation, "resourceSliceCount": 1}
        return {"spec": {"driver": "cpu.corepin.io", "pool": named, "devices": [device(count)]}}

    slices = [published(3, "8"), published(4, "6"), published(2, "8"), published(1, "2", "other")]
    found = facts(tmp_path, {SLICES: {"items": slices}, "/api/v1/nodes/n1": NODE}, monkeypatch)
    assert found.cluster
    assert found.cluster.drivers == {"cpu.corepin.io": 8}


def test_what_is_not_there_is_a_fact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing folders, sockets and API groups are reported as facts; without a node name the cluster is not queried."""
    found = facts(tmp_path, {}, monkeypatch)
    folders = tuple(str(tmp_path / "k" / name) for name in ("plugins", "plugins_registry"))
    cluster = ClusterFacts(has_group=False)
    assert found == ClaimFacts(True, folders, str(tmp_path / "cdi"), False, cluster)
    unnamed = facts(tmp_path, {}, monkeypatch, node=None)
    assert (unnamed.cluster, unnamed.silence) == (None, "the name of this node is not known")


def test_answers_that_cannot_be_read_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unreadable slices are reported with the reason; device classes, which the agent may not read, are not."""
    found = facts(tmp_path, {SLICES: b"{"}, monkeypatch)
    assert found.silence.startswith("ResourceSlices: the API server's answer cannot be read")
    objects = {SLICES: {"items": []}, "/api/v1/nodes/n1": NODE, f"{GROUP}/deviceclasses/cpu.corepin.io": b"{"}
    classes = facts(tmp_path, objects, monkeypatch)
    assert classes.cluster == ClusterFacts(kubelet="v1.37.1")
