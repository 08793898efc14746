"""The agent's plugin against NRI's own runtime side: what its table says is what the runtime makes, in every version."""

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
    """Do everything that is planned."""
    node.run_all()
    return node


@pytest.fixture
def node() -> World:
    """Return a node of CPUs 0-7 where the pod `owner` holds the core 1,5, and `late` more than there is."""
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
    """Return the agent's plugin, connected, with the table of the node."""
    plugin = Plugin(in_vm=lambda _: False)
    plugin.table = start_table(node.plan(), node.observe())
    with connected(nri, plugin):
        yield plugin


def create(nri: NRIRuntime, uid: str, **annotations: str) -> tuple[str, dict[str, str]]:
    """Create a container and return the CPUs and the environment that it gets."""
    adjusted = nri.do("CreateContainer", pod=pod(uid, **annotations), container=container(uid, "c0"))[
        "adjust"
    ]
    environment = {entry["key"]: entry["value"] for entry in adjusted.get("env", ())}
    return adjusted["linux"]["resources"]["cpu"]["cpus"], environment


def update(nri: NRIRuntime, uid: str, cpus: str) -> Any:
    """Change the CPUs of a container and return what the runtime takes instead, nothing when it goes on as asked."""
    resources = {"cpu": {"cpus": cpus, "shares": {"value": "512"}}}
    request = {"pod": pod(uid), "container": container(uid, "c0"), "linux_resources": resources}
    [own] = nri.do("UpdateContainer", **request)["update"]
    return own.get("linux", {}).get("resources", {}).get("cpu")


def test_containers_are_made_with_their_cpus(nri: NRIRuntime, plugin: Plugin) -> None:
    """An owner gets its CPUs and reads them in its environment, everybody else the shared set and nothing to read."""
    cpus, environment = create(nri, "owner")
    assert cpus == "1,5"
    assert environment == {
        "CMK_CPUS_ASSIGNED": "1,5",
        "CMK_CPUS_ASSIGNED_MASK": "22",
        "CMK_CPUS_SHARED": "0,2,3,4,6,7",
        "CMK_CPUS_INFRA": "0,2,3,4,6,7",
    }
    assert create(nri, "stranger") == ("0,2-4,6-7", {})


def test_containers_that_may_not_start_are_not_made(nri: NRIRuntime, plugin: Plugin) -> None:
    """What does not fit, and a claim that was not seen, fail with their reasons; the plugin stays."""
    with pytest.raises(Failed, match="NotEnoughCPUs: wanted 8 "):
        create(nri, "late")
    with pytest.raises(Failed, match=NOT_SEEN):
        create(nri, "unseen", **{"smt-policy.corepin.io/pod": "require"})
    assert create(nri, "owner")[0] == "1,5"
    nri.synchronized()


def test_update_by_others_keeps_the_cpus(nri: NRIRuntime, plugin: Plugin) -> None:
    """A kubelet that resizes, or anybody who writes a cpuset, changes the rest and not the CPUs."""
    for uid, cpus in (("owner", "1,5"), ("stranger", "0,2-4,6-7")):
        assert update(nri, uid, "0-7") == {"cpus": cpus, "shares": {"value": "512"}}


def test_update_by_the_agent_passes(nri: NRIRuntime, plugin: Plugin) -> None:
    """The newest table answers: what the agent itself has sent over CRI is not changed back."""
    moved = settled(world(4))
    plugin.table = start_table(moved.plan(), moved.observe())
    assert update(nri, "owner", "0-7") is None


def test_ends_are_taken_and_free_nothing(nri: NRIRuntime, plugin: Plugin) -> None:
    """A container that stops, is removed and is made again has the same CPUs, in both styles of events."""
    create(nri, "owner")
    nri.do("StartContainer", pod=pod("owner"), container=container("owner", "c0"))
    assert plugin.started.keys() == {"owner-c0"}
    nri.do("StopContainer", pod=pod("owner"), container=container("owner", "c0"))
    nri.do("RemoveContainer", pod=pod("owner"), container=container("owner", "c0"))
    assert not plugin.started
    assert create(nri, "owner")[0] == "1,5"


def test_node_of_three_thousand_containers_is_taken(nri: NRIRuntime, node: World) -> None:
    """What is there already is told in parts, and nothing of it is changed on this way."""
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
    """NRI takes CPUs from one plugin only, and names both."""
    client = Client(nri.socket, PluginName("another", 20), Another(in_vm=lambda _: False))
    client.start()
    try:
        nri.synchronized(2)
        with pytest.raises(Failed, match=r"(?s)corepin.*another|another.*corepin"):
            create(nri, "owner")
    finally:
        client.stop()
