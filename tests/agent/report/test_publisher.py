"""Failed reports are retried with backoff, and pods that the API server refuses do not affect others."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

import httpx
import pytest

from agent.clock import Clock
from agent.metrics import Metrics
from agent.node_state import NodeState
from agent.report.object_backoff import BETWEEN_SECONDS, FIRST_SECONDS, LONGEST_SECONDS, ObjectBackoff
from agent.report.pod_status import PodReport
from agent.report.publisher import Later, Publisher
from agent.report.turns import next_turn
from apiserver.backoff import LONGEST_ASKED
from apiserver.errors import Busy, Failed, Refused, Unavailable
from pinning.contract import STATUS_CPUS
from pinning.pods.types import Pod
from tests.agent.fake_api import FakeApiServer, api_of
from tests.agent.states import EXCLUSIVE, bound, source, state_of
from tests.environments.waiting import background
from tests.pods import container

STATE = state_of()


class Reporter:
    """Raises the given failures first, then succeeds."""

    def __init__(self, failures: Sequence[Exception]) -> None:
        self.failures = list(failures)
        self.done = asyncio.Event()

    async def publish(self, state: NodeState) -> None:
        """Accept a state, or raise the next failure."""
        assert state is STATE
        if self.failures:
            raise self.failures.pop(0)
        self.done.set()

    async def reset(self) -> None:
        """Do nothing."""


def waits(*failures: Exception, metrics: Metrics | None = None) -> list[float]:
    """Return the waits after each failure of one reporter."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def main() -> None:
        reporter = Reporter(failures)
        publisher = Publisher([reporter], metrics or Metrics(), sleep)
        publisher.submit(STATE)
        async with background(publisher.run()):
            async with asyncio.timeout(60):
                await reporter.done.wait()

    asyncio.run(main())
    return slept


def test_published_state_is_not_published_again() -> None:
    """A state that was published without a failure is not published again."""
    assert waits() == []


@pytest.mark.parametrize(
    ("failure", "least", "most"),
    [
        pytest.param(Busy("429", 7), 7, 8.4, id="asked for 7 s"),
        pytest.param(Busy("429", 86400), LONGEST_ASKED, 1.2 * LONGEST_ASKED, id="asked for a day"),
        pytest.param(Busy("500"), 0.25, 0.5, id="asked for nothing"),
        pytest.param(Refused("403"), 0.25, 0.5, id="refused"),
        pytest.param(KeyError("bug"), 0.25, 0.5, id="crashed"),
    ],
)
def test_failed_report_is_retried_after_retry_after_or_backoff(
    failure: Exception, least: float, most: float
) -> None:
    """A failed report is retried after Retry-After, up to two minutes, or after a short backoff."""
    [wait] = waits(failure)
    assert least <= wait <= most


@pytest.mark.parametrize(("failure", "count"), [(Later("a"), None), (Refused("no"), 1.0)])
def test_later_is_not_counted_as_an_error(failure: Exception, count: float | None) -> None:
    """Waiting for a pod that the watch has not shown yet is not counted as an error."""
    metrics = Metrics()
    assert waits(failure, metrics=metrics)
    name = "corepin_agent_report_errors_total"
    assert metrics.registry.get_sample_value(name, {"reporter": "Reporter"}) == count


class Picky:
    """Records every state and refuses a part of it."""

    def __init__(self) -> None:
        self.published: list[NodeState] = []
        self.taken = asyncio.Event()

    async def publish(self, state: NodeState) -> None:
        """Record a state and put a part of it off."""
        self.published.append(state)
        self.taken.set()
        raise Later("one pod is refused", 300.0, refused=1)

    async def reset(self) -> None:
        """Do nothing."""


async def test_new_state_does_not_wait_for_a_refused_part() -> None:
    """A new state is published at once while the refused part waits, and the gauge shows that part."""
    metrics, reporter = Metrics(), Picky()
    other = state_of(bound("a"))

    async def sleep(_: float) -> None:
        await asyncio.Event().wait()

    publisher = Publisher([reporter], metrics, sleep)
    async with background(publisher.run()):
        async with asyncio.timeout(60):
            for state in (STATE, other):
                publisher.submit(state)
                await reporter.taken.wait()
                reporter.taken.clear()
    assert reporter.published == [STATE, other]
    gauge = metrics.registry.get_sample_value("corepin_agent_reports_refused", {"reporter": "Picky"})
    assert gauge == 1


