"""`python -m bench.review`: time of one review without HTTP, step by step.

Each figure is the best of several short runs, to exclude preemption.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import timeit
from typing import TYPE_CHECKING, Any

import msgspec

from bench.sample import review
from pinning.pods.claims import read_pod
from pinning.pods.types import Pod
from webhook.config.mutations import BUILT_IN
from webhook.config.reload import Revision
from webhook.config.settings import Settings
from webhook.metrics import Metrics, ReviewMeter
from webhook.review import wire
from webhook.review.app import ReviewEndpoint
from webhook.review.handler import Decider
from webhook.review.log import ReviewLog
from webhook.review.response import encode
from webhook.rules.mutate import plan_mutation

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Message, Scope

RUNS = 200
RUN_SECONDS = 0.003  # short, so that some runs are not preempted


def steps() -> dict[str, Callable[[], object]]:
    """Return each step as a function; names of nested steps are indented below their caller."""
    body = review()
    settings = Settings()
    decider = Decider(settings, BUILT_IN)
    request = wire.decode(body)
    decode_pod = msgspec.json.Decoder(Pod).decode
    pod = decode_pod(request.object)
    mutated = decider.mutate(request)
    endpoint = ReviewEndpoint(
        "mutate",
        lambda rules, request: rules.mutate(request),
        lambda: Revision(1, decider),
        ReviewMeter(Metrics(), "mutate"),
        ReviewLog(lambda _: None),
    )
    return {
        "mutate: ASGI, with log line and metrics": lambda: _call(endpoint, body),
        "mutate: body -> answer": lambda: endpoint.review(body),
        "  decode the envelope": lambda: wire.decode(body),
        "  decide": lambda: decider.mutate(request),
        "    decode the pod": lambda: decode_pod(request.object),
        "    plan the additions": lambda: plan_mutation(pod, settings, decider.injection),
        "      read the claims": lambda: read_pod(pod),
        "  encode the answer": lambda: encode(request.uid, mutated),
        "validate: decide (before the mutation)": lambda: decider.validate(request),
    }


def _call(endpoint: ReviewEndpoint, body: bytes) -> None:
    """Serve one request, with receive and send functions that do not wait."""

    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    async def send(_message: Message) -> None:
        pass

    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    scope: Scope = {"type": "http", "headers": headers}
    serving: Any = endpoint(scope, receive, send)
    with contextlib.suppress(StopIteration):  # a coroutine that never waits ends with StopIteration
        serving.send(None)


def microseconds(step: Callable[[], object]) -> float:
    """Return the microseconds of one call."""
    timer = timeit.Timer(step)
    count = max(1, int(RUN_SECONDS / min(timer.repeat(5, 1))))
    return min(timer.repeat(RUNS, count)) / count * 1e6


def main() -> int:
    """Print the table."""
    argparse.ArgumentParser(prog="python -m bench.review", description=__doc__).parse_args()
    print(f"one review of {len(review())} bytes, microseconds, best of {RUNS} runs")
    for name, step in steps().items():
        print(f"{name:<42}{microseconds(step):8.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
