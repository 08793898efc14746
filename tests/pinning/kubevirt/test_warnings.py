"""Warnings about VMIs that KubeVirt admits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pinning.contract import EVEN_PARITY
from pinning.kubevirt.review import Kind, KubeVirtSettings, defaulted, review_vmi
from pinning.kubevirt.view import VMIView
from pinning.kubevirt.warnings import pod_cpus
from tests.pinning.vmi_specs import PASSTHROUGH, SETTINGS, dedicated, fields, review, vmi

if TYPE_CHECKING:
    from pinning.kubevirt.types import VirtSpec


def pool(count: int) -> dict[str, Any]:
    """Return a pool of I/O threads."""
    return {"ioThreadsPolicy": "supplementalPool", "ioThreads": {"supplementalPoolThreadCount": count}}


def isolated(cores: int) -> dict[str, Any]:
    """Return dedicated CPUs with the emulator apart."""
    return dedicated(cores=cores, isolateEmulatorThread=True)


@pytest.mark.parametrize(
    ("spec", "even_parity", "total"),
    [
        pytest.param(vmi(dedicated(cores=2)), False, 2, id="2"),
        pytest.param(vmi(isolated(2)), False, 3, id="2+isolate"),
        pytest.param(vmi(isolated(2)), True, 4, id="2+isolate+parity"),
        pytest.param(vmi(isolated(3)), True, 4, id="3+isolate+parity"),
        pytest.param(vmi(dedicated(cores=2), **pool(2)), False, 4, id="2+pool-2"),
        pytest.param(vmi(isolated(2), **pool(2)), False, 5, id="2+pool-2+isolate"),
        pytest.param(vmi(isolated(3), **pool(1)), True, 5, id="3+pool-1+isolate+parity"),
        pytest.param(vmi(isolated(2), **pool(1)), True, 5, id="2+pool-1+isolate+parity"),
        pytest.param(vmi(dedicated(), limits={"cpu": "3"}), False, 3, id="limit-alone"),
    ],
)
def test_cpus_of_the_pod(spec: VirtSpec, even_parity: bool, total: int) -> None:
    """The launcher pod's CPU count is that of KubeVirt's renderer."""
    assert pod_cpus(VMIView("spec.", defaulted(spec, SETTINGS), SETTINGS), even_parity=even_parity) == total


@pytest.mark.parametrize(
    ("spec", "annotations", "remedy"),
    [
        pytest.param(vmi(dedicated(cores=3)), {}, "set an even number of vCPUs", id="vcpus"),
        pytest.param(vmi(isolated(2)), {}, f'annotate the VMI with {EVEN_PARITY}: ""', id="emulator"),
        pytest.param(
            vmi(dedicated(cores=2), **pool(1)), {}, "supplementalPoolThreadCount to an even", id="pool"
        ),
        pytest.param(
            vmi(isolated(2), **pool(1)), {EVEN_PARITY: ""}, "to an even number", id="pool-and-parity"
        ),
    ],
)
def test_odd_total(spec: VirtSpec, annotations: dict[str, str], remedy: str) -> None:
    """An odd number of CPUs in the pod is a warning with the remedy that makes it even."""
    causes, warnings = review_vmi(Kind.VMI, {"annotations": annotations}, spec, SETTINGS)
    assert causes == ()
    assert fields(warnings) == ["cpu"]
    assert remedy in warnings[0].message


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"spec": vmi({"cores": 3})}, id="not-dedicated"),
        pytest.param({"spec": vmi(dedicated(cores=3)), "threads_per_core": (1, 1)}, id="no-smt-anywhere"),
        pytest.param({"spec": vmi(isolated(3))}, id="odd-plus-emulator"),
        pytest.param({"spec": vmi(dedicated(cores=2))}, id="even"),
        pytest.param(
            {"spec": vmi(isolated(2)), "settings": KubeVirtSettings(even_parity=True)}, id="parity-of-cluster"
        ),
    ],
)
def test_no_warning_of_an_odd_total(options: dict[str, Any]) -> None:
    """An even total, or one that leaves no half core, is no warning."""
    assert review(**options).warnings == ()


@pytest.mark.parametrize(
    ("threads", "shapes", "expected"),
    [
        pytest.param(2, (1,), ["cpu.threads"], id="no-smt"),
        pytest.param(2, (1, 2), [], id="smt-somewhere"),
        pytest.param(2, (), [], id="unknown"),
        pytest.param(1, (1,), [], id="one-thread"),
    ],
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


@pytest.mark.parametrize(
    ("policy", "count", "expected"),
    [
        pytest.param(None, 2, ["ioThreads.supplementalPoolThreadCount"], id="no-policy"),
        pytest.param("auto", 2, ["ioThreads.supplementalPoolThreadCount"], id="other-policy"),
        pytest.param("supplementalPool", 2, [], id="policy"),
        pytest.param(None, 0, [], id="no-threads"),
    ],
)
def test_pool_without_policy(policy: str | None, count: int, expected: list[str]) -> None:
    """A count of I/O threads without its policy costs CPUs without a use: it is a warning."""
    spec = vmi(ioThreadsPolicy=policy, ioThreads={"supplementalPoolThreadCount": count})
    assert fields(review(spec).warnings) == expected


@pytest.mark.parametrize(
    ("cpu", "amounts", "expected"),
    [
        pytest.param({"cores": 4}, {"limits": {"cpu": "4"}}, ["resources"], id="limit"),
        pytest.param({"cores": 4}, {"requests": {"cpu": 4}}, ["resources"], id="request"),
        pytest.param({"sockets": 4}, {"limits": {"cpu": 4}}, ["resources"], id="sockets"),
        pytest.param({"cores": 4}, {}, [], id="topology-alone"),
        pytest.param({"cores": 4}, {"requests": {"cpu": "0"}}, [], id="request-0"),
        pytest.param({}, {"limits": {"cpu": "4"}}, [], id="amount-alone"),
        pytest.param(
            {"sockets": 4, "cores": 1, "threads": 1}, {"limits": {"cpu": "4"}}, [], id="defaulted-shape"
        ),
        pytest.param(
            {"sockets": 1, "cores": 4, "threads": 1}, {"limits": {"cpu": 4}}, ["resources"], id="own-shape"
        ),
    ],
)
def test_said_twice(cpu: dict[str, Any], amounts: dict[str, Any], expected: list[str]) -> None:
    """The same number as topology and as amount is a warning, unless KubeVirt's defaulting wrote the topology."""
    assert fields(review(vmi(dedicated(**cpu), **amounts)).warnings) == expected


