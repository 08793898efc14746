"""`corepin guard` as a process with NRI's own runtime side, while the agent is connected, absent or hung."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from agent.nri.guard import AGENT, GUARD, Guard
from agent.nri.guard_process import ASKING, Changes, Health, obstacle, run
from agent.nri.wire import WORKER_EVENTS, Client, Status
from agent.nri.wire import nri_pb2 as pb
from pinning.contract import GUARDED
from tests.agent.nri.guards import GuardProcess, guard_on
from tests.agent.nri.nri_runtime import Failed, NRIRuntime, container, pod, running_nri
from tests.environments.waiting import until

MARKED = {GUARDED: "true"}
MEMORY_KIB = 32 * 1024  # memory that the manifest requests
VALIDATING = pytest.mark.parametrize("nri", ["0.11", "0.12"], indirect=True)


class Agent(Guard):
    """A plugin with the agent's name, which assigns CPUs to every container unless it hangs."""

    def __init__(self) -> None:
        super().__init__(frozenset(), lambda: False)
        self.well = threading.Event()
        self.well.set()

    def create_container(self, pod: pb.PodSandbox, container: pb.Container) -> pb.CreateContainerResponse:
        """Assign CPUs to the container."""
        self.well.wait()
        response = pb.CreateContainerResponse()
        response.adjust.linux.resources.cpu.cpus = "2-3"
        return response

    def validate(self, request: pb.ValidateContainerAdjustmentRequest) -> str:
        """Accept every container."""
        return ""


@contextmanager
def guarding(nri: NRIRuntime) -> Iterator[GuardProcess]:
    """Run the guard and yield it when it is connected."""
    before = nri.joined(str(GUARD))
    with guard_on(nri.socket, nri.directory) as guard:
        until("the guard is asked", lambda: nri.joined(str(GUARD)) > before)
        until("the guard guards", lambda: guard.readiness() == (200, "ok"))
        yield guard


@contextmanager
def agent_on(nri: NRIRuntime) -> Iterator[Agent]:
    """Yield a connected plugin with the agent's name."""
    agent = Agent()
    client = Client(nri.socket, AGENT, agent, masks=(WORKER_EVENTS,))
    before = nri.joined(str(AGENT))
    client.start()
    try:
        until("the agent is asked", lambda: nri.joined(str(AGENT)) > before)
        yield agent
    finally:
        agent.well.set()
        client.stop()


def created(nri: NRIRuntime, annotations: dict[str, str]) -> Any:
    """Create a container and return its CPUs; raise Failed."""
    reply = nri.do("CreateContainer", pod=pod("web", **annotations), container=container("web"))
    return reply.get("adjust", {}).get("linux", {}).get("resources", {}).get("cpu", {}).get("cpus")


def retried(nri: NRIRuntime, annotations: dict[str, str]) -> Any:
    """Create a container, and retry once, because the runtime may drop a plugin at the first attempt."""
    try:
        return created(nri, annotations)
    except Failed:
        return created(nri, annotations)


def held_back(nri: NRIRuntime) -> str:
    """Create a marked container and return the error."""
    with pytest.raises(Failed) as failed:
        created(nri, MARKED)
    return str(failed.value)


@VALIDATING
def test_marked_containers_wait_for_the_agent(nri: NRIRuntime) -> None:
    """A marked container is rejected before the agent connects and after it disconnects; other containers start."""
    with guarding(nri):
        text = held_back(nri)
        assert (
            'validator "90-corepin-guard" rejected container adjustment, reason: container main was' in text
        )
        assert "corepin's agent is not connected to this node's container runtime" in text
        assert created(nri, {}) is None
        with agent_on(nri):
            assert created(nri, MARKED) == created(nri, {}) == "2-3"
        assert retried(nri, {}) is None
        assert "was promised CPUs of its own" in held_back(nri)


