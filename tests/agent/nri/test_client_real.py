"""The client of `agent.nri.wire` against NRI's own runtime side, in each version."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from agent.nri.wire import WORKER_EVENTS, WORKER_EVENTS_OLD, Client, Event, PluginName, Reject
from agent.nri.wire import nri_pb2 as pb
from tests.agent.nri.nri_runtime import NAME, Failed, NRIRuntime, container, pod, running_nri
from tests.environments.server.catalog import NRI_RUNTIMES
from tests.environments.waiting import until, until_equal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

TOLD = {  # events by command
    "RunPodSandbox": Event.RUN_POD_SANDBOX,
    "PostCreateContainer": Event.POST_CREATE_CONTAINER,
    "StartContainer": Event.START_CONTAINER,
    "PostStartContainer": Event.POST_START_CONTAINER,
    "PostUpdateContainer": Event.POST_UPDATE_CONTAINER,
    "StopContainer": Event.STOP_CONTAINER,
    "RemoveContainer": Event.REMOVE_CONTAINER,
    "StopPodSandbox": Event.STOP_POD_SANDBOX,
    "RemovePodSandbox": Event.REMOVE_POD_SANDBOX,
}
EVERYTHING = 0  # mask of all events that the runtime has
NEARLY_4_MIB = 4 * 2**20 - 2000


def cpus_of(update: pb.ContainerUpdate, cpus: str) -> pb.ContainerUpdate:
    """Set the CPUs in an update and return the update."""
    update.linux.resources.cpu.cpus = cpus
    return update


class Noting:
    """Handlers that record their calls and assign CPUs 2-3 to every container."""

    def __init__(self) -> None:
        self.events: list[tuple[int, str, str]] = []
        self.synchronized: list[tuple[list[str], list[str]]] = []
        self.updates: list[pb.ContainerUpdate] = []
        self.decide: Callable[[pb.CreateContainerResponse], object] = lambda _: None
        self.verdict = ""

    def configure(self, request: pb.ConfigureRequest) -> None:
        """Accept the runtime's description."""

    def synchronize(
        self, pods: Iterable[pb.KnownPodSandbox], containers: Iterable[pb.KnownContainer]
    ) -> Iterable[pb.ContainerUpdate]:
        """Record pods and containers, and return the test's updates."""
        self.synchronized.append(([pod.id for pod in pods], [container.id for container in containers]))
        return self.updates

    def create_container(self, pod: pb.PodSandbox, container: pb.Container) -> pb.CreateContainerResponse:
        """Assign CPUs to the container, unless the test sets another answer."""
        response = pb.CreateContainerResponse()
        response.adjust.linux.resources.cpu.cpus = "2-3"
        response.adjust.env.add(key="POD", value=pod.uid)
        self.decide(response)
        return response

    def update_container(
        self, pod: pb.PodSandbox, container: pb.Container, resources: pb.LinuxResources
    ) -> pb.UpdateContainerResponse:
        """Reset the container to its CPUs."""
        update = cpus_of(pb.ContainerUpdate(container_id=container.id), "2-3")
        return pb.UpdateContainerResponse(update=[update])

    def validate(self, request: pb.ValidateContainerAdjustmentRequest) -> str:
        """Return the reason that the test has set, or ""."""
        return self.verdict

    def event(self, event: int, pod: pb.KnownPodSandbox, container: pb.KnownContainer) -> None:
        """Record the event."""
        self.events.append((event, pod.id, container.id))


@contextmanager
def client_of(
    nri: NRIRuntime, handlers: Noting, masks: tuple[int, ...] = (WORKER_EVENTS, WORKER_EVENTS_OLD)
) -> Iterator[Client]:
    """Connect handlers to a runtime and wait until they are synchronized."""
    client = Client(nri.socket, PluginName("corepin", 10), handlers, masks=masks)
    client.start()
    try:
        nri.synchronized()
        yield client
    finally:
        client.stop()


def created(nri: NRIRuntime) -> str:
    """Create a container; return its CPUs, or "" if it has none."""
    adjusted = nri.do("CreateContainer", pod=pod("a"), container=container("a")).get("adjust", {})
    cpus: str = adjusted.get("linux", {}).get("resources", {}).get("cpu", {}).get("cpus", "")
    return cpus


def created_if_accepted(nri: NRIRuntime) -> str:
    """Create a container; return its CPUs, or "" if the creation fails too."""
    try:
        return created(nri)
    except Failed:
        return ""


@pytest.fixture
def handlers() -> Noting:
    """Return handlers that assign CPUs 2-3 to every container."""
    return Noting()


@pytest.fixture
def client(nri: NRIRuntime, handlers: Noting) -> Iterator[Client]:
    """Return a connected client, for each version of the runtime."""
    with client_of(nri, handlers) as connected:
        yield connected


def test_client_detects_validators(nri: NRIRuntime, client: Client) -> None:
    """A runtime without validators drops the connection; the client then connects without the validation event."""
    until("connected", lambda: client.status.is_connected)
    assert NAME in client.status.runtime
    assert client.status.validates == nri.has_validators
    assert ("invalid plugin events" in nri.log) != nri.has_validators


