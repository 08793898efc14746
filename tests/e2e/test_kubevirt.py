"""Admission of KubeVirt's objects, in every served version of their API."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest

from tests.environments.cluster.registered import Cluster

CONTROLLER = "system:serviceaccount:kubevirt:kubevirt-controller"
NOT_EQUAL = "domain.cpu.dedicatedCpuPlacement"
ROOTS = {
    ("kubevirt.io/v1", "VirtualMachineInstance"): "spec.",
    ("kubevirt.io/v1alpha3", "VirtualMachineInstance"): "spec.",
    ("kubevirt.io/v1", "VirtualMachine"): "spec.template.spec.",
    ("kubevirt.io/v1alpha3", "VirtualMachine"): "spec.template.spec.",
    ("kubevirt.io/v1", "VirtualMachineInstanceReplicaSet"): "spec.template.spec.",
    ("kubevirt.io/v1alpha3", "VirtualMachineInstanceReplicaSet"): "spec.template.spec.",
    ("pool.kubevirt.io/v1alpha1", "VirtualMachinePool"): "spec.virtualMachineTemplate.spec.template.spec.",
    ("pool.kubevirt.io/v1beta1", "VirtualMachinePool"): "spec.virtualMachineTemplate.spec.template.spec.",
}
KINDS = pytest.mark.parametrize(("api_version", "kind"), ROOTS, ids=lambda word: word.replace("/", "-"))


def machine(
    api_version: str, kind: str, limit: int = 2, annotations: dict[str, str] | None = None
) -> dict[str, Any]:
    """Return an object whose virtual machine requests 2 dedicated CPUs; it is wrong with another limit."""
    resources = {"requests": {"cpu": 2, "memory": "1Gi"}, "limits": {"cpu": limit, "memory": "1Gi"}}
    spec: dict[str, Any] = {
        "domain": {"cpu": {"dedicatedCpuPlacement": True}, "resources": resources, "devices": {}}
    }
    body: dict[str, Any] = {"metadata": {"annotations": annotations or {}}, "spec": spec}
    *outer, _ = ROOTS[api_version, kind].removesuffix("spec.").split(".")
    for key in reversed(outer[1:] if outer else []):
        body = {"spec": {key: body}} if key != "spec" else body
    return {
        "apiVersion": api_version,
        "kind": kind,
        **body,
        "metadata": body.get("metadata", {}) | {"name": "it"},
    }


@KINDS
def test_wrong_object_is_refused_with_its_field(cluster: Cluster, api_version: str, kind: str) -> None:
    """A wrong virtual machine in any kind and version is refused with its field, and a right one is stored."""
    wrong = cluster.create(machine(api_version, kind, limit=3))
    assert wrong.fields == [f"{ROOTS[api_version, kind]}{NOT_EQUAL}"], wrong.stderr
    assert f'The {kind} "it" is invalid' in wrong.stderr
    assert "corepin" in wrong.stderr
    right = cluster.create(machine(api_version, kind))
    assert not right.is_refused, right.stderr
    assert right.warnings == []


@KINDS
def test_our_annotations_are_checked_where_kubevirt_copies_them_from(
    cluster: Cluster, api_version: str, kind: str
) -> None:
    """An unknown policy on the virtual machine's own metadata is refused with its path."""
    annotations = {"smt-policy.corepin.io/pod": "maybe"}
    outcome = cluster.create(machine(api_version, kind, annotations=annotations))
    root = ROOTS[api_version, kind].removesuffix("spec.")
    assert outcome.fields == [f"{root}metadata.annotations[smt-policy.corepin.io/pod]"], outcome.stderr


def as_kubevirt(cluster: Cluster, patch: object) -> tuple[bool, bool]:
    """Return whether a patch of the machine is accepted from a normal user, and from KubeVirt's controller."""
    command = ("patch", "vmi", "it", "--type=merge", "--patch", json.dumps(patch))
    normal = cluster.run(*command)
    controller = cluster.run(*command, f"--as={CONTROLLER}", "--as-group=system:masters")
    return not normal.is_refused, not controller.is_refused


