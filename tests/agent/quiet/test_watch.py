"""The noise watch: its containers, its rounds, and what it reports."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from agent.node_state import ContainerNoise, KeptInterrupts, NoiseLevel
from agent.quiet.level import HOLD_SECONDS, LevelPublisher, Watched, next_level
from agent.quiet.noise_metrics import NoiseMetrics
from agent.quiet.sample import Places
from agent.quiet.watch import NoiseWatch, measured_containers
from agent.serve.state_json import agent_state
from pinning.contract import NoiseKind
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import Owner
from published.pod_status import Noise
from tests.agent.states import EXCLUSIVE, ISOLATE, bound, owner, state_of
from tests.pods import container

if TYPE_CHECKING:
    from agent.node_state import NodeState


WEB = bound("web", container("main", 1), annotations=ISOLATE)
PLAIN = bound("plain", container("main", 1))
STATE = replace(state_of(WEB, PLAIN), cgroups={owner(WEB): "/web"})
LABELS = '{container="main",namespace="default",pod="web"}'


def test_interrupts_that_stay_go_with_their_container() -> None:
    """The interrupts that stay on a container's CPUs are those found by the last round of quiet CPUs."""
    (pod,) = (it for it in STATE.pods if it.name == "web")
    kept = KeptInterrupts(CPUSet([1]), frozenset({"25"}))
    containers = (replace(pod.containers[0], kept=kept),)
    state = replace(STATE, pods=(replace(pod, containers=containers),))
    assert [it.kept for it in measured_containers(state)] == [frozenset({"25"})]
    assert [it.kept for it in measured_containers(STATE)] == [frozenset()]


class Counted:
    """A watch on files in the kernel's format."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.registry = CollectorRegistry()
        self.now = 0.0
        self.cost = iter(range(100))
        places = Places(root, root / "interrupts", lambda _: [])
        metrics = NoiseMetrics(self.registry)
        self.watch = NoiseWatch(places, metrics, lambda: self.now, lambda: float(next(self.cost)))
        self.interrupts(0)

    def interrupts(self, count: int | None) -> None:
        """Write the count of a device's interrupts on each CPU; None: the file is masked."""
        names, row = (" ".join(it) for it in ([f"CPU{cpu}" for cpu in range(8)], [str(count)] * 8))
        (self.root / "interrupts").write_text("" if count is None else f"{names}\n25: {row} eth0\n")

    def count(self, state: NodeState | None = STATE) -> float:
        """Run one round."""
        self.now += 10.0
        return asyncio.run(self.watch.count(state))

    def metric(self, name: str) -> float | None:
        """Return the value of one of the container's counters."""
        lines = generate_latest(self.registry).decode().splitlines()
        values = [
            line.rpartition(" ")[2] for line in lines if line.startswith(f"corepin_agent_noise_{name}_total")
        ]
        return float(values[0]) if values else None


@pytest.fixture
def counted(tmp_path: Path) -> Counted:
    """Return a watch without any round."""
    return Counted(tmp_path)


def test_containers_with_exclusive_cpus_are_counted() -> None:
    """The measured CPUs include idle siblings; shared containers are left out."""
    share = bound("share", container("main", 1), annotations={"cpu-manager.corepin.io/pod": "share"})
    state = state_of(WEB, PLAIN, share, bound("two", annotations=EXCLUSIVE))
    found = {it.owner: it for it in measured_containers(state)}

    assert set(found) == {owner(WEB), Owner("two", "main")}
    assert found[owner(WEB)][1:4] == (CPUSet([3]), CPUSet([7]), "")


def test_all_rounds_run_in_one_thread(counted: Counted) -> None:
    """Rounds use no other free thread, because each would keep the memory of the tables that it read."""
    used = set()

    def cpu_time() -> float:
        used.add(threading.get_ident())
        return 0.0

    async def rounds() -> None:
        together = threading.Barrier(4)  # starts threads for other work
        await asyncio.gather(*(asyncio.to_thread(together.wait, 30) for _ in range(4)))
        for _ in range(8):
            await counted.watch.count(STATE)

    counted.watch.cpu_time = cpu_time
    asyncio.run(rounds())
    assert len(used) == 1


