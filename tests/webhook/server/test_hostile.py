"""Hostile requests: none takes the memory, the time or the log lines of other clients."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from pinning.planning.observed import SeenPod
from pinning.pods.crowd import MOST_CONTAINERS
from tests.pods import CORES, CPU_MANAGER, DEDICATED, LAUNCHER, OTHER_CORES, container, pod
from tests.webhook.clients import CA, client, connected, ended, request_head, tls_flags
from tests.webhook.edge import Edge
from tests.webhook.mounted import Mounted, pair
from tests.webhook.requests import RULES, request
from tests.webhook.reviews import review
from tests.webhook.serving import PATIENCE_SECONDS, Server, serving
from webhook.review.app import LOGGED_LENGTH
from webhook.review.bodies import BODY_LIMIT
from webhook.review.handler import MOST_JUDGED
from webhook.review.response import Allowed, Denied
from webhook.review.wire import LONGEST_UID
from webhook.rules.part_reader import LARGE, MOST
from webhook.server.connection import HEAD_LIMIT, REQUEST_LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONG = "x" * 100_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return a webhook that takes few connections."""
    secret = Mounted(tmp_path_factory.mktemp("hostile") / "tls", pair(CA))
    with serving(*tls_flags(secret), connections=4, request_seconds=PATIENCE_SECONDS) as running:
        yield running
        assert running.log.plain == []


# The members read from a request.


@pytest.mark.parametrize(
    "piece",
    [
        pytest.param(b"X-More: " + b"y" * 1000 + b"\r\n", id="headers without end"),
        pytest.param(b"y" * 1000, id="one header without end"),
    ],
)
def test_a_head_without_end_is_cut(piece: bytes, server: Server) -> None:
    """A head above 64 kB ends the connection."""
    before = server.resident_megabytes()
    with connected(server) as connection:
        connection.sendall(request_head(5)[:-2] + b"X-First: ")
        assert sent_until_cut(connection, piece, 4 * HEAD_LIMIT)
        assert ended(connection)
    assert server.resident_megabytes() - before < 8


def test_trailers_without_end_are_cut(server: Server) -> None:
    """Trailers after the last chunk count towards the limit of the head."""
    head = b"POST /mutate HTTP/1.1\r\nHost: w\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connected(server) as connection:
        connection.sendall(head + b"1\r\nx\r\n0\r\n")
        assert sent_until_cut(connection, b"X-More: " + b"y" * 65_000 + b"\r\n", 2 * REQUEST_LIMIT)