@VALIDATING
def test_two_guards_can_run_at_once(nri: NRIRuntime) -> None:
    """During a rollout two guards accept the agent's containers, and after it one guard still rejects others."""
    with ExitStack() as first:
        old = first.enter_context(guarding(nri))
        with guarding(nri), agent_on(nri):
            assert nri.joined(str(GUARD)) == 2
            assert created(nri, MARKED) == "2-3"
            first.close()
            assert old.daemon.process.returncode == 0
            assert retried(nri, MARKED) == "2-3"
        assert retried(nri, {}) is None
        with guarding(nri):
            assert "was promised CPUs of its own" in held_back(nri)


@pytest.mark.server
@pytest.mark.parametrize("version", ["0.11", "0.12"])
def test_an_agent_that_hangs_lets_no_marked_container_start(version: str, tmp_path: Path) -> None:
    """While the agent hangs no marked container starts, and other containers start at the second attempt at the latest."""
    with running_nri(version, tmp_path) as nri, guarding(nri), agent_on(nri) as agent:
        agent.well.clear()
        held_back(nri)
        assert "was promised CPUs of its own" in held_back(nri)
        assert created(nri, {}) is None


@pytest.mark.server
@pytest.mark.parametrize("version", ["0.11", "0.12"])
def test_a_hung_guard_is_dropped_and_reconnects(version: str, tmp_path: Path) -> None:
    """A hung guard fails one creation, is dropped by the runtime, and reconnects later."""
    with running_nri(version, tmp_path) as nri, guarding(nri) as guard:
        with guard.daemon.hung():
            with pytest.raises(Failed, match="90-corepin-guard"):
                created(nri, {})
            assert created(nri, {}) is None
        until("it guards again", lambda: nri.joined(str(GUARD)) >= 2)
        assert "was promised CPUs of its own" in held_back(nri)


@pytest.mark.parametrize("nri", ["0.8"], indirect=True)
def test_runtime_without_validators_makes_the_guard_unready(nri: NRIRuntime) -> None:
    """On a runtime without validators the guard is not ready and reports the reason, and all containers start."""
    with guard_on(nri.socket, nri.directory) as guard:
        until("it was refused", lambda: "0x2000" in guard.readiness()[1])
        status, reason = guard.readiness()
        assert (status, "containerd 2.2 or CRI-O 1.34 or later" in reason) == (503, True), reason
        assert created(nri, MARKED) is None


@pytest.mark.parametrize("nri", ["0.12"], indirect=True)
def test_memory_of_the_guard_is_limited(nri: NRIRuntime) -> None:
    """The guard's memory stays below the manifest's request, even with many containers."""
    pods = [pod(f"p{number}", note="x" * 200) for number in range(110)]
    containers = [container(f"p{number}", f"c{place}") for number in range(110) for place in range(5)]
    nri.hold(pods, containers)
    with guarding(nri) as guard:
        for _ in range(200):
            created(nri, {})
        status = Path(f"/proc/{guard.daemon.process.pid}/status").read_text()
    [peak] = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")]
    assert peak < MEMORY_KIB


GUARDING = Status(is_connected=True, runtime="containerd v2.2.0", validates=True)
OLD = Status(
    is_connected=False, runtime="cri-o 1.33.5", reason="the runtime closed the connection", is_refused=True
)
REASON = "the runtime closed the connection: {}: {} the guard needs containerd 2.2 or CRI-O 1.34 or later, whose NRI is 0.10 or later"
SECONDS = 20.0
AWAY = Status(is_connected=False, reason="/var/run/nri/nri.sock: No such file or directory")


