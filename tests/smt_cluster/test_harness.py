"""Unit tests of the harness, without an emulated machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.environments.guest.cluster import is_as_reported
from tests.environments.guest.installed import WORKLOADS, write_overlay
from tests.environments.guest.start import CONTROLLERS

PINNED = {"policy": "exclusive", "cpus": "2-3", "pinned": True}


def seen(status: dict[str, Any], *allowed: str, cpuset: str = "2-3") -> dict[str, Any]:
    """Return the observation of a pod with one container."""
    return {
        "told": {"main": status} if status else {},
        "resources": {"main": {}},
        "kernel": {"main": {"cpuset": cpuset, "allowed": list(allowed)}},
    }


@pytest.mark.parametrize(
    ("pod", "policy", "settled"),
    [
        pytest.param(seen(PINNED, "2-3", "2-3"), "exclusive", True, id="pinned"),
        pytest.param(seen(PINNED, "2-3", "2-3"), "share", False, id="another-policy"),
        pytest.param(seen(PINNED, "2-3"), "exclusive", False, id="second-process-missing"),
        pytest.param(seen(PINNED, "2-3", "0-7"), "exclusive", False, id="a-task-elsewhere"),
        pytest.param(seen(PINNED, "0-7", "0-7", cpuset="0-7"), "exclusive", False, id="kernel-differs"),
        pytest.param(seen({**PINNED, "pinned": False}, "2-3", "2-3"), "exclusive", False, id="not-pinned"),
        pytest.param(
            seen({**PINNED, "intruders": ["a/b/c"]}, "2-3", "2-3"), "exclusive", False, id="not-alone"
        ),
        pytest.param(seen({}, "0-1", "0-1", cpuset="0-1"), None, True, id="with-the-others"),
        pytest.param(seen({}, "0-7", "0-7", cpuset="0-7"), None, False, id="not-yet-with-the-others"),
    ],
)
def test_settled_means_kernel_and_agent_agree(pod: dict[str, Any], policy: str | None, settled: bool) -> None:
    """A pod is settled if it has the expected policy and both processes run on the reported CPUs."""
    assert is_as_reported(pod, policy, shared="0-1") is settled


def test_overlay_names_every_workload(tmp_path: Path) -> None:
    """The overlay sets the programs' paths in all three workloads."""
    text = (write_overlay(tmp_path / "overlay") / "kustomization.yaml").read_text()

    for name, (kind, _, _) in WORKLOADS.items():
        assert name in text
        assert f"{kind.lower()}-controller" in CONTROLLERS
