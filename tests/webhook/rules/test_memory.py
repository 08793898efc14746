"""Warnings about bound memory: limits above every NUMA node, and edits without effect."""

from __future__ import annotations

from typing import Any

import pytest

from pinning.errors import BadContract
from tests.pods import CPU_MANAGER, MEMORY, NUMA, container, fields, pod
from tests.webhook.rules.mutated import changed, reviewed
from webhook.config.settings import load_settings

BOUND = {CPU_MANAGER: "exclusive", NUMA: "single", MEMORY: "bind"}
LIMIT = "spec.containers[0].resources.limits[memory]"
FIELD = f"metadata.annotations[{MEMORY}]"


def shapes(*sizes: str | None) -> bytes:
    """Return a configuration with a kind of node for each size of a NUMA node."""
    lines = [
        f"- {{name: kind{at}, cores: 8{f', numaMemory: {size}' if size else ''}}}"
        for at, size in enumerate(sizes)
    ]
    return "\n".join(["nodeShapes:", *lines]).encode()


def document(annotations: dict[str, str], memory: str | None = "8Gi") -> Any:
    """Return a pod with two CPUs and a memory limit."""
    return pod(
        container("main", {"cpu": "2", **({"memory": memory} if memory else {})}), annotations=annotations
    )


@pytest.mark.parametrize(
    ("configuration", "annotations", "memory", "warned"),
    [
        pytest.param(shapes("4Gi"), BOUND, "8Gi", True, id="more than there is"),
        pytest.param(shapes("4Gi", "8Gi"), BOUND, "8Gi", False, id="one kind has it"),
        pytest.param(shapes("4Gi", None), BOUND, "8Gi", False, id="one kind is not known"),
        pytest.param(b"", BOUND, "8Gi", False, id="nothing is known"),
        pytest.param(shapes("4Gi"), BOUND, None, False, id="no limit"),
        pytest.param(shapes("4Gi"), BOUND | {MEMORY: "free"}, "8Gi", False, id="free"),
    ],
)
def test_a_limit_above_every_node_is_warned(
    configuration: bytes, annotations: dict[str, str], memory: str | None, warned: bool
) -> None:
    """A bound container with a limit above every NUMA node's memory has a warning: it would be OOM killed."""
    verdict = reviewed(document(annotations, memory), configuration)
    assert verdict.causes == ()
    assert fields(verdict.warnings) == ([LIMIT] if warned else [])


def test_the_warning_names_limit_memory_and_remedy() -> None:
    """The warning names limit, memory, kind of node and both remedies."""
    verdict = reviewed(document(BOUND), shapes("4Gi", "2Gi"))
    (warning,) = verdict.warnings
    assert warning.message == (
        "8Gi is more than the 4Gi that a NUMA node of kind0 has, and the kernel kills the container when that is used up:"
        f" lower it, or write {MEMORY}: free"
    )


@pytest.mark.parametrize("size", ["0", "much"])
def test_a_size_that_is_none_is_refused(size: str) -> None:
    """An invalid memory size is refused with its kind of node."""
    with pytest.raises(BadContract, match=r"nodeShapes\[kind0\].numaMemory"):
        load_settings(shapes(size))


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        pytest.param(BOUND | {MEMORY: "free"}, BOUND, True, id="to bind"),
        pytest.param(BOUND, BOUND | {MEMORY: "free"}, True, id="to free"),
        pytest.param(BOUND, {CPU_MANAGER: "exclusive", NUMA: "single"}, True, id="removed"),
        pytest.param(BOUND, BOUND | {CPU_MANAGER: "share"}, False, id="another policy"),
    ],
)
def test_an_edit_warns_that_running_containers_keep_their_memory(
    before: dict[str, str], after: dict[str, str], told: bool
) -> None:
    """An edit of the memory annotation warns that running containers keep their memory where it is."""
    verdict = changed(document(before), document(after))
    assert verdict.causes == ()
    assert fields(verdict.warnings) == ([FIELD] if told else [])


def test_taking_single_away_beside_bind_is_refused() -> None:
    """An edit that leaves `bind` without `single` is refused."""
    verdict = changed(document(BOUND), document(BOUND | {NUMA: "packed"}))
    assert fields(verdict.causes) == [FIELD]
