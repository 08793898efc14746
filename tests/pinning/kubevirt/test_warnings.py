"""Warnings about VMIs that KubeVirt admits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pinning.contract import EVEN_PARITY
from pinning.kubevirt.review import Kind, KubeVirtSettings, defaulted, review_vmi
from pinning.kubevirt.view import VMIView
from pinning.kubevirt.warnings import pod_cpus
from tests.pinning.vmi_specs import PASSTHROUGH, SETTINGS, dedicated, fields, review, vmi
from tests.tables import table

if TYPE_CHECKING:
    from pinning.kubevirt.types import VirtSpec


def pool(count: int) -> dict[str, Any]:
    """Return a pool of I/O threads."""
    return {"ioThreadsPolicy": "supplementalPool", "ioThreads": {"supplementalPoolThreadCount": count}}


def isolated(cores: int) -> dict[str, Any]:
    """Return dedicated CPUs with the emulator apart."""
    return dedicated(cores=cores, isolateEmulatorThread=True)


@table(
    "spec, even_parity, total",
    {
        "2": (vmi(dedicated(cores=2)), False, 2),
        "2+isolate": (vmi(isolated(2)), False, 3),
        "2+isolate+parity": (vmi(isolated(2)), True, 4),
        "3+isolate+parity": (vmi(isolated(3)), True, 4),
        "2+pool-2": (vmi(dedicated(cores=2), **pool(2)), False, 4),
        "2+pool-2+isolate": (vmi(isolated(2), **pool(2)), False, 5),
        "3+pool-1+isolate+parity": (vmi(isolated(3), **pool(1)), True, 5),
        "2+pool-1+isolate+parity": (vmi(isolated(2), **pool(1)), True, 5),
        "limit-alone": (vmi(dedicated(), limits={"cpu": "3"}), False, 3),
    },
)
def test_cpus_of_the_pod(spec: VirtSpec, even_parity: bool, total: int) -> None:
    """The launcher pod's CPU count is that of KubeVirt's renderer."""
    assert pod_cpus(VMIView("spec.", defaulted(spec, SETTINGS), SETTINGS), even_parity=even_parity) == total


@table(
    "spec, annotations, remedy",
    {
        "vcpus": (vmi(dedicated(cores=3)), {}, "set an even number of vCPUs"),
        "emulator": (vmi(isolated(2)), {}, f'annotate the VMI with {EVEN_PARITY}: ""'),
        "pool": (vmi(dedicated(cores=2), **pool(1)), {}, "supplementalPoolThreadCount to an even"),
        "pool-and-parity": (vmi(isolated(2), **pool(1)), {EVEN_PARITY: ""}, "to an even number"),
    },
)
def test_odd_total(spec: VirtSpec, annotations: dict[str, str], remedy: str) -> None:
    """An odd number of CPUs in the pod is a warning with the remedy that makes it even."""
    causes, warnings = review_vmi(Kind.VMI, {"annotations": annotations}, spec, SETTINGS)
    assert causes == ()
    assert fields(warnings) == ["cpu"]
    assert remedy in warnings[0].message


@table(
    "options",
    {
        "not-dedicated": {"spec": vmi({"cores": 3})},
        "no-smt-anywhere": {"spec": vmi(dedicated(cores=3)), "threads_per_core": (1, 1)},
        "odd-plus-emulator": {"spec": vmi(isolated(3))},
        "even": {"spec": vmi(dedicated(cores=2))},
        "parity-of-cluster": {"spec": vmi(isolated(2)), "settings": KubeVirtSettings(even_parity=True)},
    },
)
def test_no_warning_of_an_odd_total(options: dict[str, Any]) -> None:
    """An even total, or one that leaves no half core, is no warning."""
    assert review(**options).warnings == ()


@table(
    "threads, shapes, expected",
    {
        "no-smt": (2, (1,), ["cpu.threads"]),
        "smt-somewhere": (2, (1, 2), []),
        "unknown": (2, (), []),
        "one-thread": (1, (1,), []),
    },
)
def test_guest_threads_without_smt(threads: int, shapes: tuple[int, ...], expected: list[str]) -> None:
    """Guest threads are a warning where no node of the cluster has SMT."""
    spec = vmi(dedicated(threads=threads, cores=2))
    assert fields(review(spec, threads_per_core=shapes).warnings) == expected


def test_odd_total_where_smt_is_known() -> None:
    """An odd total is a warning where nodes are known to have SMT."""
    assert fields(review(vmi(dedicated(cores=3)), threads_per_core=(1, 2)).warnings) == ["cpu"]


def test_guest_threads_without_pinning() -> None:
    """Guest threads of a VMI without dedicated CPUs are no warning."""
    assert review(vmi({"threads": 2}), threads_per_core=(1,)).warnings == ()


@table(
    "policy, count, expected",
    {
        "no-policy": (None, 2, ["ioThreads.supplementalPoolThreadCount"]),
        "other-policy": ("auto", 2, ["ioThreads.supplementalPoolThreadCount"]),
        "policy": ("supplementalPool", 2, []),
        "no-threads": (None, 0, []),
    },
)
def test_pool_without_policy(policy: str | None, count: int, expected: list[str]) -> None:
    """A count of I/O threads without its policy costs CPUs without a use: it is a warning."""
    spec = vmi(ioThreadsPolicy=policy, ioThreads={"supplementalPoolThreadCount": count})
    assert fields(review(spec).warnings) == expected


@table(
    "cpu, amounts, expected",
    {
        "limit": ({"cores": 4}, {"limits": {"cpu": "4"}}, ["resources"]),
        "request": ({"cores": 4}, {"requests": {"cpu": 4}}, ["resources"]),
        "sockets": ({"sockets": 4}, {"limits": {"cpu": 4}}, ["resources"]),
        "topology-alone": ({"cores": 4}, {}, []),
        "request-0": ({"cores": 4}, {"requests": {"cpu": "0"}}, []),
        "amount-alone": ({}, {"limits": {"cpu": "4"}}, []),
        "defaulted-shape": ({"sockets": 4, "cores": 1, "threads": 1}, {"limits": {"cpu": "4"}}, []),
        "own-shape": ({"sockets": 1, "cores": 4, "threads": 1}, {"limits": {"cpu": 4}}, ["resources"]),
    },
)
def test_said_twice(cpu: dict[str, Any], amounts: dict[str, Any], expected: list[str]) -> None:
    """The same number as topology and as amount is a warning, unless KubeVirt's defaulting wrote the topology."""
    assert fields(review(vmi(dedicated(**cpu), **amounts)).warnings) == expected


