"""Pods of a real kubelet whose CPUs come over NRI: right from the first instruction on, or not started."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pinning.machine.cpuset import CPUSet
from tests.environments.node.events import events
from tests.environments.node.node import EXCLUSIVE, pod
from tests.environments.waiting import until, until_equal
from tests.node.starts.over_nri import ISOLATE, lines, waiting

if TYPE_CHECKING:
    import pytest

    from tests.environments.node.node import Container, Node

PODS = 20


def environment(container: Container) -> dict[str, str]:
    """Return the environment of the first process of a container."""
    content = Path(f"/proc/{container.pids[0]}/environ").read_text()
    return dict(entry.split("=", 1) for entry in content.split("\0") if entry)


def test_every_pod_is_right_at_its_first_instruction(
    nri_node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of twenty pods that start at once runs its first instruction on the shared CPUs, and the owner on its own CPUs."""
    node = nri_node
    [pinned] = node.run(pod("pinned", EXCLUSIVE, cpu="1"))
    own = CPUSet.parse(until("first line", lambda: lines(node, "pinned"))[0])
    assert (len(own), pinned.cpus) == (1, own)
    shared = node.all - own
    names = [f"born-{number}" for number in range(PODS - 1)]
    containers = node.run(*(pod(name, wanted=str(shared)) for name in names))
    for name in names:
        until_equal(f"log of {name}", lambda name=name: lines(node, name), [str(shared)])  # type: ignore[misc]
    node.settled({pinned: own} | dict.fromkeys(containers, shared))
    listed = {name: value for name, value in environment(pinned).items() if name.startswith("CMK_CPUS_")}
    assert listed["CMK_CPUS_ASSIGNED"] == str(own)
    assert CPUSet.parse(listed["CMK_CPUS_INFRA"]) == shared
    assert not any(name.startswith("CMK_CPUS_") for one in containers for name in environment(one))
    with capsys.disabled():
        sys.stdout.write(f"\n{PODS} pods through the kubelet: all right at their first instruction\n")


def test_pod_that_must_fit_waits_and_starts_by_itself(nri_node: Node) -> None:
    """A pod that must fit is CreateContainerError with its event's text, and starts once CPUs are free."""
    node = nri_node
    [first] = node.run(pod("first", ISOLATE, cpu=str(node.cores)))
    until_equal("cores", lambda: len(first.cpus), node.cores)
    node.apply(pod("second", ISOLATE, cpu="1"))
    error = until("error", lambda: (found := waiting(node, "second")).get("message") and found)
    assert error["reason"] == "CreateContainerError"
    told = until("event", lambda: list(events(node, "second").values()))
    assert any(message in error["message"] for message in told), (told, error)
    node.remove("first")
    second = node.running("second")
    own = CPUSet.parse(until("first line", lambda: lines(node, "second"))[0])
    assert len(own) == 1
    node.settled({second: own})