def test_counts_are_reported_from_the_second_round_on(counted: Counted) -> None:
    """The socket has the counts of the last round, metrics the total."""
    counted.count()
    assert (counted.watch.noise, counted.metric("interrupts")) == ({}, None)
    counted.interrupts(5)
    counted.count()
    counted.interrupts(8)
    counted.count()

    state = agent_state(replace(STATE, noise=counted.watch.noise))
    shown = {pod.name: pod.containers["main"].noise for pod in state.pods}
    assert isinstance(shown["web"], Noise)
    assert (shown["web"].seconds, shown["web"].interrupts, shown["plain"]) == (10.0, 6, None)
    assert counted.metric("interrupts") == 16
    assert counted.metric("cpu_seconds") == 3


def test_series_of_an_unknown_count_is_removed(counted: Counted) -> None:
    """If a count is unknown its series is removed, because a constant would look like a quiet machine."""
    counted.count()
    counted.count()
    assert counted.metric("interrupts") == 0
    counted.interrupts(None)
    counted.count()
    assert counted.metric("interrupts") is None
    counted.interrupts(9)
    counted.count()
    counted.count()
    assert counted.metric("interrupts") == 0


class Told:
    """A publisher that records the states."""

    def __init__(self) -> None:
        self.states: list[NodeState] = []

    def submit(self, state: NodeState) -> None:
        """Record a state."""
        self.states.append(state)

    def paused(self) -> AbstractContextManager[None]:
        """Pause nothing."""
        return nullcontext()

    async def run(self) -> None:
        """Publish nothing."""


def test_changed_level_is_published_with_the_last_state(counted: Counted) -> None:
    """A changed noise level is published at once; a container that is not measured has none."""
    counted.watch.limits = ((NoiseKind.INTERRUPTS, 0.5),)
    told, rounds = Told(), iter(range(1, 5))
    publisher = LevelPublisher(told, lambda: counted.watch.levels)
    publisher.submit_again()  # there is no state yet
    publisher.submit(STATE)

    async def sleep(_: float) -> None:
        if (number := next(rounds, None)) is None:
            raise asyncio.CancelledError
        counted.now += 10.0
        counted.interrupts(6 * number)

    states = iter([STATE, STATE, STATE, None])
    counted.watch.sleep = sleep
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(counted.watch.run(lambda: next(states), publisher.submit_again))

    levels = [{pod.name: pod.containers[0].noise for pod in state.pods} for state in told.states]
    assert [it["web"] and it["web"].kind for it in levels] == [None, NoiseKind.INTERRUPTS, None]
    assert {it["plain"] for it in levels} == {None}
    with publisher.paused():
        asyncio.run(publisher.run())


@pytest.mark.parametrize("state", [None, state_of(PLAIN)], ids=["no state yet", "no exclusive CPU"])
def test_without_exclusive_cpus_nothing_is_read(counted: Counted, state: NodeState | None) -> None:
    """No file is read, and earlier counts are removed."""
    counted.count()
    counted.count()
    (counted.root / "interrupts").unlink()

    assert counted.count(state) == 0.0
    assert (counted.watch.noise, counted.metric("interrupts")) == ({}, None)


