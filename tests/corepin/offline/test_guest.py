"""`corepin plan` with virtual machines: which CPU each vCPU, the emulator and each I/O thread runs on, or why none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from corepin.cli import main
from tests.corepin.documents import written
from tests.corepin.plans import machine, pod, virtual
from tests.tables import table

POOL = "ioThreadsPolicy: supplementalPool, ioThreads: {supplementalPoolThreadCount: %d}"
PARITY = 'annotations: {alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity: ""}'
DISKS = (
    "devices: {disks: [{name: a, dedicatedIOThread: true}, {name: b, dedicatedIOThread: false}, {name: c}]}"
)


def vmi(cpu: str = "cores: 3", more: str = "", metadata: str = "", *, dedicated: bool = True) -> str:
    """Return a VirtualMachineInstance; `more` goes into its domain."""
    domain = ", ".join(filter(None, ("memory: {guest: 1Gi}", more)))
    cpu = f"{cpu}, dedicatedCpuPlacement: true" if dedicated else cpu
    return virtual("VirtualMachineInstance", spec=f"domain: {{{domain}, cpu: {{{cpu}}}}}", metadata=metadata)


def machines(
    capsys: pytest.CaptureFixture[str], directory: Path, *documents: str, flags: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the placement of each virtual machine's threads after the last document."""
    source = written(directory, *documents)
    assert main(["plan", "-f", source, "--topology", machine(directory), "-o", "json", *flags]) == 0
    *_, last = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    return {name.split("/")[1]: held["vm"] for name, held in last["assignments"].items() if "vm" in held}


