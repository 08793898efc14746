"""Bodies that are being received: memory they reserve, which wait, and which are dropped."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.environments.waiting import settle
from tests.webhook.edge import StubDecider
from tests.webhook.reviews import review
from webhook.config.reload import Revision
from webhook.metrics import Metrics, ReviewMeter
from webhook.review import memory_queue
from webhook.review.app import ReviewEndpoint
from webhook.review.bodies import SMALL_BODY, UNREAD_BODIES, Bodies
from webhook.review.log import ReviewLog
from webhook.review.memory_queue import (
    CHECK_SECONDS,
    GRACE_SECONDS,
    MIB,
    MOST_WAITING,
    WAIT_SECONDS,
    MemoryQueue,
    Overloaded,
    Reservation,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine

API_SERVER, STRANGER, OTHER_STRANGER = "10.0.0.1", "10.1.0.66", "10.1.0.67"
LIMIT = MIB


class Upload:
    """A request whose body the test sends piece by piece."""

    def __init__(self, peer: str, declared: int, query: bytes = b"") -> None:
        self.peer = peer
        self.query = query
        self.declared = declared
        self.received = 0
        self.status = 0
        self._pieces: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def send(self, piece: bytes, more: bool = True) -> None:
        """Send a piece of the body."""
        self._pieces.put_nowait({"type": "http.request", "body": piece, "more_body": more})

    def disconnect(self) -> None:
        """End the connection."""
        self._pieces.put_nowait({"type": "http.disconnect"})

    def serve(self, endpoint: ReviewEndpoint) -> Coroutine[Any, Any, None]:
        """Return the request in service."""
        length = [(b"content-length", b"%d" % self.declared)] if self.declared else []
        headers = [(b"content-type", b"application/json"), *length]
        scope = {"type": "http", "headers": headers, "client": (self.peer, 1), "query_string": self.query}
        return endpoint(scope, self._receive, self._answer)

    async def _receive(self) -> dict[str, Any]:
        message = await self._pieces.get()
        self.received += len(message.get("body", b""))
        return message

    async def _answer(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]


class Served:
    """An endpoint with little room for bodies, a clock that the test sets, and a log of what was judged."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("webhook.review.bodies.monotonic", lambda: self.now)
        self.bodies = Bodies(LIMIT)
        self.metrics = Metrics()
        self.judged: list[int] = []
        decide = StubDecider()
        self.endpoint = ReviewEndpoint(
            "mutate",
            lambda decider, request: decider.mutate(request),
            lambda: Revision(1, decide),
            ReviewMeter(self.metrics, "mutate"),
            ReviewLog(lambda _line: None),
            self.bodies,
        )
        self._uploads: list[Upload] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def upload(self, peer: str, declared: int, sent: int = 1, query: bytes = b"") -> Upload:
        """Begin a request that sends the first bytes of its body."""
        upload = Upload(peer, declared, query)
        upload.send(body(declared or LIMIT)[:sent])
        self._uploads.append(upload)
        self._tasks.add(asyncio.ensure_future(upload.serve(self.endpoint)))
        return upload

    async def pass_time(self, seconds: float) -> None:
        """Set the clock forward in steps, with the checks that are due."""
        await settle()
        for _ in range(round(seconds / CHECK_SECONDS) + 1):
            self.now += CHECK_SECONDS
            for queue in (self.bodies.large, self.bodies.small):
                if queue._timer:
                    queue._timer.cancel()
                    queue._check()
            await settle()

    async def end(self) -> None:
        """Disconnect the clients that have not sent all, and wait for the requests; nothing is reserved after them."""
        for upload in self._uploads:
            upload.disconnect()
        await asyncio.gather(*self._tasks)
        for queue in (self.bodies.large, self.bodies.small):
            assert (queue.reserved, queue.waiting, queue.holders) == (0, [], set())
            if queue._timer:
                queue._timer.cancel()


def body(size: int) -> bytes:
    """Return a review of a size."""
    return review(padding=size - len(review()))


def finish(upload: Upload, sent: int = 1) -> None:
    """Send the rest of a body."""
    upload.send(body(upload.declared or LIMIT)[sent:], more=False)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    """Return an endpoint whose largest body has 1 MiB."""
    return Served(monkeypatch)


async def test_a_large_body_waits_unread_until_there_is_room(served: Served) -> None:
    """The third large body of one API server is not read, and is answered when another one has ended."""
    first, second, third = (served.upload(API_SERVER, LIMIT) for _ in range(3))
    finish(third)
    await settle()
    assert third.received == 1
    finish(first)
    await settle()
    assert (first.status, third.status, second.status) == (200, 200, 0)
    finish(second)
    await served.end()
    assert second.status == 200


