"""A real pod with a budget: the cpusets of its containers are its slice and its pool, which other pods leave."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from agent.kernel.cgroupfs import find_hierarchy
from tests.agent.nri.births import TELLING
from tests.environments.node.containerd import CGROUP_ROOT, FOREVER
from tests.environments.node.containerd_fixture import WITH_NRI
from tests.environments.node.containerd_node import NAME, ContainerdNode, start_node
from tests.environments.node.node import Container
from tests.environments.waiting import until, until_equal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pinning.machine.cpuset import CPUSet
    from tests.environments.node.containerd import Containerd

EXCLUSIVE = {"cpu-manager.corepin.io/pod": "exclusive"}
NONE = {"cpu-manager.corepin.io/pod": "none"}
OTHER = "other"  # the second container of the pod
pytestmark = [
    pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="one CPU can be owned or shared, not both"),
    pytest.mark.parametrize("containerd_session", WITH_NRI, indirect=True),
]


@pytest.fixture(params=[True, False], ids=["NRI", "no NRI"])
def node(containerd: Containerd, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ContainerdNode]:
    """Return a node without pods, whose agent is or is not an NRI plugin."""
    nri = str(containerd.nri_socket) if request.param else "off"
    with start_node(containerd, tmp_path, nri) as node_with_agent:
        if request.param:
            until_equal("path of starts", lambda: node_with_agent.agent.state()["startPath"], "nri")
        yield node_with_agent


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
