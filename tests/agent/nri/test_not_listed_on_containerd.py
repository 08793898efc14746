"""Large environments of one tenant, with which containerd 2.4.2 rejects NRI plugins or crashes.

Eight containers with 1.8 MB each, as `envFrom` of two ConfigMaps makes them, exceed a message of 4 MiB.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

import grpc
import pytest

from agent.nri.plugin import NAME, Plugin
from agent.nri.wire import Client
from agent.nri.wire.client import CRASHED, LONGEST_NOT_LISTED_WAIT
from pinning.contract import GUARDED, GUARDED_VALUE, REQUIRED_PLUGINS
from tests.agent.nri.guards import guard_on
from tests.environments.node.containerd import FOREVER, start_containerd
from tests.environments.node.containerd_node import start_node
from tests.environments.waiting import until, until_equal

if TYPE_CHECKING:
    from pathlib import Path

    from agent.nri.wire import Status
    from tests.environments.node.containerd import Containerd, Pod

LARGE = {f"KEY_{number}": "secret" * 20_000 for number in range(15)}  # 1.8 MB
VALIDATOR = """
[plugins."io.containerd.nri.v1.nri".default_validator]
enable = true
"""
in_2_4 = pytest.mark.parametrize("containerd_session", ["2.4"], indirect=True)


def crowd(containerd: Containerd, pods: int, containers: int) -> list[Pod]:
    """Create containers with large environments in some pods, without starting them."""
    made = [containerd.run_pod(f"large-{number}", f"uid-large-{number}") for number in range(pods)]
    for number in range(containers):
        made[number % pods].create(f"c{number}", FOREVER, environment=LARGE)
    return made


@in_2_4
def test_agent_and_guard_name_the_environments_and_come_back(containerd: Containerd, tmp_path: Path) -> None:
    """Until the pods are deleted the agent pins containers through cgroups, and a new guard is not ready."""
    large = crowd(containerd, 4, 8)
    with (
        guard_on(containerd.nri_socket, tmp_path) as guard,
        start_node(containerd, tmp_path, nri=str(containerd.nri_socket)) as node,
    ):
        until("the environments are named", lambda: "MiB)" in node.agent.state()["listingFault"])
        fault = node.agent.state()["listingFault"]
        assert "default/large-" in fault
        assert "(1.7 MiB)" in fault
        assert "secret" not in fault + node.agent.log
        assert node.agent.state()["startReason"] == fault
        assert node.agent.metric("corepin_agent_nri_not_listed") == 1
        pinned = node.add("pinned", "exclusive")
        until("its own CPU", lambda: node.state_of("pinned").get("pinned"))
        assert len(pinned.cpus) == 1
        assert node.agent.state()["startPath"] == "cgroup"

        until("the guard has tried", lambda: "largest environments" in guard.readiness()[1])
        assert guard.readiness()[0] == 503
        assert "0x" not in fault + guard.readiness()[1]
        assert containerd.daemon is not None
        assert containerd.daemon.process.poll() is None

        for pod in large:
            containerd.remove_pod(pod.id)
        until_equal("NRI is back", lambda: node.agent.state()["startPath"], "nri")
        until_equal("the guard guards", guard.readiness, (200, "ok"))
        assert node.agent.state()["listingFault"] == ""


@in_2_4
def test_connected_guard_rejects_and_names_the_condition(containerd: Containerd, tmp_path: Path) -> None:
    """A guard that was connected before still rejects marked pods and reports the condition, and other pods start."""
    with guard_on(containerd.nri_socket, tmp_path) as guard:
        until_equal("the guard guards", guard.readiness, (200, "ok"))
        crowd(containerd, 4, 8)
        client = Client(containerd.nri_socket, NAME, Plugin(lambda _: False))
        client.start()
        try:
            until("the agent is not let in", lambda: client.status.is_not_listed)
            with pytest.raises(
                grpc.RpcError, match="delete the pods that the node's condition CorepinDegraded names"
            ):
                containerd.run_pod("marked", "uid-marked", {GUARDED: GUARDED_VALUE}).create("main")
            containerd.run_pod("plain", "uid-plain").create("main")
            assert guard.readiness() == (200, "ok")
        finally:
            client.stop()


@in_2_4
def test_pods_are_removed_while_plugins_connect(containerd: Containerd) -> None:
    """Containerd does not deadlock if pods are removed in the kubelet's order while plugins connect."""
    pods = [containerd.run_pod(f"short-{number}", f"uid-short-{number}") for number in range(3)]
    for pod in pods:
        for number in range(6):
            pod.create(f"c{number}")
    stopping = threading.Event()
    connections: list[bool] = []
    connecting = threading.Thread(target=lambda: connections.extend(connect_until(stopping, containerd)))
    connecting.start()
    try:
        for pod in pods:
            containerd.remove_pod(pod.id)
    finally:
        stopping.set()
        connecting.join()
    assert any(connections)


def connect_until(stopping: threading.Event, containerd: Containerd) -> list[bool]:
    """Connect a plugin repeatedly; return for each connection whether it was synchronized."""
    connections = []
    while not stopping.is_set():
        statuses: queue.SimpleQueue[Status] = queue.SimpleQueue()
        client = Client(containerd.nri_socket, NAME, Plugin(lambda _: False), changed=statuses.put)
        client.start()
        connections.append(statuses.get().is_connected)
        client.stop()
    return connections


@pytest.mark.runtime
def test_a_crash_is_not_repeated_and_required_plugins_hold_back(tmp_path: Path) -> None:
    """With fewer than four pods containerd panics only once; then `requiredPlugins` rejects marked containers."""
    with start_containerd("2.4", tmp_path) as containerd:
        assert containerd.daemon is not None
        large = crowd(containerd, 2, 7)
        client = Client(containerd.nri_socket, NAME, Plugin(lambda _: False))
        client.start()
        try:
            until("containerd crashed", lambda: containerd.daemon and containerd.daemon.process.poll())
            until("the client knows", lambda: CRASHED in client.status.reason)
            assert "slice bounds out of range" in containerd.daemon.log_file.read_text()

            config = tmp_path / "config.toml"
            config.write_text(config.read_text() + VALIDATOR)
            containerd.start()
            assert client.status.is_not_listed
            assert client._backoff == LONGEST_NOT_LISTED_WAIT
            with pytest.raises(grpc.RpcError, match="required plugin"):
                marked(containerd).create("main")
            containerd.run_pod("plain", "uid-plain").create("main")
            assert containerd.daemon.process.poll() is None
        finally:
            client.stop()
        for pod in large:
            containerd.remove_pod(pod.id)


def marked(containerd: Containerd) -> Pod:
    """Return a pod with `requiredPlugins`, as the webhook marks it."""
    return containerd.run_pod("marked", "uid-marked", {REQUIRED_PLUGINS: '["corepin"]'})
