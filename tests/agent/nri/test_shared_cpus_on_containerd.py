"""Real containers that also use the shared set, from their creation with NRI and widened later without it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pinning.machine.cpuset import CPUSet
from tests.agent.nri.births import TELLING, birth, environment
from tests.environments.node.containerd_fixture import WITH_NRI
from tests.environments.node.containerd_node import ContainerdNode, start_node
from tests.environments.node.node import Container, allowed_cpus
from tests.environments.waiting import until, until_equal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.environments.node.containerd import Containerd

SHARED = {"cpu-manager.corepin.io/pod": "exclusive", "shared-cpus.corepin.io/pod": "true"}
ALONE = {"cpu-manager.corepin.io/pod": "exclusive"}
# prints its start, then forks
HELPED = (*TELLING[:2], TELLING[2].replace("exec /bin/sleep", "/bin/sleep 1000000 &\nexec /bin/sleep"))
pytestmark = [
    pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="one CPU can be owned or shared, not both"),
    pytest.mark.parametrize("containerd_session", WITH_NRI, indirect=True),
]


@pytest.fixture(params=[True, False], ids=["NRI", "no NRI"])
def over_nri(request: pytest.FixtureRequest) -> bool:
    """Return whether the agent is an NRI plugin."""
    return bool(request.param)


@pytest.fixture
def node(containerd: Containerd, tmp_path: Path, over_nri: bool) -> Iterator[ContainerdNode]:
    """Return a node without pods, with an agent."""
    nri = str(containerd.nri_socket) if over_nri else "off"
    with start_node(containerd, tmp_path, nri) as node_with_agent:
        if over_nri:
            until_equal("path of starts", lambda: node_with_agent.agent.state()["startPath"], "nri")
        yield node_with_agent


def until_apart(node: ContainerdNode, mixed: Container) -> CPUSet:
    """Wait until the container has both CPU sets and its processes run on its own; return both sets."""
    until_equal("both parts", lambda: mixed.cpus, node.all)
    until("told", lambda: node.state_of("mixed").get("pinned"))
    own = CPUSet.parse(node.reported()["mixed"]["cpus"])
    until_equal("its own", lambda: {allowed_cpus(pid) for pid in mixed.pids}, {own})
    return own


def test_moved_process_stays_in_the_shared_set(node: ContainerdNode, over_nri: bool) -> None:
    """Processes start on the exclusive CPU; one that moves to the shared set stays there, also after an agent restart."""
    mixed, bystander = node.add("mixed", command=HELPED, annotations=SHARED), node.add("bystander")
    own = until_apart(node, mixed)
    shared = node.all - own
    until_equal("the others", lambda: bystander.cpus, shared)
    if over_nri:
        told = birth(node, "mixed")
        assert (told.cpus, told.environment) == (own, environment(own, shared))
    first, helper = until("two processes", lambda: sorted(mixed.pids) if len(mixed.pids) == 2 else None)
    os.sched_setaffinity(helper, shared)
    node.add("newcomer")  # a change makes the agent count tasks at once
    assert node.reported()["mixed"]["sharedCpus"] == str(shared)
    until(
        "told how long it was split", lambda: over_nri or "splitSeconds" in node.state_of("mixed")["applied"]
    )
    until_equal(
        "counted",
        lambda: node.state_of("mixed").get("applied", {}).get("affinity"),
        {"home": 1, "others": 1, "both": 0},
    )

    node.agent.kill()
    node.agent.start()
    until("told again", lambda: node.state_of("mixed").get("pinned"))
    assert (allowed_cpus(first), allowed_cpus(helper)) == (own, shared)
    assert mixed.cpus == node.all


def test_edited_annotation_takes_effect_at_once(node: ContainerdNode) -> None:
    """Without the annotation the container is restricted to its own CPUs; with it again it has both sets."""
    mixed, bystander = node.add("mixed", command=HELPED, annotations=SHARED), node.add("bystander")
    own = until_apart(node, mixed)
    _, helper = until("two processes", lambda: sorted(mixed.pids) if len(mixed.pids) == 2 else None)
    os.sched_setaffinity(helper, node.all - own)
    node.write("mixed", annotations=ALONE)
    until_equal("its own alone", lambda: mixed.cpus, own)
    until_equal("helper is back", lambda: allowed_cpus(helper), own)
    node.write("mixed", annotations=SHARED)
    assert until_apart(node, mixed) == own
    assert bystander.cpus == node.all - own