async def test_small_bodies_pass_large_ones(served: Served) -> None:
    """A body of 256 KiB is answered at once while large bodies of other clients hold all room and more wait."""
    large = [served.upload(peer, LIMIT) for peer in (STRANGER, STRANGER, OTHER_STRANGER, API_SERVER)]
    small = served.upload(API_SERVER, SMALL_BODY)
    finish(small)
    await settle()
    assert small.status == 200
    for upload in large:
        finish(upload)
    await served.end()


async def test_one_stranger_leaves_room_for_a_body_of_the_api_server(served: Served) -> None:
    """One address holds two bodies of the largest size however many it sends; the third place is for another address."""
    for _ in range(MOST_WAITING):
        served.upload(STRANGER, LIMIT)
    await settle()
    review = served.upload(API_SERVER, LIMIT)
    finish(review)
    await settle()
    assert review.status == 200
    await served.end()


async def test_bodies_of_one_address_make_way_for_each_other(served: Served) -> None:
    """Clients behind a proxy share one address: a stalled body loses its room to a waiting one of that address."""
    for _ in range(2):
        served.upload(API_SERVER, LIMIT)
    await settle()
    await served.pass_time(1)
    review = served.upload(API_SERVER, LIMIT)
    finish(review)
    await served.pass_time(0)
    assert review.status == 200
    await served.end()


@pytest.mark.parametrize("sent", [1, LIMIT - 1], ids=["begun", "all but one byte"])
async def test_bodies_that_stall_make_way(served: Served, sent: int) -> None:
    """Bodies that hold all room and send nothing for a quarter of a second are answered 408 once another one waits."""
    slow = [served.upload(peer, LIMIT, sent) for peer in (STRANGER, STRANGER, OTHER_STRANGER)]
    await settle()
    await served.pass_time(10)
    assert [upload.status for upload in slow] == [0, 0, 0]  # without need none of them is dropped
    review = served.upload(API_SERVER, LIMIT)
    finish(review)
    await served.pass_time(0)
    assert review.status == 200
    assert sorted(upload.status for upload in slow) == [0, 0, 408]
    for upload in slow:
        finish(upload, sent)
    await served.end()


async def test_bodies_that_trickle_make_way(served: Served) -> None:
    """A piece now and then keeps no room: 20 MiB a second are needed, so that the largest body has arrived in time."""
    slow = [served.upload(peer, LIMIT) for peer in (STRANGER, STRANGER, OTHER_STRANGER)]
    await settle()
    review = served.upload(API_SERVER, LIMIT)
    finish(review)
    for _ in range(round(GRACE_SECONDS / CHECK_SECONDS) + 1):
        for upload in slow:
            upload.send(b" ")
        await served.pass_time(0)
    assert review.status == 200
    await served.end()


