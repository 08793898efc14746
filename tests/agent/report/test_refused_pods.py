"""Pod annotations that the API server refuses: other pods are unaffected, and retries have backoff."""

from __future__ import annotations

from contextlib import suppress

import httpx
import pytest

from agent.clock import Clock
from agent.node_state import NodeState
from agent.report.pod_status import PodReport
from agent.report.publisher import Later
from apiserver.errors import Failed, Refused, Unavailable
from pinning.contract import STATUS_CPUS
from pinning.pods.types import Pod
from tests.agent.fake_api import FakeApiServer, api_of
from tests.agent.states import EXCLUSIVE, bound, source, state_of
from tests.pods import container


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