def test_retries_have_exponential_backoff() -> None:
    """Retries have exponential backoff."""
    found = waits(*[Refused("no")] * 6)
    assert found[-1] > 4 * found[0]


def test_turns_of_nodes_that_start_together_are_spread() -> None:
    """Of 3,000 nodes that start together at most 2 % write in the same hundredth of the interval."""
    times = [next_turn(f"node-{number}.example", 1234.5, 300.0) for number in range(3000)]
    parts = Counter(int((time - 1234.5) / 3) for time in times)
    assert all(1235.5 <= time < 1535.5 for time in times)
    assert (len(parts) >= 100, max(parts.values()) <= 60) == (True, True)


def test_a_node_has_one_turn_in_each_interval() -> None:
    """A node has one fixed time in each interval, whenever its agent started or wrote."""
    first = next_turn("node-1", 7.0, 300.0)
    assert next_turn("node-1", first - 1.0, 300.0) == first
    times = [first]
    for _ in range(5):
        times.append(next_turn("node-1", times[-1], 300.0))
    assert {round(after - before, 6) for before, after in pairwise(times)} == {300.0}


NO = Refused("422: no")


def test_changed_object_is_retried_first_but_not_always() -> None:
    """A changed object is retried before its backoff is over, and does not starve the others."""
    now = [0.0]
    backoff = ObjectBackoff(Clock(monotonic=lambda: now[0]))
    assert [backoff.refuse(key, NO, "1") for key in "ab"] == [True, True]
    now[0] = LONGEST_SECONDS
    assert backoff.turns({"a": "1", "b": "2"}) == ["b", "a"]
    assert not backoff.refuse("b", NO, "2")
    assert backoff.turns({"a": "1", "b": "3"}) == []
    now[0] += BETWEEN_SECONDS
    assert backoff.turns({"a": "1", "b": "3"}) == ["a", "b"]


def test_no_object_is_retried_before_its_backoff_is_over() -> None:
    """Objects that were written or are no longer reported are not retried."""
    now = [0.0]
    backoff = ObjectBackoff(Clock(monotonic=lambda: now[0]))
    assert backoff.turns({}) == []
    for key in "abc":
        backoff.refuse(key, NO)
    now[0] = FIRST_SECONDS / 3
    assert backoff.turns({}) == []
    now[0] = FIRST_SECONDS
    backoff.forget("a")
    backoff.keep({"c"})
    assert backoff.turns({}) == ["c"]


def refusing(code: int, *pods: Pod) -> FakeApiServer:
    """Return a server that refuses patches of these pods."""
    server = FakeApiServer.with_pods(*pods)
    server.refused = {str((pod["metadata"] or {})["name"]): httpx.Response(code) for pod in pods}
    return server


async def publish(report: PodReport, state: NodeState) -> None:
    """Publish a state of which some pods may be refused."""
    with suppress(Later):
        await report.publish(state)


@pytest.mark.parametrize(
    ("code", "tried", "error"),
    [
        pytest.param(422, 2, Later, id="refused"),
        pytest.param(413, 2, Later, id="too large"),
        pytest.param(403, 2, Later, id="forbidden"),
        pytest.param(409, 2, Later, id="another pod of that name"),
        pytest.param(500, 2, Later, id="its webhook fails"),
        pytest.param(503, 1, Unavailable, id="out of reach"),
        pytest.param(401, 1, Unavailable, id="no valid token"),
        pytest.param(404, 2, None, id="gone"),
    ],
)
async def test_one_pod_that_fails_costs_the_others_nothing(
    code: int, tried: int, error: type[Exception] | None
) -> None:
    """Other pods are written if one is refused; an unreachable server ends the round; both are retried."""
    pods = [bound(name, container("main", 1), annotations=EXCLUSIVE) for name in "ab"]
    server = FakeApiServer.with_pods(*pods)
    server.failures = [code]
    now = [0.0]
    async with api_of(server) as api:
        report = PodReport(api, "node-1", source(*pods), Clock(monotonic=lambda: now[0]))
        if error is None:
            await report.publish(state_of(*pods))
        else:
            with pytest.raises(error):
                await report.publish(state_of(*pods))
        assert api.requests == tried
        now[0] = 10.0
        await report.publish(state_of(*pods))
        assert report.writes == 2