def test_only_kubevirt_changes_a_running_machine(cluster: Cluster) -> None:
    """Only KubeVirt's controller may change the spec of a running machine; a normal user is refused."""
    cluster.created(machine("kubevirt.io/v1", "VirtualMachineInstance"))
    patch = {"spec": {"domain": {"cpu": {"sockets": 2}}}}
    assert as_kubevirt(cluster, patch) == (False, True)
    again = cluster.run(
        "patch", "vmi", "it", "--type=merge", "--patch", '{"spec":{"domain":{"cpu":{"sockets":3}}}}'
    )
    assert again.fields == ["spec.domain.cpu.sockets"], again.stderr
    assert "corepin" in again.stderr
    assert cluster.stored("vmi", "it")["spec"]["domain"]["cpu"]["sockets"] == 2


def test_metadata_and_status_of_a_running_machine_call_no_webhook(cluster: Cluster) -> None:
    """Changes of a running machine's labels, other annotations, status and finalizers cause no review."""
    cluster.created(machine("kubevirt.io/v1", "VirtualMachineInstance"))
    before = cluster.webhook.reviews()
    status = json.dumps({"status": {"phase": "Running"}, "metadata": {"finalizers": ["example.org/wait"]}})
    for change in (
        ("label", "vmi/it", "a=b"),
        ("annotate", "vmi/it", "a=b"),
        ("patch", "vmi", "it", "--type=merge", "--patch", status),
        ("delete", "vmi/it", "--wait=false"),
        ("patch", "vmi", "it", "--type=merge", "--patch", '{"metadata":{"finalizers":null}}'),
    ):
        outcome = cluster.run(*change)
        assert not outcome.is_refused, outcome.stderr
    assert cluster.webhook.reviews() == before
    assert not cluster.exists("vmi", "it")


def test_annotation_of_a_running_machine_is_checked(cluster: Cluster) -> None:
    """A policy that is edited on a running machine must be a known one."""
    cluster.created(machine("kubevirt.io/v1", "VirtualMachineInstance"))
    outcome = cluster.run("annotate", "vmi/it", "smt-policy.corepin.io/pod=maybe")
    assert outcome.fields == ["metadata.annotations[smt-policy.corepin.io/pod]"], outcome.stderr
    assert not cluster.run("annotate", "vmi/it", "smt-policy.corepin.io/pod=require").is_refused


def test_virtual_machine_is_judged_by_what_changes(cluster: Cluster) -> None:
    """An update that makes a VirtualMachine wrong is refused; a status update causes no review."""
    right = machine("kubevirt.io/v1", "VirtualMachine")
    cluster.created(right)
    wrong = deepcopy(right)
    wrong["spec"]["template"]["spec"]["domain"]["resources"]["limits"]["cpu"] = 3
    outcome = cluster.run("apply", "--server-side", "--force-conflicts", "-f", "-", document=wrong)
    assert outcome.fields == [f"spec.template.spec.{NOT_EQUAL}"], outcome.stderr
    before = cluster.webhook.reviews()
    status = (
        "patch",
        "vm",
        "it",
        "--subresource=status",
        "--type=merge",
        "--patch",
        '{"status":{"ready":true}}',
    )
    assert not cluster.run(*status).is_refused
    assert cluster.webhook.reviews() == before
    halted = cluster.run("patch", "vm", "it", "--type=merge", "--patch", '{"spec":{"runStrategy":"Halted"}}')
    assert not halted.is_refused, halted.stderr


def test_dry_run_and_generated_names(cluster: Cluster) -> None:
    """A machine is validated in a dry run, and with generateName as a replica set's controller creates it."""
    wrong = machine("kubevirt.io/v1", "VirtualMachineInstance", limit=3)
    assert cluster.create(wrong, "--dry-run=server").fields == [f"spec.{NOT_EQUAL}"]
    wrong["metadata"] = {"generateName": "made-"}
    outcome = cluster.create(wrong, f"--as={CONTROLLER}", "--as-group=system:masters")
    assert outcome.fields == [f"spec.{NOT_EQUAL}"]