@contextmanager
def serving(health: Health) -> Iterator[str]:
    """Serve the probes and yield their URL."""
    thread = threading.Thread(target=health.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{health.server_address[1]}"
    finally:
        health.shutdown()
        health.server_close()
        thread.join()


def connected(health: Health) -> socket.socket:
    """Return an open connection without a request."""
    return socket.create_connection(("127.0.0.1", health.server_address[1]))


def asked(url: str) -> tuple[int, str]:
    """Return status and text of an answer."""
    try:
        with urlopen(url, timeout=SECONDS) as response:  # noqa: S310 - of this test
            return response.status, response.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize(
    ("path", "problem", "status", "text"),
    [
        pytest.param("/healthz", "away", HTTPStatus.OK, "ok\n", id="alive, whatever the runtime does"),
        pytest.param("/readyz", "", HTTPStatus.OK, "ok\n", id="guarding"),
        pytest.param("/readyz?verbose", "away", HTTPStatus.SERVICE_UNAVAILABLE, "away\n", id="not guarding"),
        pytest.param("/metrics", "", HTTPStatus.NOT_FOUND, "/healthz or /readyz\n", id="unknown"),
    ],
)
def test_probes_are_answered(path: str, problem: str, status: HTTPStatus, text: str) -> None:
    """The liveness probe always succeeds; the readiness probe fails with the reason."""
    with serving(Health(("127.0.0.1", 0), lambda: problem)) as address:
        assert asked(address + path) == (status, text)


def test_silent_connections_time_out() -> None:
    """Connections without a request are closed after a timeout, so that a full server answers the next request."""
    health = Health(("127.0.0.1", 0), str, request_seconds=0.05)
    with serving(health) as address:
        silent = [connected(health) for _ in range(ASKING)]
        try:
            assert asked(f"{address}/healthz") == (HTTPStatus.OK, "ok\n")
        finally:
            for connection in silent:
                connection.close()


def test_silent_connections_delay_no_probe() -> None:
    """A new connection above the limit replaces the oldest one, so that silent ones fail no liveness probe."""
    health = Health(("127.0.0.1", 0), str, request_seconds=3600.0)
    with serving(health) as address:
        silent = [connected(health) for _ in range(3 * ASKING)]
        try:
            assert asked(f"{address}/healthz") == (HTTPStatus.OK, "ok\n")
            assert silent[0].recv(1) == b""
        finally:
            for connection in silent:
                connection.close()


def test_probe_for_which_no_thread_starts_takes_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes are answered again once threads can be started."""

    def failed(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    health = Health(("127.0.0.1", 0), str)
    with serving(health) as address:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", failed)
            for _ in range(2 * ASKING):
                with closing(connected(health)) as connection:
                    assert connection.recv(1) == b""
        assert asked(f"{address}/healthz") == (HTTPStatus.OK, "ok\n")


def test_garbled_requests_are_answered() -> None:
    """A request line without a path gets the status 404."""
    health = Health(("127.0.0.1", 0), str)
    with serving(health), closing(connected(health)) as connection:
        connection.sendall(b"\xff\xfe\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 404 ")


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        pytest.param(GUARDING, "", id="guarding"),
        pytest.param(AWAY, AWAY.reason, id="away"),
        pytest.param(Status(is_connected=False), "not connected yet", id="before the first attempt"),
        pytest.param(OLD, REASON.format("cri-o 1.33.5", "it has no validators:"), id="an older runtime"),
        pytest.param(
            replace(OLD, runtime="cri-o 1.34.0"),
            REASON.format("cri-o 1.34.0", "by its version it has validators, but"),
            id="a build of that version with an older NRI",
        ),
        pytest.param(
            replace(OLD, runtime=""), REASON.format("the runtime", "it has no validators:"), id="no name"
        ),
    ],
)
def test_obstacle_is_the_reason_of_the_connection(status: Status, problem: str) -> None:
    """If the runtime is not connected, the reason of the readiness probe names the runtime and the remedy."""
    assert obstacle(status) == problem


def test_each_change_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Losing and regaining the connection are each logged once."""
    caplog.set_level(logging.INFO)
    changes = Changes()
    for status in (AWAY, AWAY, GUARDING, GUARDING, AWAY):
        changes.log(status)
    assert [record.getMessage() for record in caplog.records] == [
        "nothing is guarded",
        "guarding",
        "nothing is guarded",
    ]


def test_guard_exits_when_the_kubelets_state_file_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard exits when the kubelet replaces its state file, so that its restarted container sees the new file."""
    monkeypatch.setattr("agent.nri.guard_process.LOOK_SECONDS", 0.001)
    monkeypatch.setattr("signal.signal", lambda *_: None)  # keeps the handlers of the test run
    reasons = iter(("", "", "cpu_manager_state: replaced"))
    guard = Guard(frozenset(), lambda: False)

    assert run(tmp_path / "nri.sock", guard, None, lambda: next(reasons)) == "cpu_manager_state: replaced"