def test_amount_beside_topology_of_an_unpinned_vmi() -> None:
    """Without dedicated placement an amount means something else than the topology."""
    assert review(vmi({"cores": 4}, requests={"cpu": "4"})).warnings == ()


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        pytest.param("^3", ["mask ^3 selects no vCPU"], id="negation-alone"),
        pytest.param("0,7", ["mask names 7, but the vCPUs are 0 to 3"], id="stranger"),
        pytest.param("9", ["mask 9 selects no vCPU", "mask names 9"], id="only-strangers"),
        pytest.param("03", ["mask 03 selects no vCPU", "mask names 03"], id="leading-zero"),
        pytest.param("0-3", [], id="all-by-range"),
        pytest.param(None, [], id="absent"),
        pytest.param("x", [], id="refused-instead"),
    ],
)
def test_mask_that_selects_no_vcpu(mask: str | None, said: list[str]) -> None:
    """A mask that selects no vCPU, or names one that does not exist, is a warning."""
    memory = {"guest": "1Gi", "hugepages": {"pageSize": "2Mi"}}
    spec = vmi(dedicated(cores=4, numa=PASSTHROUGH, realtime={"mask": mask}), memory=memory)
    warnings = review(spec).warnings
    assert [cause.field for cause in warnings] == ["spec.domain.cpu.realtime.mask"] * len(said)
    assert all(text in cause.message for text, cause in zip(said, warnings, strict=True))
