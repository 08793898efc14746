"""Runs each test of the local runtime with kernel cgroups and with affinity alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.local.world import World
from tests.environments.node.kernel_missing import cgroups_missing


@pytest.fixture(params=[pytest.param("cgroup", marks=pytest.mark.runtime), "affinity"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """Return a world with cgroups or with affinity alone."""
    why = cgroups_missing() if request.param == "cgroup" else None
    if why and os.environ.get("CI") == "true":
        pytest.fail(why)
    if why:
        pytest.skip(why)
    world = World(tmp_path, request.param)
    yield world
    world.close()
