"""The agent's plugin with NRI's own runtime side: created containers have the CPUs of the table."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from agent.nri.plugin import NAME, Plugin
from agent.nri.wire import Client, PluginName
from agent.nri.wire import nri_pb2 as pb
from pinning.planning.start_table import NOT_SEEN, start_table
from tests.agent.nri.nri_runtime import Failed, NRIRuntime, container, pod
from tests.pinning.world import Wish, World, world

if TYPE_CHECKING:
    from collections.abc import Iterator

WHOLE = Wish("2", smt="require")


def settled(node: World) -> World:
    """Apply the plan completely."""
    node.run_all()
    return node


@pytest.fixture
def node() -> World:
    """Return a node of CPUs 0-7 where pod `owner` has core 1,5, and pod `late` requests more than is free."""
    node = world(4)
    node.add("owner", [WHOLE])
    node.add("late", [Wish("8", smt="require")])
    return settled(node)


@contextmanager
def connected(nri: NRIRuntime, plugin: Plugin) -> Iterator[None]:
    """Connect the agent's plugin to a runtime until the block ends."""
    client = Client(nri.socket, NAME, plugin)
    client.start()
    try:
        nri.synchronized()
        yield
    finally:
        client.stop()


@pytest.fixture
def plugin(nri: NRIRuntime, node: World) -> Iterator[Plugin]:
    """Return the connected plugin of the agent, with the node's table."""
    plugin = Plugin(in_vm=lambda _: False)
    plugin.table = start_table(node.plan(), node.observe())
    with connected(nri, plugin):
        yield plugin


def create(nri: NRIRuntime, uid: str, **annotations: str) -> tuple[str, dict[str, str]]:
    """Create a container; return its CPUs and its environment."""
    adjusted = nri.do("CreateContainer", pod=pod(uid, **annotations), container=container(uid, "c0"))[
        "adjust"
    ]
    environment = {entry["key"]: entry["value"] for entry in adjusted.get("env", ())}
    return adjusted["linux"]["resources"]["cpu"]["cpus"], environment


def update(nri: NRIRuntime, uid: str, cpus: str) -> Any:
    """Update the CPUs of a container; return the plugin's correction, or None."""
    resources = {"cpu": {"cpus": cpus, "shares": {"value": "512"}}}
    request = {"pod": pod(uid), "container": container(uid, "c0"), "linux_resources": resources}
    [own] = nri.do("UpdateContainer", **request)["update"]
    return own.get("linux", {}).get("resources", {}).get("cpu")


def test_containers_are_created_with_their_cpus_and_variables(nri: NRIRuntime, plugin: Plugin) -> None:
    """An owner gets its CPUs and CMK's variables; others get the shared set and no variables."""
    cpus, environment = create(nri, "owner")
    assert cpus == "1,5"
    assert environment == {
        "CMK_CPUS_ASSIGNED": "1,5",
        "CMK_CPUS_ASSIGNED_MASK": "22",
        "CMK_CPUS_SHARED": "0,2,3,4,6,7",
        "CMK_CPUS_INFRA": "0,2,3,4,6,7",
    }
    assert create(nri, "stranger") == ("0,2-4,6-7", {})


def test_rejected_containers_are_not_created(nri: NRIRuntime, plugin: Plugin) -> None:
    """If a claim does not fit or a pod is unknown, the creation fails with the reason, and the plugin stays connected."""
    with pytest.raises(Failed, match="NotEnoughCPUs: wanted 8 "):
        create(nri, "late")
    with pytest.raises(Failed, match=NOT_SEEN):
        create(nri, "unseen", **{"smt-policy.corepin.io/pod": "require"})
    assert create(nri, "owner")[0] == "1,5"
    nri.synchronized()


def test_foreign_update_keeps_the_cpus(nri: NRIRuntime, plugin: Plugin) -> None:
    """After an update by another CRI client the container has its other new resources and its old CPUs."""
    for uid, cpus in (("owner", "1,5"), ("stranger", "0,2-4,6-7")):
        assert update(nri, uid, "0-7") == {"cpus": cpus, "shares": {"value": "512"}}


def test_update_by_the_agent_is_not_corrected(nri: NRIRuntime, plugin: Plugin) -> None:
    """An update with the newest table's CPUs is not corrected."""
    moved = settled(world(4))
    plugin.table = start_table(moved.plan(), moved.observe())
    assert update(nri, "owner", "0-7") is None


def test_removed_container_is_created_on_the_same_cpus(nri: NRIRuntime, plugin: Plugin) -> None:
    """A container that is removed and created again has the same CPUs, with both event styles."""
    create(nri, "owner")
    nri.do("StartContainer", pod=pod("owner"), container=container("owner", "c0"))
    assert plugin.started.keys() == {"owner-c0"}
    nri.do("StopContainer", pod=pod("owner"), container=container("owner", "c0"))
    nri.do("RemoveContainer", pod=pod("owner"), container=container("owner", "c0"))
    assert not plugin.started
    assert create(nri, "owner")[0] == "1,5"


def test_synchronization_of_three_thousand_containers_changes_none(nri: NRIRuntime, node: World) -> None:
    """A large node is synchronized in parts, and no running container is updated."""
    padding = {"padding": "x" * 3000}
    nri.hold(
        [pod(f"uid-{number}") for number in range(100)],
        [container(f"uid-{number % 100}", f"c{number}", annotations=padding) for number in range(3000)],
    )
    plugin = Plugin(in_vm=lambda _: False)
    plugin.table = start_table(node.plan(), node.observe())
    with connected(nri, plugin):
        assert "update" not in nri.synchronized()
        assert create(nri, "owner")[0] == "1,5"


class Another(Plugin):
    """A second plugin that sets cpusets."""

    def create_container(self, pod: pb.PodSandbox, container: pb.Container) -> pb.CreateContainerResponse:
        """Set other CPUs."""
        response = pb.CreateContainerResponse()
        response.adjust.linux.resources.cpu.cpus = "0"
        return response


def test_second_plugin_that_sets_cpusets_fails_the_creation(nri: NRIRuntime, plugin: Plugin) -> None:
    """NRI accepts CPUs from one plugin only, and its error names both."""
    client = Client(nri.socket, PluginName("another", 20), Another(in_vm=lambda _: False))
    client.start()
    try:
        nri.synchronized(2)
        with pytest.raises(Failed, match=r"(?s)corepin.*another|another.*corepin"):
            create(nri, "owner")
    finally:
        client.stop()
