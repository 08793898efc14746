"""All files change at once: they are swapped under load, and then the process gets the signal to stop."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
from typing import TYPE_CHECKING, Any

import httpx

from tests.webhook.clients import CA, JSON, OTHER_CA, REFUSED, TAKEN, der, served_certificate, tls_flags
from tests.webhook.mounted import Mounted, pair
from tests.webhook.serving import PATIENCE_SECONDS, Server, serving, trusting
from webhook.config.reload import File
from webhook.review import wire
from webhook.review.response import Patched, encode
from webhook.server.loader import SAMPLE, DeciderLoader

if TYPE_CHECKING:
    from pathlib import Path

CONNECTIONS = 16
ROUNDS = 5  # of four swaps
COLORS = ("red", "blue")


def mutations(color: str) -> dict[str, bytes]:
    """Return a mutations file whose every part bears its color."""
    text = f"""
mutations:
  perPod:
    metadata: {{annotations: {{color: {color}}}}}
    spec:
      tolerations: [{{key: {color}, operator: Exists}}]
  perContainer:
    env: [{{name: COLOR, value: {color}}}]
"""
    return {"mutations.yaml": text.encode()}


def color_of(operations: list[dict[str, Any]]) -> str:
    """Return the color of a patch all of whose parts agree."""
    text = repr(operations)
    found = [color for color in COLORS if color in text]
    assert len(found) == 1, text
    assert text.count(found[0]) == 3
    return found[0]


def numbered(uid: str) -> bytes:
    """Return the sample review under a uid of its own."""
    return SAMPLE.replace(b'"uid": "self-test"', b'"uid": "%s"' % uid.encode())


async def ask_until_drained(server: Server, name: str, answers: dict[str, str]) -> None:
    """Send one review after the other over one connection, until an answer says that it is the last."""
    context = trusting(CA, OTHER_CA)
    async with httpx.AsyncClient(
        base_url=server.url, verify=context, headers=JSON, timeout=PATIENCE_SECONDS
    ) as http:
        for number in itertools.count():
            answer = await http.post("/mutate", content=numbered(f"{name}-{number}"))
            assert answer.status_code == 200
            answers[answer.json()["response"]["uid"]] = answer.json()["response"]["patch"]
            if answer.headers.get("connection") == "close":
                return


def swap_all(server: Server, secret: Mounted, config: Mounted) -> None:
    """Swap good and broken files, each as soon as the one before was judged."""
    cas = itertools.cycle((OTHER_CA, CA))
    for turn in range(1, ROUNDS + 1):
        fresh = pair(next(cas))
        secret.swap(fresh)
        server.log.wait_for(TAKEN, files="certificate", generation=turn + 1)
        server.reviews.wait_for("review", generation=turn)
        config.swap(mutations(COLORS[turn % 2]))
        server.log.wait_for(TAKEN, files="configuration", generation=turn + 1)
        secret.swap({**fresh, "tls.key": pair(CA)["tls.key"]})
        server.log.wait_for(REFUSED, count=turn, files="certificate")
        config.swap({"mutations.yaml": b"mutations: {perPod: {spec: {containers: []}}, turn: %d}" % turn})
        server.log.wait_for(REFUSED, count=turn, files="configuration")
        assert served_certificate(server) == der(fresh)
    server.reviews.wait_for("review", generation=ROUNDS + 1)


async def swap_under_load(server: Server, secret: Mounted, config: Mounted) -> dict[str, str]:
    """Return the patch of every review that was asked while files were swapped and the process drained."""
    answers: dict[str, str] = {}
    async with asyncio.TaskGroup() as group:
        for number in range(CONNECTIONS):
            group.create_task(ask_until_drained(server, str(number), answers))
        await asyncio.to_thread(swap_all, server, secret, config)
        await asyncio.to_thread(server.wait_for_connections, CONNECTIONS)  # none was ever replaced
        server.process.send_signal(signal.SIGTERM)
    return answers


def expected_patches(root: Path) -> dict[str, str]:
    """Return the color that each patch stands for, computed without a server."""
    patches = {}
    for color in COLORS:
        decider = DeciderLoader(File(root), File(root))((None, mutations(color)["mutations.yaml"]))
        answer = decider.mutate(wire.decode(SAMPLE))
        assert isinstance(answer, Patched)
        operations = [dict(operation) for operation in answer.operations]
        assert color_of(operations) == color
        patches[encoded(answer)] = color
    return patches


def encoded(answer: Patched) -> str:
    """Return the patch as the response carries it."""
    patch: str = json.loads(encode("u", answer))["response"]["patch"]
    return patch


def test_no_request_fails_and_each_answer_is_of_one_generation(tmp_path: Path) -> None:
    """16 connections, 20 swaps, half of them broken, then SIGTERM: nothing fails, nothing is mixed, nothing is lost."""
    secret = Mounted(tmp_path / "tls", pair(CA))
    config = Mounted(tmp_path / "config", mutations(COLORS[0]))
    flags = (*tls_flags(secret), "--mutations", config / "mutations.yaml")
    # The linger is as long as a starved client may take: how soon clients ask again is not what is tested here.
    with serving(*flags, linger_seconds=PATIENCE_SECONDS) as server:
        answers = asyncio.run(swap_under_load(server, secret, config))
        code = server.process.wait(PATIENCE_SECONDS)
    generations = {line["uid"]: line["generation"] for line in server.reviews.lines}
    colors = expected_patches(tmp_path)

    assert code == 0
    assert answers.keys() == generations.keys()  # every review that was taken was answered
    assert {uid: colors[patch] for uid, patch in answers.items()} == {
        uid: COLORS[(number - 1) % 2] for uid, number in generations.items()
    }
    assert set(generations.values()) == set(range(1, ROUNDS + 2))
    assert (server.log.plain, server.reviews.plain) == ([], [])
    assert not any("traceback" in line for line in server.log.lines)
