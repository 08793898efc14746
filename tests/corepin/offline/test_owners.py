"""`corepin plan` with controllers and their pods, as `kubectl get -o yaml` prints them together."""

from __future__ import annotations

from tests.corepin.plans import Planning, pod, virtual, workload
from tests.tables import table


def owned_by(
    kind: str, name: str = "web", group: str = "apps/v1", uid: str = "", controller: str = "true"
) -> str:
    """Return an `ownerReferences` field with one owner."""
    reference = f"apiVersion: {group}, kind: {kind}, name: {name}, uid: '{uid}', controller: {controller}"
    return f"ownerReferences: [{{{reference}}}]"


BY_MACHINE = owned_by("VirtualMachine", "desk", "kubevirt.io/v1")
INSTANCE = "domain: {memory: {guest: 1Gi}, cpu: {cores: 3, dedicatedCpuPlacement: true}}"
GOING = "deletionTimestamp: 2026-01-01T00:00:00Z"


@table(
    "documents, names, owned",
    {
        "deployment": (
            (
                pod("name: web-5d-x", more=owned_by("ReplicaSet", "web-5d")),
                workload("Deployment"),
                workload("ReplicaSet", "replicas: 1", "web-5d", owned_by("Deployment")),
                workload("ReplicaSet", "replicas: 0", "web-4c", owned_by("Deployment")),
            ),
            ["web-0"],
            "Pod web-5d-x, ReplicaSet web-5d, ReplicaSet web-4c",
        ),
        "machine": (
            (
                virtual("VirtualMachine"),
                virtual("VirtualMachineInstance", spec=INSTANCE, metadata=BY_MACHINE),
                pod("name: l", more=owned_by("VirtualMachineInstance", "desk", "kubevirt.io/v1")),
            ),
            ["virt-launcher-desk"],
            "VirtualMachineInstance desk, Pod l",
        ),
        "one uid": (
            (workload("ReplicaSet", metadata="uid: u"), pod("name: a", more=owned_by("ReplicaSet", uid="u"))),
            ["web-0"],
            "Pod a",
        ),
        "owner without uid": (
            (workload("ReplicaSet"), pod("name: a", more=owned_by("ReplicaSet", uid="u"))),
            ["web-0"],
            "Pod a",
        ),
    },
)
def test_what_is_owned_counts_with_its_controller(
    plan: Planning, documents: tuple[str, ...], names: list[str], owned: str
) -> None:
    """A controller and the objects it owns are planned once, as the controller; a note names the owned ones."""
    events, notes = plan.events(*documents)

    assert [event["pod"] for event in events] == names
    assert notes == f"corepin plan: counted with their owners: {owned}\n"


@table(
    "documents, names",
    {
        "owner elsewhere": ((pod("name: a", more=owned_by("ReplicaSet")),), ["a"]),
        "no controller": (
            (workload("ReplicaSet"), pod("name: a", more=owned_by("ReplicaSet", controller="false"))),
            ["web-0", "a"],
        ),
        "another uid": (
            (workload("ReplicaSet", metadata="uid: u"), pod("name: a", more=owned_by("ReplicaSet", uid="v"))),
            ["web-0", "a"],
        ),
        "another namespace": (
            (workload("ReplicaSet"), pod("name: a, namespace: team", more=owned_by("ReplicaSet"))),
            ["web-0", "team/a"],
        ),
        "another group": (
            (workload("ReplicaSet"), pod("name: a", more=owned_by("ReplicaSet", group="example.com/v1"))),
            ["web-0", "a"],
        ),
        "owner that goes": (
            (pod("name: a", more=owned_by("ReplicaSet")), workload("ReplicaSet", metadata=GOING)),
            ["a", "web-0"],
        ),
        "circle": (
            (
                pod("name: a", more=owned_by("Pod", "b", "v1")),
                pod("name: b", more=owned_by("Pod", "a", "v1")),
            ),
            ["a", "b"],
        ),
        "no references": (
            (workload("ReplicaSet"), pod("name: a", more="ownerReferences: [1]")),
            ["web-0", "a"],
        ),
    },
)
def test_a_pod_without_its_controller_is_planned(
    plan: Planning, documents: tuple[str, ...], names: list[str]
) -> None:
    """A pod whose controller is not in the files, or is another object, is planned for itself."""
    events, notes = plan.events(*documents)

    assert [event["pod"] for event in events] == names
    assert notes == ""


def test_instance_of_a_stopped_machine_counts(plan: Planning) -> None:
    """A halted VirtualMachine adds no pod, but its instance that still runs is planned."""
    documents = (
        virtual("VirtualMachine", "runStrategy: Halted"),
        virtual("VirtualMachineInstance", spec=INSTANCE, metadata=BY_MACHINE),
    )
    events, notes = plan.events(*documents)

    assert [event["pod"] for event in events] == ["virt-launcher-desk"]
    assert notes.endswith("VirtualMachine desk: brings no pod: spec.runStrategy is Halted\n")


INSTANCETYPE = "instancetype: {name: large}"
BARE = "template: {spec: {domain: {}}}"


def test_instance_of_a_machine_with_an_instancetype_counts(plan: Planning) -> None:
    """A machine whose CPUs an instancetype states is planned as its instance, if that is among the documents."""
    documents = (
        virtual("VirtualMachine", INSTANCETYPE, spec=BARE),
        virtual("VirtualMachineInstance", spec=INSTANCE, metadata=BY_MACHINE),
        pod("name: l", more=owned_by("VirtualMachineInstance", "desk", "kubevirt.io/v1")),
    )
    events, notes = plan.events(*documents)

    assert [event["pod"] for event in events] == ["virt-launcher-desk"]
    assert "VirtualMachine desk: brings no pod: its VirtualMachineInstance is planned instead\n" in notes
    assert notes.endswith("counted with their owners: Pod l\n")


def test_stopped_machine_needs_no_instance(plan: Planning) -> None:
    """A stopped machine has no pod, so that its instancetype does not matter."""
    documents = (virtual("VirtualMachine", f"{INSTANCETYPE}, runStrategy: Halted", spec=BARE), pod("name: a"))
    events, notes = plan.events(*documents)

    assert [event["pod"] for event in events] == ["a"]
    assert notes.endswith("VirtualMachine desk: brings no pod: spec.runStrategy is Halted\n")