def test_rounds_rest_in_proportion_to_their_cost(counted: Counted) -> None:
    """After a round the watch pauses for 500 times its CPU time, and for ten seconds after a crash."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 4:
            raise asyncio.CancelledError

    states = iter([STATE, None, STATE])
    counted.watch.sleep = sleep

    def newest() -> NodeState | None:
        state = next(states)
        if state is None:
            raise RuntimeError("a bug")
        return state

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(counted.watch.run(newest, lambda: None))
    assert waits == [10.0, 500.0, 10.0, 500.0]


LIMITS = ((NoiseKind.INTERRUPTS, 1.0), (NoiseKind.WAIT, 5.0))
QUIET = ContainerNoise(10.0, 10, 900, 0.05, 9, 9)
INTERRUPTED = QUIET._replace(interrupts=11)
WAITING = QUIET._replace(wait_seconds=0.051)
BOTH = INTERRUPTED._replace(wait_seconds=9.0)
MASKED = QUIET._replace(interrupts=None)
LATE = HOLD_SECONDS
BY_INTERRUPTS = NoiseLevel(NoiseKind.INTERRUPTS, "then")
BY_WAIT = NoiseLevel(NoiseKind.WAIT, "now")
BY_NOTHING = NoiseLevel(None)


@pytest.mark.parametrize(
    ("before", "noise", "now", "level"),
    [
        pytest.param(None, QUIET, 0.0, None, id="one quiet round says nothing"),
        pytest.param(None, WAITING, 0.0, BY_WAIT, id="one noisy round does"),
        pytest.param(None, BOTH, 0.0, BY_INTERRUPTS._replace(since="now"), id="the first kind"),
        pytest.param(Watched(None, 0.0), QUIET, LATE - 1, None, id="not yet for ten minutes"),
        pytest.param(Watched(None, 0.0), QUIET, LATE, BY_NOTHING, id="quiet for ten minutes"),
        pytest.param(Watched(None, 0.0), MASKED, LATE, None, id="what is not known is not quiet"),
        pytest.param(Watched(None, 0.0), WAITING, 10.0, BY_WAIT, id="noisy later"),
        pytest.param(Watched(BY_INTERRUPTS, 0.0), INTERRUPTED, LATE, BY_INTERRUPTS, id="it goes on"),
        pytest.param(Watched(BY_INTERRUPTS, 0.0), MASKED, LATE, BY_INTERRUPTS, id="it is not known to end"),
        pytest.param(Watched(BY_INTERRUPTS, 0.0), QUIET, LATE - 1, BY_INTERRUPTS, id="it pauses"),
        pytest.param(Watched(BY_INTERRUPTS, 0.0), QUIET, LATE, BY_NOTHING, id="it ended"),
        pytest.param(
            Watched(BY_INTERRUPTS, 0.0), WAITING, LATE - 1, BY_INTERRUPTS, id="another kind beside it"
        ),
        pytest.param(Watched(BY_INTERRUPTS, 0.0), WAITING, LATE, BY_WAIT, id="another kind alone"),
        pytest.param(Watched(BY_NOTHING, 0.0), WAITING, LATE - 1, BY_NOTHING, id="it ended a moment ago"),
        pytest.param(Watched(BY_NOTHING, 0.0), WAITING, LATE, BY_WAIT, id="noisy again"),
        pytest.param(Watched(BY_NOTHING, 0.0), QUIET, LATE, BY_NOTHING, id="quiet still"),
    ],
)
def test_level_follows_the_counts(
    before: Watched | None, noise: ContainerNoise, now: float, level: NoiseLevel | None
) -> None:
    """A noise level begins at once above the limit, and ends after ten minutes below it."""
    assert next_level(before, noise, LIMITS, now, "now").level == level


def test_nothing_is_noisy_without_limits() -> None:
    """When the operator removes all limits, a container's noise level is cleared."""
    first = next_level(None, INTERRUPTED, (), 0.0, "now")
    assert (first.level, next_level(first, INTERRUPTED, (), LATE, "now").level) == (None, BY_NOTHING)


ROUNDS = st.lists(
    st.tuples(
        st.sampled_from([10.0, 200.0, 700.0]), st.sampled_from([QUIET, INTERRUPTED, WAITING, BOTH, MASKED])
    ),
    max_size=40,
)


@given(ROUNDS)
def test_level_changes_at_most_once_in_ten_minutes(rounds: list[tuple[float, ContainerNoise]]) -> None:
    """The noise level changes at most once in ten minutes, for any counts and lengths of rounds."""
    watched: Watched | None = None
    now, changes = 0.0, []
    for seconds, noise in rounds:
        now += seconds
        level = watched.level if watched else None
        watched = next_level(watched, noise, LIMITS, now, str(now))
        if watched.level != level:
            changes.append(now)
    assert all(later - earlier >= HOLD_SECONDS for earlier, later in pairwise(changes))
