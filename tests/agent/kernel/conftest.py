"""Cgroups of both versions in plain folders, and processes with a chosen affinity."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.environments.node.cgroup_trees import (
    NEW_KERNEL,
    ONE,
    POD,
    OpenCgroups,
    make_cgroup,
    make_root,
    opened,
)
from tests.machines import quick_folder

HERE = frozenset(os.sched_getaffinity(0))


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Return a folder of the test's own for files of the kernel, which there are in memory too."""
    with quick_folder() as folder:
        yield folder


@pytest.fixture(params=[1, 2])
def version(request: pytest.FixtureRequest) -> int:
    """Return each cgroup version."""
    return int(request.param)


@pytest.fixture
def cpuset(tmp_path: Path, version: int) -> Path:
    """Return the cpuset folder of a node with one pod of one container on CPUs 0-7."""
    folder = make_root(tmp_path, version)
    for cgroup in ("/kubepods", "/kubepods/burstable", POD, ONE):
        make_cgroup(folder / cgroup[1:], version)
    return folder


@pytest.fixture
def cgroups(tmp_path: Path, cpuset: Path) -> Iterator[OpenCgroups]:
    """Return the agent's interface to the node's cgroups."""
    found = opened(tmp_path, NEW_KERNEL)
    yield found
    found.watch.close()


@pytest.fixture
def process() -> Iterator[Callable[..., int]]:
    """Return a function that starts processes on some CPUs; end them afterwards."""
    started = []

    def start(cpus: frozenset[int] = HERE, command: str = "sleep") -> int:
        child = subprocess.Popen([command, "1000"])
        started.append(child)
        os.sched_setaffinity(child.pid, cpus)
        return child.pid

    yield start
    for child in started:
        child.kill()
        child.wait()