@pytest.mark.parametrize("code", [422, 500])
async def test_refused_pods_together_are_tried_seldom(code: int, caplog: pytest.LogCaptureFixture) -> None:
    """Retries of all refused pods are limited to one in five seconds, and each pod is logged once."""
    names = [f"p{number}" for number in range(40)]
    pods = [bound(name, container("main", 99), annotations=EXCLUSIVE) for name in names]
    server, now = refusing(code, *pods), [0.0]
    state = state_of(*pods)
    async with api_of(server) as api:
        report = PodReport(api, "node-1", source(*pods), Clock(monotonic=lambda: now[0]))
        while len(server.calls) < len(names):
            with suppress(Later, Unavailable):
                await report.publish(state)
        for second in range(1, 1001):
            now[0] = float(second)
            await publish(report, state)
    assert len(server.calls) <= len(names) + 1000 / 5
    assert caplog.messages.count("pod status not written") == len(names)


async def test_changed_pod_is_retried_before_its_backoff_is_over() -> None:
    """A refused pod with a new version is retried after seconds, although its backoff is minutes."""
    server, now = refusing(422, bound("a")), [0.0]

    def pod_of_version(version: str) -> Pod:
        return bound("a", annotations=EXCLUSIVE, resourceVersion=version)

    async with api_of(server) as api:
        pods = source(pod_of_version("7"))
        report = PodReport(api, "node-1", pods, Clock(monotonic=lambda: now[0]))
        tried = 0
        while now[0] < 1800 or len(server.calls) == tried:  # until its backoff is long and has just ended
            tried = len(server.calls)
            now[0] += 10
            await publish(report, state_of(pod_of_version("7")))
        tried, server.refused = len(server.calls), {}
        assert tried < 20
        now[0] += 6
        await publish(report, state_of(pod_of_version("7")))
        assert len(server.calls) == tried
        pods.shown = source(pod_of_version("8")).shown
        await report.publish(state_of(pod_of_version("8")))
        assert report.writes == 1


async def test_all_pods_are_written_after_the_server_recovers() -> None:
    """After two failures the round ends; once a write succeeds all pods are written."""
    names = [f"p{number}" for number in range(6)]
    pods = [bound(name, container("main", 99), annotations=EXCLUSIVE) for name in names]
    server, now = refusing(500, *pods), [0.0]
    async with api_of(server) as api:
        report = PodReport(api, "node-1", source(*pods), Clock(monotonic=lambda: now[0]))
        for round_ in range(3):
            with pytest.raises(Unavailable):
                await report.publish(state_of(*pods))
            assert api.requests == 2 * round_ + 2
        server.refused, now[0] = {}, 31.0
        await report.publish(state_of(*pods))
        assert report.writes == len(names)


@pytest.mark.parametrize("code", [403, 422, 500])
async def test_reset_goes_on_after_a_pod_that_is_refused(code: int) -> None:
    """A reset continues after a pod whose patch is refused, and reports that an annotation is left."""
    pods = [bound(name, annotations={STATUS_CPUS: "{}"}) for name in "abc"]
    server = FakeApiServer.with_pods(*pods)
    server.refused = {"a": httpx.Response(code)}
    async with api_of(server) as api:
        with pytest.raises((Failed, Refused)):
            await PodReport(api, "node-1", source()).reset()
    left = [path for path, pod in server.objects.items() if STATUS_CPUS in pod["metadata"]["annotations"]]
    assert left == ["/api/v1/namespaces/default/pods/a"]