def test_synchronization_in_parts_is_one_call_of_the_handlers(nri: NRIRuntime, handlers: Noting) -> None:
    """A list of 3,000 containers (10 MB) arrives in parts: the handler gets it once and in order, and its updates apply."""
    padding = {"padding": "x" * 3000}
    pods = [pod(f"uid-{number}") for number in range(100)]
    containers = [
        container(f"uid-{number % 100}", f"c{number}", annotations=padding) for number in range(3000)
    ]
    handlers.updates = [cpus_of(pb.ContainerUpdate(container_id=containers[7]["id"]), "1")]
    nri.hold(pods, containers)
    with client_of(nri, handlers):
        assert handlers.synchronized == [
            ([pod["id"] for pod in pods], [container["id"] for container in containers])
        ]
        [update] = nri.synchronized()["update"]
    assert update["container_id"] == containers[7]["id"]
    assert update["linux"]["resources"]["cpu"]["cpus"] == "1"


@pytest.mark.parametrize("mask", [WORKER_EVENTS_OLD, EVERYTHING], ids=["ours", "everything"])
def test_events_arrive_in_both_styles(nri: NRIRuntime, handlers: Noting, mask: int) -> None:
    """Each requested event arrives once, with pod and container, as StateChange or by its own method."""
    with client_of(nri, handlers, (mask,)):
        for command in TOLD:
            of_pod = command.endswith("Sandbox")
            nri.do(command, pod=pod("a"), **({} if of_pod else {"container": container("a")}))
    wanted = [event for event in TOLD.values() if mask == EVERYTHING or mask >> (event - 1) & 1]
    assert [event for event, _, _ in handlers.events] == wanted
    assert {pod_id for _, pod_id, _ in handlers.events} == {"sandbox-a"}
    assert {key for event, _, key in handlers.events if event > Event.REMOVE_POD_SANDBOX} == {"a-main"}


def test_created_container_gets_cpus_and_environment(nri: NRIRuntime, client: Client) -> None:
    """The runtime gets the CPUs and the environment that the handler adjusts."""
    adjusted = nri.do("CreateContainer", pod=pod("a"), container=container("a"))["adjust"]
    assert adjusted["linux"]["resources"]["cpu"]["cpus"] == "2-3"
    assert adjusted["env"] == [{"key": "POD", "value": "a"}]
    assert nri.do("Requested") == []


def test_rejected_container_is_not_created(nri: NRIRuntime, handlers: Noting, client: Client) -> None:
    """If the handler rejects a container, the creation fails with the handler's message, and the plugin stays connected."""

    def reject(response: pb.CreateContainerResponse) -> None:
        raise Reject("wanted 4 CPUs, 2 are free")

    handlers.decide = reject
    with pytest.raises(Failed, match="wanted 4 CPUs, 2 are free"):
        created(nri)
    handlers.decide = lambda _: None
    assert created(nri) == "2-3"
    assert len(handlers.synchronized) == 1


def test_update_is_answered_for_the_same_container(nri: NRIRuntime, client: Client) -> None:
    """The CPUs in the handler's answer to an update replace those of the request."""
    resources = {"cpu": {"cpus": "0-7", "quota": {"value": "200000"}}}
    answer = nri.do("UpdateContainer", pod=pod("a"), container=container("a"), linux_resources=resources)
    [update] = answer["update"]
    assert update["container_id"] == "a-main"
    assert update["linux"]["resources"]["cpu"]["cpus"] == "2-3"
    assert update["linux"]["resources"]["cpu"]["quota"]["value"] == "200000"


def test_messages_of_nearly_4_mib_pass(nri: NRIRuntime, handlers: Noting) -> None:
    """A request and a reply of nearly 4 MiB arrive complete."""
    long = "x" * NEARLY_4_MIB
    handlers.decide = lambda response: response.adjust.env.add(key="LONG", value=long)
    with client_of(nri, handlers, (WORKER_EVENTS_OLD,)):
        answer = nri.do("CreateContainer", pod=pod("a", long=long), container=container("a"))
        assert answer["adjust"]["env"][-1] == {"key": "LONG", "value": long}
        assert len(handlers.synchronized) == 1


def test_validator_can_reject_a_creation(nri: NRIRuntime, handlers: Noting, client: Client) -> None:
    """If the validator returns a reason, the creation fails; a runtime without validators does not call the handler."""
    handlers.verdict = "no CPUs were assigned"
    if nri.has_validators:
        with pytest.raises(Failed, match="no CPUs were assigned"):
            created(nri)
        handlers.verdict = ""
    assert created(nri) == "2-3"


def test_client_reconnects_to_a_restarted_runtime(nri: NRIRuntime, handlers: Noting, client: Client) -> None:
    """After an outage the status has the reason, and the plugin is synchronized again when the runtime restarts."""
    nri.kill()
    until("dropped", lambda: not client.status.is_connected)
    assert client.status.reason
    nri.start()
    nri.synchronized()
    assert created(nri) == "2-3"
    until("connected", lambda: client.status.is_connected)
    assert len(handlers.synchronized) == 2


@pytest.mark.server
@pytest.mark.parametrize("version", list(NRI_RUNTIMES))
def test_late_answer_ends_the_connection(version: str, handlers: Noting, tmp_path: Path) -> None:
    """If a plugin answers too late the runtime drops it; with validators the creation fails, without it is not adjusted."""
    done = threading.Event()
    handlers.decide = lambda _: done.wait()
    with running_nri(version, tmp_path, timeout="1s") as nri, client_of(nri, handlers) as client:
        try:
            if nri.has_validators:
                with pytest.raises(Failed):
                    created(nri)
            else:
                assert created(nri) == ""
        finally:
            done.set()
        nri.synchronized(2)
        # On a busy machine a plugin that answers at once may miss this timeout too, and reconnect again.
        until_equal("its CPUs", lambda: created_if_accepted(nri), "2-3")
        until("connected", lambda: client.status.is_connected)
