"""Real containers that also use the shared set, and a real pod with a budget, with NRI and without it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from agent.kernel.cgroupfs import find_hierarchy
from pinning.machine.cpuset import CPUSet
from tests.agent.nri.births import TELLING, birth, environment
from tests.environments.node.containerd import CGROUP_ROOT, FOREVER
from tests.environments.node.containerd_fixture import WITH_NRI
from tests.environments.node.containerd_node import NAME, ContainerdNode, start_node
from tests.environments.node.node import Container, allowed_cpus
from tests.environments.waiting import until, until_equal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
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


EXCLUSIVE = {"cpu-manager.corepin.io/pod": "exclusive"}
NONE = {"cpu-manager.corepin.io/pod": "none"}
OTHER = "other"  # the second container of the pod


def write(node: ContainerdNode, annotations: dict[str, str], limit: str = "") -> None:
    """Write or replace a pod with a budget of one CPU, whose first container has this CPU limit."""
    node.write("paid", annotations=annotations)
    document: dict[str, Any] = node.documents["paid"]
    amounts = {"resources": {"limits": {"cpu": limit}}} if limit else {}
    containers = [{"name": NAME, **amounts}, {"name": OTHER}]
    budget = {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}
    document["spec"] = {"resources": budget, "containers": containers}
    new = node.manifests / "paid.new"
    new.write_text(json.dumps(document))
    new.replace(node.manifests / "paid.json")


def start(node: ContainerdNode, name: str, command: Sequence[str] = FOREVER) -> Container:
    """Start a container of the pod."""
    sandbox = node.sandboxes["paid"]
    key = sandbox.create(name, command)
    sandbox.start(key)
    folder = node.containerd.container_folder("uid-paid", key)
    return Container(key, 0, find_hierarchy(CGROUP_ROOT), folder)


def pool(node: ContainerdNode) -> str:
    """Return the CPUs of the pod's pool, as the agent reports them."""
    pods = {pod["name"]: pod for pod in node.agent.state()["pods"]}
    found: str = ((pods.get("paid") or {}).get("pool") or {}).get("cpus", "")
    return found


def test_slice_and_pool_are_real_cpusets(node: ContainerdNode) -> None:
    """Slice and pool are right from the start over live edits to the end, and containers of other pods return afterwards."""
    bystander = node.add("bystander")
    write(node, EXCLUSIVE)
    node.run_pod("paid")
    # NRI rejects containers of a pod that the agent has not seen, and no kubelet retries here.
    until("pool", lambda: pool(node))
    one, two = start(node, NAME, TELLING), start(node, OTHER)
    own = until("own CPU", lambda: single(one))
    node.settled({one: own, two: own, bystander: node.all - own})
    assert pool(node) == str(own)

    # The slice is the whole budget. Without its annotation the container would stay in the pool.
    write(node, EXCLUSIVE | {f"cpu-manager.corepin.io/container.{NAME}": "exclusive"}, limit="1")
    until_equal("empty pool", lambda: pool(node), "")
    node.settled({one: own, two: node.all - own, bystander: node.all - own})

    write(node, NONE)
    node.settled({one: node.all, two: node.all, bystander: node.all})

    write(node, EXCLUSIVE)
    until("pool again", lambda: pool(node))
    again = until("own CPU", lambda: single(one))
    node.settled({one: again, two: again, bystander: node.all - again})

    node.remove("paid")
    node.settled({bystander: node.all})


def single(container: Container) -> CPUSet | None:
    """Return the CPU of a container that has exactly one."""
    return container.cpus if len(container.cpus) == 1 else None
