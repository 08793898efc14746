"""The demo runs as a newcomer runs it, and shows each kind of answer."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from demo.show import addition, brief


def test_demo_shows_admission_and_the_plan() -> None:
    """Every verdict is there with its reason, then the machine; nothing is left on standard error."""
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-m", "demo"], capture_output=True, text=True, check=False, timeout=60
    )

    assert ended.stderr == ""
    assert ended.returncode == 0
    for told in (
        "PATCHED  examples/cmk/exclusive-cores.yaml",
        "+ containers[0].env: CMK_NUM_CORES=2",
        "REFUSED  examples/crane/refused-word.yaml",
        "'exlusive' is no policy",
        "! spec.containers[1].resources: container istio-proxy got requests = limits",
        "drained and ended",
        "2 sockets, 2 NUMA nodes",
    ):
        assert told in ended.stdout
    assert len(ended.stdout.splitlines()) < 140  # about what one reads in a minute, with the picture


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
    """Each kind of addition reads as people say it."""
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