async def test_a_fast_body_keeps_its_room(served: Served) -> None:
    """Bodies that arrive at the rate are not dropped for others that wait."""
    fast = [served.upload(peer, LIMIT) for peer in (STRANGER, STRANGER, API_SERVER)]
    waiting = served.upload(OTHER_STRANGER, LIMIT)
    for _ in range(4):
        for upload in fast:
            upload.send(b" " * (LIMIT // 8))
        await served.pass_time(0)
    assert [upload.status for upload in (*fast, waiting)] == [0, 0, 0, 0]
    await served.end()


async def test_no_body_is_dropped_for_a_delay_of_the_webhook(served: Served) -> None:
    """After a delay of the webhook itself no body counts as slow, since its data waited in the kernel."""
    held = [served.upload(peer, LIMIT) for peer in (STRANGER, STRANGER, API_SERVER)]
    waiting = served.upload(OTHER_STRANGER, LIMIT)
    await settle()
    served.now += 1.0
    await served.pass_time(0)
    assert [upload.status for upload in (*held, waiting)] == [0, 0, 0, 0]
    await served.end()


async def test_waiting_is_bounded(served: Served) -> None:
    """Above 64 waiting bodies, the newest of the address with the most is answered 503."""
    strangers = [served.upload(STRANGER, LIMIT) for _ in range(2 + MOST_WAITING)]
    strangers.append(served.upload(OTHER_STRANGER, LIMIT))
    await settle()
    review = served.upload(API_SERVER, LIMIT)
    await settle()
    assert (review.status, review in strangers) == (0, False)
    assert [at for at, upload in enumerate(strangers) if upload.status] == [1 + MOST_WAITING]
    assert strangers[1 + MOST_WAITING].status == 503
    await served.end()


async def test_body_that_waited_past_the_timeout_is_refused(served: Served) -> None:
    """A body that waited longer than the API server's timeout of 2 s is answered 503 and not judged."""
    queue = MemoryQueue(limit=10, peer_limit=10, clock=lambda: served.now)
    held = await queue.reserve(API_SERVER, 10)
    held.is_complete = True  # it is being judged
    waiting = asyncio.ensure_future(queue.reserve(API_SERVER, 10))
    await settle()
    served.now += WAIT_SECONDS + CHECK_SECONDS
    assert queue._timer
    queue._timer.cancel()
    queue._check()
    with pytest.raises(Overloaded):
        await waiting
    queue.release(held)
    assert queue.reserved == 0


@pytest.mark.parametrize(
    ("query", "seconds"),
    [
        pytest.param(b"timeout=2s", 2, id="as-registered"),
        pytest.param(b"timeout=5s", 5, id="longer"),
        pytest.param(b"a=b&timeout=1s&c", 1, id="beside-others"),
        pytest.param(b"timeout=99s", 30, id="longer-than-the-API-allows"),
        *(
            pytest.param(query, WAIT_SECONDS, id=f"none:{query!r}")
            for query in (b"", b"timeout=5m", b"no_timeout=9s")
        ),
    ],
)
async def test_a_body_waits_as_long_as_its_api_server(served: Served, query: bytes, seconds: float) -> None:
    """The API server names its timeoutSeconds in the query: up to then the body waits for room, then it is 503."""
    held = await served.bodies.large.reserve(OTHER_STRANGER, 2 * LIMIT)
    more = await served.bodies.large.reserve(STRANGER, LIMIT)
    held.is_complete = more.is_complete = True
    waiting = served.upload(API_SERVER, LIMIT, query=query)
    await served.pass_time(seconds - 4 * CHECK_SECONDS)
    assert waiting.status == 0
    await served.pass_time(8 * CHECK_SECONDS)
    assert waiting.status == 503
    served.bodies.large.release(held)
    served.bodies.large.release(more)
    await served.end()


async def test_a_cancelled_wait_reserves_nothing(served: Served) -> None:
    """A request that is cancelled while it waits, or just as it gets its room, leaves no reservation."""
    queue = MemoryQueue(limit=10, peer_limit=10, clock=lambda: served.now)
    held = await queue.reserve(API_SERVER, 10)
    waiting = [asyncio.ensure_future(queue.reserve(API_SERVER, 10)) for _ in range(2)]
    await settle()
    waiting[0].cancel()
    await settle()
    queue.release(held)
    waiting[1].cancel()
    await settle()
    assert (queue.reserved, queue.waiting, queue.holders) == (0, [], set())
    assert queue._timer
    queue._timer.cancel()


async def test_a_declared_length_allocates_nothing(served: Served) -> None:
    """A body longer than its declared length is 413; memory is allocated as bytes arrive."""
    longer = served.upload(STRANGER, 1000)
    longer.send(b" " * 1000)
    await served.end()
    assert longer.status == 413


async def test_large_bodies_are_judged_one_at_a_time(served: Served) -> None:
    """A small body is answered between two large ones that have arrived."""
    order: list[str] = []

    async def take(name: str, upload: Upload) -> None:
        await upload.serve(served.endpoint)
        order.append(name)

    large = [Upload(API_SERVER, LIMIT) for _ in range(2)]
    small = Upload(API_SERVER, 0)
    for upload in large:
        upload.send(body(LIMIT)[:1])
        finish(upload)
    tasks = [asyncio.ensure_future(take("large", upload)) for upload in large]
    while not served.bodies._judging.locked():
        await asyncio.sleep(0)
    small.send(review(), more=False)
    await asyncio.gather(*tasks, asyncio.ensure_future(take("small", small)))
    assert order.index("small") < 2
    await served.end()


def test_every_slow_reservation_is_judged_by_its_own_time() -> None:
    """Waiting for a review, and having just got room, do not make a body slow."""
    held = Reservation(STRANGER, LIMIT, since=50.0)
    assert not held.is_slow(50.0 + GRACE_SECONDS)
    assert held.is_slow(50.1 + GRACE_SECONDS)
    held.is_complete = True
    assert not held.is_slow(100.0)
    assert memory_queue.SLOWEST * WAIT_SECONDS >= UNREAD_BODIES * 2**20
