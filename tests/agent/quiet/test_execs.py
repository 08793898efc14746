"""Counting and placement of execs, and the stream of the runtime's events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest
from google.protobuf.message import DecodeError
from prometheus_client import CollectorRegistry, generate_latest

from agent.clock import Clock
from agent.errors import Refused, Unavailable, Unimplemented
from agent.node_state import NodeState, PlacedExec, StartedExec
from agent.quiet import execs as module
from agent.quiet.execs import ExecMetrics, ExecWatch, exec_targets
from agent.serve.state_json import agent_state
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.node_config import ExecAffinity
from tests.agent.states import EXCLUSIVE, bound, owner, state_of
from tests.environments.waiting import background
from tests.pods import container

WEB_ID, PLAIN_ID = "a" * 64, "b" * 64
WEB = bound("web", container("main", 2), annotations=EXCLUSIVE)
PLAIN = bound("plain", container("main", 1))
CGROUPS = {
    owner(WEB): f"/pods/web/cri-containerd-{WEB_ID}.scope",
    owner(PLAIN): f"/pods/plain/{PLAIN_ID}",
}
STATE = replace(state_of(WEB, PLAIN), cgroups=CGROUPS)
EMPTY_NODE = replace(state_of(PLAIN), cgroups=CGROUPS)
OWN = STATE.ledger.cpus_of(owner(WEB), CPUSet())
OTHER, OTHER_ID = bound("other", container("main", 2), annotations=EXCLUSIVE), "d" * 64
BOTH = replace(
    state_of(WEB, OTHER),
    cgroups={**CGROUPS, owner(OTHER): f"/pods/other/cri-containerd-{OTHER_ID}.scope"},
)
LABELS = '{container="main",namespace="default",pod="web"}'


class Events:
    """A runtime with events from the test."""

    def __init__(self) -> None:
        self.waiting: asyncio.Queue[StartedExec | Exception] = asyncio.Queue()
        self.asked, self.ended = 0, 0

    async def started(self) -> AsyncIterator[StartedExec]:
        """Yield the test's events; raise its exceptions."""
        self.asked += 1
        try:
            while True:
                given = await self.waiting.get()
                if isinstance(given, Exception):
                    raise given
                yield given
        finally:
            self.ended += 1


class Node:
    """A watch with its events and the processes that it moved."""

    def __init__(self, affinity: ExecAffinity | None = ExecAffinity.LAST) -> None:
        self.registry = CollectorRegistry()
        self.events = Events()
        self.moved: list[tuple[int, str, CPUSet, int | None]] = []
        self.exited: set[int] = set()
        self.pauses: list[float] = []
        self.now, self.used, self.cost = 100.0, 0.0, 0.0  # clock, used CPU time, and CPU time of each move
        self.on_sleep: Callable[[], object] = lambda: None
        metrics, clock = ExecMetrics(self.registry), Clock(monotonic=lambda: self.now)
        self.watch = ExecWatch(
            self.events,
            metrics,
            affinity,
            self.place,
            self.started_at,
            clock,
            self.sleep,
            cpu_seconds=lambda: self.used,
        )

    async def sleep(self, seconds: float) -> None:
        """Record a pause."""
        if seconds:
            self.pauses.append(seconds)
        self.now += seconds
        self.on_sleep()
        await asyncio.sleep(0)

    def place(self, pid: int, cgroup: str, cpus: CPUSet, started: int | None = None) -> PlacedExec | None:
        """Move a process that has not exited; the move takes a hundredth of a second for each unit of its pid."""
        self.used += self.cost
        if pid in self.exited:
            return None
        self.moved.append((pid, cgroup, cpus, started))
        return PlacedExec(started=1000 + pid, seconds=pid / 100)

    def started_at(self, pid: int) -> int:
        """Return the start time of a process that has not exited."""
        return 0 if pid in self.exited else 1000 + pid

    def metrics(self) -> list[str]:
        """Return the series of the counter."""
        lines = generate_latest(self.registry).decode().splitlines()
        return [line for line in lines if line.startswith("corepin_agent_execs_total{")]


