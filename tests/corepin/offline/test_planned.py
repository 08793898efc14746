"""`corepin plan` with workloads and virtual machines: number, names and CPU claims of their pods."""

from __future__ import annotations

from pathlib import Path

import pytest

from corepin.cli import main
from corepin.offline.replicas import MOST_REPLICAS
from pinning.machine.cpuset import CPUSet
from tests.corepin.documents import CONFIG_MAP, POD
from tests.corepin.plans import DEDICATED, Planning, machine, pod, virtual, workload
from tests.tables import table
from webhook.rules.workloads import TEMPLATES


def pods(plan: Planning, *documents: str) -> list[object]:
    """Return the pods of the events, and check that standard error is empty."""
    events, notes = plan.events(*documents)
    assert notes == ""
    return [event["pod"] for event in events]


@pytest.mark.parametrize("kind", [*(kind for _, kind in TEMPLATES), "ReplicationController"])
def test_every_workload_brings_a_pod(plan: Planning, kind: str) -> None:
    """A workload without a number of replicas adds one pod, with the claims of its template."""
    name = "web" if kind == "DaemonSet" else "web-0"
    events, notes = plan.events(workload(kind))

    assert (events, notes) == ([{"pod": name, "cpus": {name: "1,9"}}], "")


@pytest.mark.parametrize(
    ("kind", "more", "number"),
    [
        ("Deployment", "replicas: 3", 3),
        ("StatefulSet", "replicas: null", 1),
        ("ReplicaSet", "replicas: 2", 2),
        ("ReplicationController", "replicas: 2", 2),
        ("Job", "parallelism: 3", 3),
        ("Job", "parallelism: 3, completions: 2", 2),
        ("Job", "completions: 1000000000", 1),
        ("Job", "suspend: false", 1),
        ("DaemonSet", "replicas: 9", 1),
    ],
)
def test_numbers(plan: Planning, kind: str, more: str, number: int) -> None:
    """A document adds as many pods as run at the same time on one node."""
    assert len(pods(plan, workload(kind, more))) == number


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (workload("Deployment", "replicas: 0"), "Deployment web: brings no pod: spec.replicas is 0"),
        (workload("Job", "parallelism: 0"), "Job web: brings no pod: spec.parallelism is 0"),
        (workload("Job", "suspend: true"), "Job web: brings no pod: spec.suspend is true"),
        (workload("CronJob", "suspend: true"), "CronJob web: brings no pod: spec.suspend is true"),
        (virtual("VirtualMachine", "running: false"), "brings no pod: spec.running is false"),
        (virtual("VirtualMachine", "runStrategy: Halted"), "brings no pod: spec.runStrategy is Halted"),
        (
            virtual(
                "VirtualMachinePool",
                spec=f"virtualMachineTemplate: {{spec: {{running: false, {DEDICATED}}}}}",
            ),
            "brings no pod: spec.virtualMachineTemplate.spec.running is false",
        ),
    ],
    ids=lambda value: value[-30:].strip(),
)
@pytest.mark.parametrize("output", ["text", "json"])
def test_controllers_without_pods_are_reported(
    plan: Planning, tmp_path: Path, document: str, why: str, output: str
) -> None:
    """A controller without pods is noted with the field that is the reason, and the empty machine is drawn."""
    out, error = plan.run(document, flags=("-o", output))
    assert error.startswith(f"corepin plan: {tmp_path}/documents.yaml:1: ")
    assert error.endswith(f"{why}\n")
    assert out == "" if output == "json" else "16 CPUs  0-15" in out


def test_update_and_end_of_a_workload(plan: Planning) -> None:
    """Fewer replicas remove pods, the others keep their CPUs, and a deleted workload removes all of its pods."""
    events, _ = plan.events(
        workload("Deployment", "replicas: 3"),
        workload("Deployment", "replicas: 1"),
        workload("Deployment", "replicas: 2", metadata="deletionTimestamp: 2026-01-01T00:00:00Z"),
    )

    assert [event["pod"] for event in events] == [
        "web-0",
        "web-1",
        "web-2",
        "web-1",
        "web-2",
        "web-0",
        "web-0",
    ]
    assert events[2]["cpus"] == {"web-0": "1,9", "web-1": "2,10", "web-2": "3,11"}
    assert events[5]["cpus"] == {"web-0": "1,9"}
    assert events[6]["cpus"] == {}


def test_workloads_of_one_name_have_different_pods(plan: Planning) -> None:
    """Two workloads of one name have pods of different names, and an update finds its own."""
    names = pods(
        plan,
        workload("Deployment"),
        workload("StatefulSet"),
        pod("name: web-0"),
        workload("StatefulSet"),
        workload("Deployment", metadata="namespace: team"),
        workload("Job", name="", metadata="generateName: run-"),
    )

    assert names == ["web-0", "web-0-statefulset", "web-0-pod", "web-0-statefulset", "team/web-0", "run-5-0"]


PARITY = 'annotations: {alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity: ""}'
INSTANCE = DEDICATED.removeprefix("template: {spec: {").removesuffix("}}")