def test_amount_beside_topology_of_an_unpinned_vmi() -> None:
    """Without dedicated placement an amount means something else than the topology."""
    assert review(vmi({"cores": 4}, requests={"cpu": "4"})).warnings == ()


@table(
    "mask, said",
    {
        "negation-alone": ("^3", ["mask ^3 selects no vCPU"]),
        "stranger": ("0,7", ["mask names 7, but the vCPUs are 0 to 3"]),
        "only-strangers": ("9", ["mask 9 selects no vCPU", "mask names 9"]),
        "leading-zero": ("03", ["mask 03 selects no vCPU", "mask names 03"]),
        "all-by-range": ("0-3", []),
        "absent": (None, []),
        "refused-instead": ("x", []),
    },
)
def test_mask_that_selects_no_vcpu(mask: str | None, said: list[str]) -> None:
    """A mask that selects no vCPU, or names one that does not exist, is a warning."""
    memory = {"guest": "1Gi", "hugepages": {"pageSize": "2Mi"}}
    spec = vmi(dedicated(cores=4, numa=PASSTHROUGH, realtime={"mask": mask}), memory=memory)
    warnings = review(spec).warnings
    assert [cause.field for cause in warnings] == ["spec.domain.cpu.realtime.mask"] * len(said)
    assert all(text in cause.message for text, cause in zip(said, warnings, strict=True))
