"""The memory annotation of a pod: its containers, refusals and warnings."""

from __future__ import annotations

import pytest

from pinning.contract import NUMAMemory
from pinning.pods.claims import read_pod
from tests.pods import CPU_MANAGER, MEMORY, NUMA, container, fields, pod

EXCLUSIVE = {CPU_MANAGER: "exclusive"}
FIELD = f"metadata.annotations[{MEMORY}]"


@pytest.mark.parametrize(
    ("annotations", "memory"),
    [
        pytest.param({NUMA: "single", MEMORY: "bind"}, NUMAMemory.BIND, id="bound"),
        pytest.param({NUMA: "single", MEMORY: "free"}, NUMAMemory.FREE, id="free"),
        pytest.param({MEMORY: "free"}, NUMAMemory.FREE, id="free of any policy"),
        pytest.param({NUMA: "single"}, None, id="nothing said"),
        pytest.param({NUMA: "single", MEMORY: "near"}, None, id="no such word"),
        pytest.param({NUMA: "packed", MEMORY: "bind"}, NUMAMemory.FREE, id="bind needs single"),
    ],
)
def test_memory_of_a_claim(annotations: dict[str, str], memory: NUMAMemory | None) -> None:
    """A claim has the pod's memory policy, `bind` only together with `single`."""
    (claim,) = read_pod(pod(container("main", "2"), annotations={**EXCLUSIVE, **annotations})).claims
    assert claim.numa_memory is memory


def test_limit_of_bound_memory_is_kept() -> None:
    """Who binds memory keeps its limit in bytes, to be compared with what a NUMA node has; others keep none."""
    limits = {"cpu": "2", "memory": "1Gi"}
    annotations = {**EXCLUSIVE, MEMORY: "bind", "numa-policy.corepin.io/container.main": "single"}
    document = pod(container("main", limits), container("other", limits), annotations=annotations)
    assert [claim.memory_limit for claim in read_pod(document).claims] == [2**30, 0]


@pytest.mark.parametrize(
    ("key", "word", "expected"),
    [
        pytest.param(MEMORY, "near", "'near' is not a policy: write one of free, bind", id="value"),
        pytest.param(
            "numa-memory.corepin.io/container.main",
            "bind",
            f"the annotation is unknown: write {MEMORY}",
            id="scope",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(key: str, word: str, expected: str) -> None:
    """An unknown word or scope is refused with the annotation and what to write."""
    (cause,) = read_pod(
        pod(container("main", "2"), annotations={**EXCLUSIVE, NUMA: "single", key: word})
    ).causes
    assert (cause.field, cause.message) == (f"metadata.annotations[{key}]", expected)


@pytest.mark.parametrize("numa", [{}, {NUMA: "packed"}, {"numa-policy.corepin.io/container.main": "packed"}])
def test_bind_without_single_is_refused(numa: dict[str, str]) -> None:
    """`bind` without `single` is refused with the annotation and both remedies, and causes no warning besides."""
    read = read_pod(pod(container("main", "2"), annotations={**EXCLUSIVE, **numa, MEMORY: "bind"}))
    (cause,) = read.causes
    assert cause.field == FIELD
    assert cause.message == (
        "bind needs the CPUs on one NUMA node: write numa-policy.corepin.io/pod: single too, or free here"
    )
    assert FIELD not in fields(read.warnings)


def test_containers_without_single_are_warned_about() -> None:
    """Beside one container with `single` the others keep their memory free, and a warning names them."""
    annotations = {**EXCLUSIVE, MEMORY: "bind", "numa-policy.corepin.io/container.main": "single"}
    read = read_pod(pod(container("main", "2"), container("other", "2"), annotations=annotations))
    (warning,) = read.warnings
    assert read.causes == ()
    assert warning.field == FIELD
    assert warning.message == "the memory of container other stays free: its NUMA policy is not single"


@pytest.mark.parametrize("word", ["bind", "free"])
def test_a_word_without_claims_has_no_effect(word: str) -> None:
    """If no container claims CPUs the memory annotation has no effect, and a warning says so."""
    read = read_pod(pod(container("main", "2"), annotations={NUMA: "single", MEMORY: word}))
    assert read.causes == ()
    assert fields(read.warnings) == [f"metadata.annotations[{NUMA}]", FIELD]
