"""Memory of the pod watch with pods of the maximum size that the API server accepts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.agent.watching import Told
from tests.environments.server.apiserver import ApiServer
from tests.environments.server.start import start_servers

pytestmark = pytest.mark.server
NODE = "node-1"
PODS = "/api/v1/namespaces/default/pods"
MIB = 1024  # kB
ALIKE = 150  # number of equal pods of 1.2 MB, which are made quickly
EACH = 3  # number of pods of each other kind
EDITED = 12


def filled() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield metadata and spec of pods, each large in another field."""
    main = {"name": "main", "image": "x"}
    notes = {f"cpu-manager.corepin.io/container.ghost{number}": "exclusive" for number in range(3500)}
    yield {}, {"containers": [{**main, "env": [{"name": f"A{n}", "value": "x" * 20} for n in range(12_000)]}]}
    yield {"labels": {f"l{n}.example.com/label": "v" * 40 for n in range(6000)}}, {"containers": [main]}
    yield {"annotations": notes}, {"containers": [{**main, "args": ["x" * 1000] * 900}]}
    yield {}, {"containers": [{"name": f"c{n}", "image": "x", "args": ["x" * 5000]} for n in range(200)]}
    yield {}, {"containers": [{"name": f"c{n}", "image": "x"} for n in range(2500)]}
    yield {}, {"containers": [{**main, "args": ["\u0001" * 450_000]}]}  # six bytes of JSON each


def pods() -> Iterator[dict[str, Any]]:
    """Yield every pod."""
    env = {"name": "main", "image": "x", "env": [{"name": "A", "value": "x" * 1_000_000}]}
    kinds = [({"annotations": {"note": "y" * 200_000}}, {"containers": [env]})] * ALIKE
    for number, (metadata, spec) in enumerate([*filled()] * EACH + kinds):
        yield {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"p{number}", **metadata},
            "spec": {"nodeName": NODE, **spec},
        }


def create(server: ApiServer) -> list[int]:
    """Create the pods; return their sizes in bytes."""

    def post(pod: dict[str, Any]) -> int:
        with server.client() as client:
            return len(done(client.post(PODS, json=pod, timeout=60)).content)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(post, pods()))


def label(server: ApiServer, number: int) -> None:
    """Change one pod, so that the whole pod is sent to watchers."""
    patch = {"metadata": {"labels": {"edited": "1"}}}
    media = {"content-type": "application/merge-patch+json"}
    with server.client() as client:
        done(client.patch(f"{PODS}/p{number}", json=patch, headers=media, timeout=60))


def done(answer: httpx.Response) -> httpx.Response:
    """Return a successful response."""
    assert answer.is_success, answer.text[:500]
    return answer


@contextmanager
def watching(server: ApiServer) -> Iterator[Iterator[Told]]:
    """Run the watch in a separate process; yield its lines."""
    places = (server.url, server.ca_file, server.token_file)
    command = [sys.executable, "-m", "tests.agent.watching", *places, NODE]
    with subprocess.Popen(
        [*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield (Told(*map(int, line.split())) for line in process.stdout)
        finally:
            process.kill()


def test_large_pods_do_not_fill_the_agents_memory() -> None:
    """168 pods of mostly 1.2 MB are listed and changed in less than 100 MiB, which is released afterwards."""
    with start_servers() as server:
        sizes = create(server)
        with watching(server) as lines:
            listed = next(lines)
            for number in range(EDITED):
                label(server, number)
            changed = next(line for line in lines if line.versions >= len(sizes) + EDITED)
    assert sum(sizes) > 160 * 1_150_000
    assert (listed.pods, changed.pods) == (len(sizes), len(sizes))
    assert listed.most < 100 * MIB
    assert changed.most < 100 * MIB
    assert changed.now < 80 * MIB