@pytest.fixture
def node() -> Node:
    """Return a watch that follows an exclusive and a plain container."""
    node = Node()
    node.watch.follow(STATE)
    return node


def test_only_execs_of_exclusive_containers_are_counted(node: Node) -> None:
    """Execs in shared or unknown containers are not counted."""
    for key, pid in ((WEB_ID, 3), (PLAIN_ID, 4), ("c" * 64, 5), (WEB_ID, 2)):
        node.watch.started(StartedExec(key, pid))
    execs = node.watch.execs
    assert (list(execs), execs[owner(WEB)].entered, execs[owner(WEB)].placed) == ([owner(WEB)], 2, 2)
    assert execs[owner(WEB)].seconds == 0.03, "the longest of both"
    assert node.metrics() == [f"corepin_agent_execs_total{LABELS} 2.0"]
    last = CPUSet([max(OWN)])
    assert node.moved == [(pid, CGROUPS[owner(WEB)], last, None) for pid in (3, 2)]


def test_exec_that_has_ended_is_counted_and_not_placed(node: Node) -> None:
    """An exec that has exited before its move is counted and not moved."""
    node.exited.add(7)
    node.watch.started(StartedExec(WEB_ID, 7))
    found = node.watch.execs[owner(WEB)]
    assert (found.entered, found.placed, found.seconds) == (1, 0, None)


@pytest.mark.parametrize(
    ("affinity", "state"),
    [
        pytest.param(None, STATE, id="as-the-default-says"),
        pytest.param(ExecAffinity.NONE, STATE, id="as-the-operator-says"),
        pytest.param(ExecAffinity.LAST, replace(STATE, observes=True), id="observing"),
    ],
)
def test_execs_are_not_moved_without_the_option(affinity: ExecAffinity | None, state: NodeState) -> None:
    """Without the option, or while observing, no process is moved."""
    node = Node(affinity)
    node.watch.follow(state)
    node.watch.started(StartedExec(WEB_ID, 3))
    assert (node.moved, node.watch.execs[owner(WEB)].entered) == ([], 1)


def moved_to(cpus: str) -> NodeState:
    """Return the state in which the exclusive container has other CPUs."""
    web = next(pod for pod in STATE.pods if pod.name == "web")
    moved = replace(web, containers=(replace(web.containers[0], cpus=CPUSet.parse(cpus)),))
    return replace(STATE, pods=(moved, *(pod for pod in STATE.pods if pod.name != "web")))


def followed(node: Node, state: NodeState) -> list[int]:
    """Return the processes that are moved because of a state."""

    async def scenario() -> None:
        async with background(node.watch.run()):
            node.moved.clear()
            node.watch.follow(state)
            await turns(40)

    asyncio.run(scenario())
    return [pid for pid, *_ in node.moved]


def test_running_execs_are_moved_with_their_container(node: Node) -> None:
    """A process is identified by pid and start time, and removed once it has exited."""
    for pid in (3, 4):
        node.watch.started(StartedExec(WEB_ID, pid))
    node.exited.add(4)
    assert followed(node, STATE) == [], "it has the same CPUs"
    assert followed(node, moved_to("5-6")) == [3]
    assert node.moved == [(3, CGROUPS[owner(WEB)], CPUSet([6]), 1003)]
    node.exited.clear()
    assert followed(node, moved_to("3-4")) == [3]
    assert followed(node, replace(moved_to("3-5"), observes=True)) == []
    assert followed(node, moved_to("5-6")) == [], "an observing agent moves none, and remembers none"


def test_processes_of_a_container_that_ended_in_the_meantime_are_not_moved(node: Node) -> None:
    """A state may drop the container while its processes wait to be moved."""
    for pid in (3, 4):
        node.watch.started(StartedExec(WEB_ID, pid))
    node.on_sleep = lambda: node.watch.follow(EMPTY_NODE)
    assert followed(node, moved_to("5-6")) == []


