"""The demo runs as a newcomer runs it, and shows each kind of answer."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from demo.show import addition, brief

PINNED = (
    "$ corepin map",
    "demo/demo-fast/app: exclusive on CPUs",
    "REFUSED: wanted",
    "demo-fast becomes `share` by an edit of its manifest (the same process",
    "demo-fast becomes `none` by an edit of its manifest (the same process",
    "The manifests are gone; so are their processes and cgroups.",
)


def test_demo_shows_admission_plan_and_pinning() -> None:
    """Every verdict is there with its reason, then the machine, then real processes; nothing is left behind."""
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-m", "demo"],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )

    assert ended.stderr == ""
    assert ended.returncode == 0
    for line in (
        "PATCHED  examples/cmk/exclusive-cores.yaml",
        "+ containers[0].env: CMK_NUM_CORES=2",
        "REFUSED  examples/crane/refused-word.yaml",
        "'exlusive' is not a policy",
        "! spec.containers[1].resources: container istio-proxy got requests = limits",
        "drained and ended",
        "2 sockets, 2 NUMA nodes",
        *(PINNED if len(os.sched_getaffinity(0)) > 1 else ()),
    ):
        assert line in ended.stdout
    assert len(ended.stdout.splitlines()) < 180  # about what one reads in a minute, with two pictures


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"name": "A", "value": "1"}, "A=1"),
        ([{"name": "v", "hostPath": {"path": "/opt/bin"}}], "v (host directory /opt/bin)"),
        ([{"name": "v", "mountPath": "/a", "readOnly": True}, {"mountPath": "/b"}], "/a (read-only), /b"),
        ({"key": "cmk", "operator": "Equal", "value": "true", "effect": "NoSchedule"}, "cmk=true:NoSchedule"),
        ({"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}, "requests cpu=1, limits cpu=1"),
    ],
)
def test_values_are_said_in_words(value: Any, words: str) -> None:
    """Each kind of added value is printed as a short phrase."""
    assert brief(value) == words


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("/metadata/annotations/a.b~1c", "true", "metadata.annotations: a.b/c=true"),
        ("/spec/containers/10/env/-", {"name": "A", "value": "1"}, "containers[10].env: A=1"),
    ],
)
def test_places_are_said_as_fields(path: str, value: Any, words: str) -> None:
    """JSON pointers are read back into field paths."""
    assert addition({"op": "add", "path": path, "value": value}) == words


def test_a_removal_is_said_with_its_place() -> None:
    """A removal is printed with the path of the removed list entry."""
    step = {"op": "remove", "path": "/spec/containers/1/volumeMounts/0"}
    assert addition(step) == "containers[1].volumeMounts[0]: removed"