@table(
    "document, claims",
    {
        "machine": (virtual("VirtualMachine"), {"virt-launcher-desk": 3}),
        "running": (virtual("VirtualMachine", "running: true"), {"virt-launcher-desk": 3}),
        "instance": (virtual("VirtualMachineInstance", spec=INSTANCE), {"virt-launcher-desk": 3}),
        "emulator and parity": (
            virtual(
                "VirtualMachineInstance",
                spec=INSTANCE.replace("cores: 3", "cores: 2, isolateEmulatorThread: true"),
                metadata=PARITY,
            ),
            {"virt-launcher-desk": 4},
        ),
        "replica set": (
            virtual("VirtualMachineInstanceReplicaSet", "replicas: 2"),
            {"virt-launcher-desk-0": 3, "virt-launcher-desk-1": 3},
        ),
        "pool": (
            virtual(
                "VirtualMachinePool", "replicas: 1", f"virtualMachineTemplate: {{spec: {{{DEDICATED}}}}}"
            ),
            {"virt-launcher-desk-0": 3},
        ),
        "plain": (
            virtual("VirtualMachine", spec=DEDICATED.replace("dedicatedCpuPlacement: true", "threads: 2")),
            {},
        ),
        "by annotation": (
            virtual(
                "VirtualMachineInstance",
                spec="domain: {memory: {guest: 1Gi}, resources: {limits: {cpu: 2}}}",
                metadata="annotations: {qos.gocrane.io/cpu-manager: exclusive}",
            ),
            {"virt-launcher-desk": 2},
        ),
    },
)
def test_machines_claim_what_their_launchers_will(
    plan: Planning, document: str, claims: dict[str, int]
) -> None:
    """A VM with dedicated CPUs, or with annotations for its launcher, claims the CPUs that KubeVirt would request."""
    events, notes = plan.events(document)
    last = events[-1]["cpus"]

    assert notes == ""
    assert isinstance(last, dict)
    assert {name: len(CPUSet.parse(cpus)) for name, cpus in last.items()} == claims


def test_other_kinds_are_passed_over_and_named(plan: Planning) -> None:
    """Other kinds, as in a rendered chart, are skipped with a note that has their name."""
    others = [CONFIG_MAP.replace("name: c", f"name: c{number}") for number in range(4)]
    _, notes = plan.events(CONFIG_MAP.replace("ConfigMap", "Pdo"), POD, *others)

    assert notes == (
        "corepin plan: skipped because they define no pods: Pdo c (v1), ConfigMap c0 (v1), ConfigMap c1 (v1) and 2 more\n"
    )


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            workload("Deployment", "replicas: 1000000000"),
            f"Deployment web: spec.replicas is 1000000000, and a plan of one node takes at most {MOST_REPLICAS}: write",
        ),
        (workload("Deployment", "replicas: 1" + "0" * 30), "spec.replicas is 1e+30: write a whole number"),
        (workload("Deployment", "replicas: -1"), "spec.replicas is -1: write a whole number of 0 or more"),
        (workload("Deployment", "replicas: '2'"), "spec.replicas is '2': write a whole number of 0 or more"),
        (workload("Deployment", "replicas: true"), "spec.replicas is true: write a whole number"),
        (
            workload("Deployment", spec=""),
            "Deployment web: spec.template is missing: add the template of the pods",
        ),
        (
            workload("CronJob", spec="template: 3"),
            "spec.jobTemplate.spec.template: expected a mapping, found a number",
        ),
        (workload("Deployment", name="''"), "the Deployment has no name: give metadata.name"),
        (
            "apiVersion: v1\nkind: List\nitems: []\n",
            "every list is empty: give pods, workloads or virtual machines",
        ),
        (virtual("VirtualMachine", spec=""), "VirtualMachine desk: spec.template: template is not set"),
        (virtual("VirtualMachine", spec="template: 3"), "spec.template: expected a mapping, found a number"),
        (
            virtual("VirtualMachine", "instancetype: {name: large}", "template: {spec: {domain: {}}}"),
            "its CPUs are stated in its instancetype, which is not read: give the VirtualMachineInstance",
        ),
        (
            virtual("VirtualMachine", spec=DEDICATED.replace("memory: {guest: 1Gi}, ", "")),
            "VirtualMachine desk: spec.template.spec.domain.resources.limits.memory: no memory size is given",
        ),
    ],
    ids=lambda value: value[-30:].strip(),
)
def test_what_cannot_be_planned_is_one_line(plan: Planning, document: str, message: str) -> None:
    """An impossible document is an error in one line with object, field, value and remedy; nothing is drawn."""
    assert message in plan.failure(document)


@pytest.mark.parametrize("path", sorted(Path("examples").glob("*/*.yaml")), ids=str)
def test_examples_are_planned_or_refused_in_one_line(
    plan: Planning, tmp_path: Path, capsys: pytest.CaptureFixture[str], path: Path
) -> None:
    """`plan` accepts every object that `validate` accepts, unless the file does not have its CPUs."""
    code = main(["plan", "-f", str(path), "--topology", machine(tmp_path)])
    captured = capsys.readouterr()

    assert code == 0 or (code == 2 and captured.err.count("\n") == 1)
    assert (
        code == 0
        or path.parent.name == "config"
        or path.stem.startswith(("refused", "mutations", "vm-instancetype"))
    )