def test_number_of_remembered_processes_is_limited(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest are dropped, so that frequent probes do not fill the memory."""
    monkeypatch.setattr(module, "MOST_KEPT", 2)
    for pid in (3, 4, 5):
        node.watch.started(StartedExec(WEB_ID, pid))
    assert followed(node, moved_to("5-6")) == [4, 5]


def test_moves_take_a_bounded_share_of_the_event_loop(node: Node) -> None:
    """Moves are limited to a share of the event loop: execs beyond it are counted at once and moved later."""
    node.cost = 0.03  # CPU time of each move
    for pid in range(3, 8):
        node.watch.started(StartedExec(WEB_ID, pid))
    found = node.watch.execs[owner(WEB)]
    assert (found.entered, found.placed) == (5, 2), "after 0.06 s of work in a moment"
    assert followed(node, STATE) == [5, 6, 7]
    assert [round(pause, 6) for pause in node.pauses] == [0.2, 0.6, 0.6]
    found = node.watch.execs[owner(WEB)]
    assert (found.entered, found.placed, found.seconds) == (5, 5, 0.07)
    assert followed(node, moved_to("5-6")) == [3, 4, 5, 6, 7], "none is forgotten when a container is moved"
    assert node.watch.execs[owner(WEB)].placed == 5, "each is counted once"


@pytest.mark.parametrize("between", [False, True])
def test_execs_of_one_container_do_not_use_up_the_moves_of_others(between: bool) -> None:
    """Frequent or slow execs of one container do not use up the time for moves of another one."""
    node = Node()
    node.watch.follow(BOTH)
    node.cost = 0.005
    for number in range(90):
        node.now += 1 / 60
        node.watch.started(StartedExec(WEB_ID, 100 + number))
        if between:
            node.now += 1 / 60
        if number >= 60 and number % 3 == 1:
            node.watch.started(StartedExec(OTHER_ID, number))
        if not between:
            node.now += 1 / 60
    found = node.watch.execs
    assert (found[owner(OTHER)].entered, found[owner(OTHER)].placed) == (10, 10)
    assert found[owner(WEB)].entered == 90
    assert 0 < found[owner(WEB)].placed < 60, "it takes its own share alone"


def test_containers_take_turns_while_the_node_has_no_time_for_moves() -> None:
    """While moves are limited containers take turns, so that one exec does not wait for many of another container."""
    node = Node()
    node.watch.follow(BOTH)
    node.cost = 0.12
    for pid in (3, 4, 5, 6):
        node.watch.started(StartedExec(WEB_ID, pid))
    node.watch.started(StartedExec(OTHER_ID, 7))
    assert [pid for pid, *_ in node.moved] == [3]
    assert followed(node, BOTH) == [7, 4, 5, 6]
    assert [it.placed for it in node.watch.execs.values()] == [4, 1]


def test_new_execs_do_not_overtake_those_that_wait(node: Node) -> None:
    """New execs do not overtake waiting ones, so that frequent execs cannot use up the time."""
    node.cost = 0.06
    for pid in (3, 4):
        node.watch.started(StartedExec(WEB_ID, pid))
    node.now += 10
    node.watch.started(StartedExec(WEB_ID, 5))
    assert followed(node, STATE) == [4, 5]


def test_waiting_exec_is_identified_by_its_start(node: Node) -> None:
    """A waiting exec is identified by its start time; an exited one does not wait."""
    node.cost = 0.06
    node.exited.add(5)
    for pid in (3, 4, 5, 6):
        node.watch.started(StartedExec(WEB_ID, pid))
    node.exited = {6}
    assert followed(node, STATE) == [4]
    assert node.moved == [(4, CGROUPS[owner(WEB)], CPUSet([max(OWN)]), 1004)]
    found = node.watch.execs[owner(WEB)]
    assert (found.entered, found.placed) == (4, 2)
    assert followed(node, moved_to("5-6")) == [3, 4], "the others are forgotten"


def test_number_of_waiting_processes_is_limited(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest are dropped, so that execs faster than moves do not fill the memory."""
    monkeypatch.setattr(module, "MOST_KEPT", 2)
    node.cost = 0.06
    for pid in range(3, 9):
        node.watch.started(StartedExec(WEB_ID, pid))
    assert followed(node, STATE) == [7, 8]
    assert node.watch.execs[owner(WEB)].placed == 3


def test_waiting_processes_of_a_container_that_ended_are_not_moved(node: Node) -> None:
    """When a container ends, its processes and the CPU time of its moves are forgotten."""
    node.cost = 0.06
    for pid in (3, 4):
        node.watch.started(StartedExec(WEB_ID, pid))
    assert followed(node, EMPTY_NODE) == []
    node.watch.follow(STATE)
    node.watch.started(StartedExec(WEB_ID, 5))
    assert node.watch.execs[owner(WEB)].placed == 1


def test_removed_container_has_no_series(node: Node) -> None:
    """Counts and series are removed with the container."""
    node.watch.started(StartedExec(WEB_ID, 3))
    node.watch.follow(EMPTY_NODE)
    assert (node.watch.execs, node.metrics()) == ({}, [])


def test_counts_are_in_the_agents_state(node: Node) -> None:
    """The state has the count, the CPUs of the processes and the longest delay."""
    node.watch.started(StartedExec(WEB_ID, 3))
    state = replace(STATE, execs=node.watch.execs)
    found = {pod.name: pod.containers["main"].execs for pod in agent_state(state).pods}
    assert found["plain"] is None
    assert found["web"]
    assert (found["web"].count, found["web"].placed, found["web"].seconds) == (1, 1, 0.03)
    assert (found["web"].cpus, found["web"].time) == (str(max(OWN)), node.watch.execs[owner(WEB)].when)


def counted(node: Node) -> str:
    """Return the metric that says whether execs are counted."""
    lines = generate_latest(node.registry).decode().splitlines()
    return next(line for line in lines if line.startswith("corepin_agent_execs_counted ")).split()[1]


async def test_whether_execs_are_counted_is_published(node: Node) -> None:
    """The socket and a metric say whether the runtime reports execs, because a missing count is not 0."""
    seen = [(node.watch.reason, counted(node))]
    node.on_sleep = lambda: seen.append((node.watch.reason, counted(node)))
    running = asyncio.create_task(node.watch.run())
    await turns()
    seen.append((node.watch.reason, counted(node)))
    for problem in (Refused("INTERNAL"), DecodeError("no event"), Unimplemented("unknown service")):
        await node.events.waiting.put(problem)
    await running
    seen.append((node.watch.reason, counted(node)))
    for state in (EMPTY_NODE, STATE):
        node.watch.follow(state)
        seen.append((node.watch.reason, counted(node)))
    assert seen == [
        (None, "NaN"),
        ("", "1.0"),
        ("INTERNAL", "0.0"),
        ("the count crashed, see the agent's log", "0.0"),
        ("the runtime does not report them: unknown service", "0.0"),
        (None, "NaN"),
        ("the runtime does not report them: unknown service", "0.0"),
    ]
    assert agent_state(replace(STATE, execs_reason="it restarts")).execs_reason == "it restarts"


def test_containers_in_machines_are_not_counted() -> None:
    """Execs of containers in virtual machines are not counted, because they run in the guest."""
    assert list(exec_targets(replace(STATE, cgroups={}), ExecAffinity.LAST)) == []


@pytest.mark.parametrize(
    ("affinity", "noise", "shares", "cpus"),
    [
        pytest.param(None, "quiet", "true", "shared", id="default"),
        pytest.param(None, "quiet", "false", "", id="no shared CPUs"),
        pytest.param(None, "none", "true", "", id="not quiet"),
        pytest.param(ExecAffinity.NONE, "quiet", "true", "", id="the operator wants none"),
        pytest.param(ExecAffinity.LAST, "quiet", "true", "last", id="the operator wants the last"),
    ],
)
def test_execs_of_quiet_containers_run_on_the_shared_set_by_default(
    affinity: ExecAffinity | None, noise: str, shares: str, cpus: str
) -> None:
    """Execs of quiet containers are moved to shared CPUs by default, if the container may use them."""
    words = {**EXCLUSIVE, "noise-policy.corepin.io/pod": noise, "shared-cpus.corepin.io/pod": shares}
    state = state_of(bound("web", container("main", 2), annotations=words))
    (web,) = state.pods
    main = replace(web.containers[0], others=CPUSet([0]) if shares == "true" else EMPTY)
    state = replace(state, pods=(replace(web, containers=(main,)),), cgroups=CGROUPS)
    ((_, target),) = exec_targets(state, affinity)
    places = {"shared": CPUSet([0]), "last": CPUSet([max(main.cpus)]), "": EMPTY}
    assert target.cpus == places[cpus]


async def turns(number: int = 20) -> None:
    """Let the watch run."""
    for _ in range(number):
        await asyncio.sleep(0)


async def test_stream_is_open_only_while_there_are_exclusive_containers() -> None:
    """The stream ends with the last exclusive container and begins with the next."""
    node, seen = Node(), []
    async with background(node.watch.run()):
        for state in (EMPTY_NODE, STATE, STATE, EMPTY_NODE, STATE):
            node.watch.follow(state)
            await turns()
            seen.append((node.events.asked, node.events.ended))
        await node.events.waiting.put(StartedExec(WEB_ID, 3))
        await turns()
        assert node.watch.execs[owner(WEB)].entered == 1
    await turns()
    assert node.events.ended == 2
    assert seen == [(0, 0), (1, 0), (1, 0), (1, 1), (2, 1)]


@pytest.mark.parametrize(
    ("problem", "logged"),
    [
        pytest.param(Unavailable("it restarts"), "execs are not counted", id="the-runtime-restarts"),
        pytest.param(DecodeError("no event"), "count of execs crashed", id="an-event-cannot-be-read"),
    ],
)
async def test_stream_that_ends_is_opened_again(
    node: Node, caplog: pytest.LogCaptureFixture, problem: Exception, logged: str
) -> None:
    """If the event stream ends it is opened again after a pause, and the agent continues."""
    async with background(node.watch.run()):
        await node.events.waiting.put(problem)
        await node.events.waiting.put(StartedExec(WEB_ID, 3))
        await turns(40)
        assert (node.events.asked, node.pauses) == (2, [module.RETRY_SECONDS])
        assert node.watch.execs[owner(WEB)].entered == 1
    assert caplog.messages == [logged]


async def test_errors_are_retried_with_backoff(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """Pauses grow up to 300 seconds, and an event or a restart resets them."""
    async with background(node.watch.run()):
        for problem in [Refused("INTERNAL: stream reset")] * 8:
            await node.events.waiting.put(problem)
        await turns(100)
        assert node.pauses == [5, 10, 20, 40, 80, 160, 300, 300]
        await node.events.waiting.put(Unavailable("it restarts"))
        await node.events.waiting.put(Refused("UNKNOWN"))
        await node.events.waiting.put(StartedExec(WEB_ID, 3))
        await node.events.waiting.put(Refused("UNKNOWN"))
        await turns(60)
        assert node.pauses[8:] == [5, 10, 5]
        assert node.watch.execs[owner(WEB)].entered == 1
    assert set(caplog.messages) == {"execs are not counted"}


async def test_runtime_without_exec_events_is_not_retried(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """A runtime without exec events, such as CRI-O, is not asked again."""
    caplog.set_level("INFO")
    await node.events.waiting.put(Unimplemented("unknown service"))
    await node.watch.run()
    assert caplog.messages == ["runtime reports no execs, none are counted"]
