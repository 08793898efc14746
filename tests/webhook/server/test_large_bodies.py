"""Large bodies over real sockets: stalled bodies of other clients give way to the API server's."""

from __future__ import annotations

import contextlib
from http.client import HTTPResponse
from typing import TYPE_CHECKING

from tests.webhook.clients import CA, connected, request_head, tls_flags
from tests.webhook.mounted import Mounted, pair
from tests.webhook.reviews import review
from tests.webhook.serving import PATIENCE_SECONDS, serving
from webhook.review.bodies import BODY_LIMIT, UNREAD_BODIES
from webhook.review.memory_queue import MIB

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

STRANGERS = [f"127.0.0.{2 + at % 2}" for at in range(2 * UNREAD_BODIES)]  # two addresses
API_SERVER = "127.0.0.9"
SMALL_REVIEWS = 10


def ask(connection: ssl.SSLSocket, body: bytes) -> int:
    """Send a review and return the status of its answer."""
    connection.sendall(request_head(len(body)) + body)
    response = HTTPResponse(connection)
    response.begin()
    response.read()
    return response.status


def test_stalled_bodies_delay_no_review_of_the_api_server(tmp_path: Path) -> None:
    """While stalled bodies hold all room small reviews are answered, and the largest one gets room in time.

    A body that waits for longer than the API server does, 2 s, would get 503.
    """
    largest = review(padding=BODY_LIMIT - len(review()))
    assert len(largest) == BODY_LIMIT
    tls = tls_flags(Mounted(tmp_path / "tls", pair(CA)))
    with (
        serving(*tls, request_seconds=10 * PATIENCE_SECONDS) as server,
        contextlib.ExitStack() as stack,
    ):
        strangers = [stack.enter_context(connected(server, address)) for address in STRANGERS]
        for stranger in strangers:
            stranger.sendall(request_head(BODY_LIMIT) + b" " * (MIB // 4))
        large, small = (stack.enter_context(connected(server, API_SERVER)) for _ in range(2))

        answers = [ask(small, review()) for _ in range(SMALL_REVIEWS)]
        answers += [ask(large, largest), ask(large, largest)]
        answers += [ask(small, review()) for _ in range(SMALL_REVIEWS)]

        assert set(answers) == {200}
        slow = server.reviews.wait_for("review", outcome="rejected", reason="slow")
        assert slow["endpoint"] == "mutate"