def sent_until_cut(connection: socket.socket, piece: bytes, limit: int) -> bool:
    """Send a piece again and again; return whether the server cut the connection before the limit."""
    with contextlib.suppress(OSError):
        for _ in range(limit // len(piece)):
            connection.sendall(piece)
        return ended(connection)
    return True


def test_a_body_of_nothing_but_brackets_is_not_read(server: Server) -> None:
    """A body of nothing but brackets is refused unread, since it would need hundreds of times its size in memory."""
    values = b"{}," * (2 * MOST.values + 1)
    body = review().replace(b'"containers": [', b'"containers": [' + values)
    assert LARGE < len(body) < BODY_LIMIT
    before = server.resident_megabytes()
    with client(server) as http:
        assert http.post("/mutate", content=body).json()["response"] == {"uid": "0b1c", "allowed": True}
        refused = http.post("/validate", content=body).json()["response"]["status"]["message"]
        assert "has more than 50000 lists and objects" in refused
        assert http.post("/mutate", content=review(padding=LARGE)).status_code == 200
    assert server.resident_megabytes() - before < 16


def test_idle_connections_make_room(server: Server) -> None:
    """At the limit of connections the one that has been idle for longest is closed for a new one."""
    with contextlib.ExitStack() as stack:
        server.wait_for_connections(0)
        idle = [stack.enter_context(connected(server)) for _ in range(4)]
        for connection in idle:
            answered(connection)
        answered(idle[0])
        newest = stack.enter_context(connected(server))
        answered(newest)
        assert ended(idle[1])
        answered(idle[0])
        server.wait_for_connections(4)


def test_idle_connections_are_closed_after_a_while(tmp_path: Path) -> None:
    """A connection on which nothing is asked for longer than the keep-alive time is closed, politely."""
    secret = Mounted(tmp_path / "tls", pair(CA))
    with serving(*tls_flags(secret), keep_alive_seconds=1) as server, connected(server) as connection:
        answered(connection)
        assert connection.recv(1) == b""
        server.wait_for_connections(0)


def test_slow_connections_make_room(server: Server) -> None:
    """If all connections are busy the one that has been busy for longest is closed."""
    with contextlib.ExitStack() as stack:
        server.wait_for_connections(0)
        slow = []
        for count in range(1, 5):
            slow.append(stack.enter_context(connected(server)))
            slow[-1].sendall(request_head(9) + b"x")
            server.wait_for_connections(count)
        with connected(server) as newest:
            answered(newest)
        assert ended(slow[0])


def answered(connection: socket.socket) -> None:
    """Send a review and read the whole answer."""
    body = review()
    connection.sendall(request_head(len(body)) + body)
    answer = b""
    while not answer.endswith(b"}}"):
        piece = connection.recv(65536)
        assert piece
        answer += piece


# What is made of it.


def crowd(count: int, asking: bool = False, **more: Any) -> Any:
    """Return a pod of many containers."""
    containers = [container(f"c{number}", "1") for number in range(count)]
    return pod(
        *containers[1:], init=containers[:1], annotations={CPU_MANAGER: "exclusive"} if asking else {}, **more
    )


def test_a_crowded_pod_is_refused_before_its_rules_run() -> None:
    """A pod with too many containers is refused before rules run, and not mutated; a stored one may be edited."""
    fits, crowded = crowd(MOST_JUDGED), crowd(MOST_JUDGED + 1)
    assert isinstance(RULES.validate(request(fits)), Allowed)
    answer = RULES.validate(request(crowded))
    assert isinstance(answer, Denied)
    assert [cause.field for cause in answer.causes] == ["spec.containers"]
    assert "1001 containers are more than the 1000" in answer.causes[0].message
    assert RULES.mutate(request(crowded)) == Allowed()
    edited = crowd(MOST_JUDGED + 1)
    edited["metadata"]["annotations"] = {"note": "x"}
    assert RULES.validate(request(edited, crowded, operation="UPDATE")) == Allowed()


ASKING = [
    pytest.param({"asking": True}, id="by annotation"),
    pytest.param({"labels": LAUNCHER, "nodeSelector": DEDICATED}, id="as a launcher"),
    *[
        pytest.param({"first": {name: "1"}}, id=name)
        for name in (CORES, OTHER_CORES, "corepin.io/isolated-cores")
    ],
]


def asking(count: int, first: Any = None, **more: Any) -> Any:
    """Return a pod of many containers that asks for CPUs."""
    document = crowd(count, **more)
    if first:
        document["spec"]["containers"][-1]["resources"] = {"limits": first, "requests": first}
    return document


@pytest.mark.parametrize("how", ASKING)
def test_a_pod_that_would_get_no_cpus_for_its_number_is_refused_at_admission(how: dict[str, Any]) -> None:
    """A pod of more than 200 containers, which the agent would not pin, is refused with the agent's reason."""
    for count in (MOST_CONTAINERS + 1, MOST_JUDGED + 1):
        crowded = asking(count, **how)
        answer = RULES.validate(request(crowded))
        assert isinstance(answer, Denied)
        (cause,), (agents,) = answer.causes, SeenPod.of(crowded).causes
        assert (cause.field, cause.message) == (
            agents.field,
            f"the pod has {count} containers; {agents.message}",
        )
        assert cause.message == (
            f"the pod has {count} containers; at most 200 may be in a pod that asks for CPUs of its own: use several pods"
        )
        assert RULES.mutate(request(crowded)) == Allowed()


@pytest.mark.parametrize("how", ASKING)
def test_as_many_containers_as_the_agent_reads_are_admitted(how: dict[str, Any]) -> None:
    """A pod of as many containers as the agent reads is admitted."""
    fits = asking(MOST_CONTAINERS, **how)
    answer = RULES.validate(request(fits))
    assert not isinstance(answer, Denied) or all("200" not in cause.message for cause in answer.causes)
    assert all("200" not in cause.message for cause in SeenPod.of(fits).causes)


@pytest.mark.parametrize("count", [MOST_CONTAINERS + 1, MOST_JUDGED + 1])
def test_a_crowded_pod_may_not_begin_to_ask_for_cpus(count: int) -> None:
    """An oversized pod may not begin to ask for CPUs; one that asked before may be edited, or stop asking."""
    plain, asks = crowd(count), crowd(count, asking=True)
    assert isinstance(RULES.validate(request(asks, plain, operation="UPDATE")), Denied)
    other = crowd(count, asking=True)
    other["metadata"]["annotations"] = {CPU_MANAGER: "share"}
    for new in (plain, asks, other):
        assert RULES.validate(request(new, asks, operation="UPDATE")) == Allowed()


def test_an_oversized_template_that_asks_for_cpus_is_warned_about() -> None:
    """An oversized template that asks for CPUs is one warning, and has its other warnings once it shrinks."""
    few, asks, plain = (
        {"spec": {"template": crowd(count, asking=how)}}
        for count, how in ((3, True), (MOST_CONTAINERS + 1, True), (MOST_CONTAINERS + 1, False))
    )
    for new, old, count in ((asks, few, 1), (asks, plain, 1), (asks, asks, 0), (plain, asks, 0)):
        answer = RULES.validate(request(new, old, kind=("apps", "Deployment"), operation="UPDATE"))
        assert isinstance(answer, Allowed)
        assert len(answer.warnings) == count
    few["spec"]["template"]["metadata"]["annotations"][CPU_MANAGER] = "banana"
    answer = RULES.validate(request(few, asks, kind=("apps", "Deployment"), operation="UPDATE"))
    assert isinstance(answer, Allowed)
    assert "banana" in answer.warnings[0]


def test_an_oversized_template_is_warned_about() -> None:
    """An oversized template is a warning, not a refusal."""
    new = {"spec": {"template": crowd(MOST_JUDGED + 1)}}
    for old, operation in ((None, "CREATE"), ({"spec": {"template": crowd(1)}}, "UPDATE")):
        answer = RULES.validate(request(new, old, kind=("apps", "Deployment"), operation=operation))
        assert isinstance(answer, Allowed)
        (warning,) = answer.warnings
        assert warning.startswith("spec.template.spec.containers: ")
    assert RULES.validate(request(new, new, kind=("apps", "Deployment"), operation="UPDATE")) == Allowed()


def test_answers_to_many_containers_do_not_fill_the_memory(tmp_path: Path) -> None:
    """The cache of decisions stays bounded for hundreds of pods with hundreds of containers."""
    with serving(*tls_flags(Mounted(tmp_path / "tls", pair(CA)))) as running, client(running) as http:
        before = running.resident_megabytes()
        for number in range(150):
            containers = [{"name": f"c{number}x{at}"} for at in range(800)]
            document = json.loads(review(annotations={"cmk.intel.com/mutate": "true"}))
            document["request"]["object"]["spec"]["containers"] = containers
            assert http.post("/mutate", json=document).status_code == 200
        grown = running.resident_megabytes() - before
    assert grown < 50  # 150 such answers are 90 MB


# Log lines.


def test_log_lines_are_short_whatever_the_names_are() -> None:
    """Names and uid in log lines are truncated to the longest valid name, with line breaks escaped."""
    edge = Edge()
    uid = LONG[:LONGEST_UID]
    document = json.loads(review(name=f"a\n{LONG}", namespace=LONG, uid=uid))
    document["request"]["kind"]["kind"] = LONG
    document["request"]["operation"] = LONG
    answer = edge.post(content=json.dumps(document).encode())
    assert answer.json()["response"]["uid"] == uid
    line = edge.line()
    for key in ("uid", "namespace", "name", "kind", "operation"):
        assert len(line[key]) == LOGGED_LENGTH
    assert len(edge.lines[0]) < 3000
    assert edge.lines[0].count(b"\n") == 1


def test_refused_fields_are_truncated() -> None:
    """A field whose name contains a user's text is truncated in the log and in the answer."""
    edge = Edge(RULES)
    answer = edge.post("/validate", review(annotations={f"cpu-manager.corepin.io/container.{LONG}": "wrong"}))
    (cause, *_) = answer.json()["response"]["status"]["details"]["causes"]
    assert len(cause["field"]) < 400
    assert all(len(field) <= LOGGED_LENGTH for field in edge.line()["fields"])
