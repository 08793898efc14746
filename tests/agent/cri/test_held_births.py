"""Unpinned times over cgroups, against what is certain of them: containers that start while the agent is stopped.

`COREPIN_HELD_BIRTHS` sets how many pods start on each runtime (16 by default), of which half are held late.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pytest

from pinning.machine.cpuset import CPUSet
from tests.environments.node.containerd_fixture import CRIO
from tests.environments.node.containerd_node import ContainerdNode, start_node
from tests.environments.node.node import TELLING
from tests.environments.waiting import until, until_equal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.environments.node.containerd import Containerd

BIRTHS = int(os.environ.get("COREPIN_HELD_BIRTHS", "16"))
AT_ONCE = 8
pytestmark = [
    pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="moving a container takes two CPUs"),
    pytest.mark.parametrize("containerd_session", CRIO, indirect=True),
]


class Held(NamedTuple):
    """One container: lower and upper bound of its unpinned time, and the reported time."""

    name: str
    is_late: bool  # whether the container started late, as its first line says
    least: float
    reported: float
    most: float

    @property
    def is_true(self) -> bool:
        """Return whether the report is possible; a container that started on other CPUs has no time of zero."""
        return self.least <= self.reported <= self.most and not (self.is_late and self.reported == 0)


@pytest.fixture
def node(containerd: Containerd, tmp_path: Path) -> Iterator[ContainerdNode]:
    """Return a node without NRI."""
    with start_node(containerd, tmp_path) as node_with_agent:
        yield node_with_agent


def batch(node: ContainerdNode, names: list[str], shared: CPUSet, *, holds: bool) -> Iterator[Held]:
    """Start pods at once while the agent is stopped, wait for their first lines, and remove them."""

    def last(name: str) -> list[str]:
        return node.log(name)[-1:]

    assert node.agent.daemon
    command = ("/bin/sh", "-c", f"WANTED={shared}\n{TELLING}")
    began = time.monotonic()
    with node.agent.daemon.hung() if holds else nullcontext(), ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda name: node.add(name, command=command), names))
        first = {name: CPUSet.parse(until("first line", partial(node.log, name))[0]) for name in names}
        written = time.monotonic()
        if holds:
            time.sleep(0.1)  # the least time that is certain
        least = time.monotonic() - written if holds else 0.0  # read before the agent continues
    for name in names:
        until_equal(f"{name} moved", partial(last, name), [str(shared)])

    def times() -> dict[str, float]:
        told = {name: node.reported().get(name, {}).get("applied", {}).get("windowSeconds") for name in names}
        return told if None not in told.values() else {}

    reported, most = until("unpinned times", times), time.monotonic() - began
    for name in names:
        yield Held(name, first[name] != shared, least if first[name] != shared else 0.0, reported[name], most)
        node.remove(name)


def test_reported_time_is_possible_for_containers_held_late(
    node: ContainerdNode, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reported time is at least its lower bound, at most the test's duration, and above zero for a late container."""
    pinned = node.add("pinned", "exclusive")
    until("own CPU", lambda: node.state_of("pinned").get("pinned"))
    shared = node.all - pinned.cpus
    found: list[Held] = []
    for number in range(BIRTHS // AT_ONCE):
        names = [f"held-{number}-{place}" for place in range(AT_ONCE)]
        found += batch(node, names, shared, holds=number % 2 == 0)
    late = [it for it in found if it.is_late]
    with capsys.disabled():
        zero = sum(it.reported == 0 for it in found)
        sys.stdout.write(f"\n{len(found)} pods, {len(late)} started elsewhere, {zero} told with no window\n")
    assert [it for it in found if not it.is_true] == []
    assert len(late) >= len(found) // 2 - AT_ONCE