def text(
    capsys: pytest.CaptureFixture[str], directory: Path, *documents: str, flags: tuple[str, ...] = ()
) -> str:
    """Return the text without its line ends."""
    assert main(["plan", "-f", written(directory, *documents), "--topology", machine(directory), *flags]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_each_thread_has_a_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON lists the CPUs in vCPU order; the text names each vCPU with its CPU."""
    document = vmi("cores: 3, isolateEmulatorThread: true")

    assert machines(capsys, tmp_path, document) == {
        "virt-launcher-desk": {
            "vcpus": ["1", "9", "2"],
            "emulator": "10",
            "iothreads": [],
            "oneToOne": True,
            "reason": "",
            "note": "",
        }
    }
    assert (
        "threads of virtual machines: default/virt-launcher-desk/compute: "
        "vCPU 0 on CPU 1, 1 on CPU 9, 2 on CPU 2; emulator on CPU 10"
    ) in text(capsys, tmp_path, document)


def test_siblings_of_the_guest_are_siblings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Guest cores with threads get host cores; the pool of I/O threads and the emulator get the remaining CPUs."""
    document = vmi("cores: 2, threads: 2, isolateEmulatorThread: true", POOL % 2, PARITY)

    (vm,) = machines(capsys, tmp_path, document).values()
    assert vm["vcpus"] == ["4", "12", "5", "13"]
    assert (vm["iothreads"], vm["emulator"]) == (["6", "14"], "7,15")
    assert "; emulator on CPUs 7,15; I/O thread 1 on CPU 6, 2 on CPU 14" in text(capsys, tmp_path, document)


def test_every_kind_of_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Machines inside of templates are read with their disks; pods have no vCPUs."""
    template = (
        "template: {spec: {domain: {memory: {guest: 1Gi}, cpu: {cores: 2, dedicatedCpuPlacement: true}, %s}}}"
    )
    one = template % DISKS
    found = machines(
        capsys,
        tmp_path,
        virtual("VirtualMachine", spec=one),
        virtual("VirtualMachineInstanceReplicaSet", "replicas: 2", spec=one),
        virtual("VirtualMachinePool", spec=f"virtualMachineTemplate: {{spec: {{{one}}}}}"),
        pod("name: web", policy="exclusive"),
    )

    assert len(found) == 4
    assert all(len(vm["vcpus"]) == len(vm["iothreads"]) == 2 for vm in found.values())


@table(
    "domain, cpu, count",
    {
        "none": ("", "cores: 4", 0),
        "dedicated-disk": (DISKS, "cores: 4", 2),
        "shared": (f"ioThreadsPolicy: shared, {DISKS}", "cores: 4", 2),
        "auto": (f"ioThreadsPolicy: auto, {DISKS}", "cores: 4", 2),
        "auto-limit": (f"ioThreadsPolicy: auto, {DISKS}, resources: {{limits: {{cpu: 4}}}}", "cores: 4", 3),
        "auto-isolated": (f"ioThreadsPolicy: auto, {DISKS}", "cores: 4, isolateEmulatorThread: true", 2),
        "no-disks": ("ioThreadsPolicy: shared", "cores: 4", 0),
        "not-disks": ("ioThreadsPolicy: shared, devices: {disks: 3}", "cores: 4", 0),
        "one-shared": ("ioThreadsPolicy: shared, devices: {disks: [{name: a}, {name: b}]}", "cores: 4", 1),
        "pool-without-policy": ("ioThreads: {supplementalPoolThreadCount: 2}", "cores: 4", 0),
        "pool": (POOL % 3, "cores: 4", 3),
    },
)
def test_iothreads_are_counted_as_kubevirt_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], domain: str, cpu: str, count: int
) -> None:
    """The number of I/O threads follows from policy, disks and CPU request, as in KubeVirt."""
    (vm,) = machines(capsys, tmp_path, vmi(cpu, domain)).values()

    assert len(vm["iothreads"]) == count


@table(
    "document, policy, reason",
    {
        "parity-of-an-odd-pool": (
            vmi("cores: 3, isolateEmulatorThread: true", POOL % 1, PARITY),
            "prefer",
            "wanted 2 CPUs for the emulator, found 1 besides 3 vCPUs",
        ),
        "threads-under-isolate": (
            vmi("cores: 1, threads: 2"),
            "isolate",
            "the guest has 2 threads per core, and smt-policy isolate gives every vCPU a core of its own: set threads "
            "to 1, or choose smt-policy require",
        ),
    },
)
def test_no_machine_is_half_placed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], document: str, policy: str, reason: str
) -> None:
    """If a thread gets no CPU, the plan has the reason instead of a placement."""
    (tmp_path / "node.yaml").write_text(f"smtPolicy: {policy}\n")
    flags = ("--config", str(tmp_path / "node.yaml"))

    (vm,) = machines(capsys, tmp_path, document, flags=flags).values()
    assert (vm["oneToOne"], vm["reason"], vm["vcpus"], vm["emulator"]) == (False, reason, [], "")
    assert f"/compute: its vCPUs cannot be pinned one to one: {reason}" in text(
        capsys, tmp_path, document, flags=flags
    )


def test_strict_guests_do_not_cross_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A guest that sees the host's NUMA nodes has each of its cores on one of them."""
    cpu = "cores: 3, threads: 2, numa: {guestMappingPassthrough: {}}"
    document = vmi(cpu).replace("guest: 1Gi", "guest: 1Gi, hugepages: {pageSize: 2Mi}")
    cores = [[0], [1, 2, 3], [4, 5, 6]]  # the first is reserved
    rows = [
        {"cpu": cpu, "core": core, "node": core // 2, "socket": core // 2, "online": True}
        for core, cpus in enumerate(cores)
        for cpu in cpus
    ]
    (tmp_path / "threes.json").write_text(json.dumps({"cpus": rows}))
    command = [
        "plan",
        "-f",
        written(tmp_path, document),
        "--topology",
        str(tmp_path / "threes.json"),
        "-o",
        "json",
    ]
    assert main(command) == 0
    (held,) = json.loads(capsys.readouterr().out)["assignments"].values()
    assert "each on one NUMA node, found 2: do without guestMappingPassthrough" in held["vm"]["reason"]


def test_what_require_cannot_have_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A `require` that cannot be met is a warning in the text, and a note of the machine in JSON."""
    document = vmi("cores: 2", metadata="annotations: {smt-policy.corepin.io/pod: require}")

    (vm,) = machines(capsys, tmp_path, document).values()
    warning = "the emulator may run on CPUs 1,9, on cores of vCPUs: set isolateEmulatorThread"
    assert vm["note"] == warning
    assert f"warnings: default/virt-launcher-desk/compute: {warning}" in text(capsys, tmp_path, document)


def test_machines_without_dedicated_cpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Virtual machines without dedicated CPUs hold none, so the plan does not list their threads."""
    assert machines(capsys, tmp_path, vmi(dedicated=False)) == {}
    assert "threads of virtual machines" not in text(capsys, tmp_path, vmi(dedicated=False))
