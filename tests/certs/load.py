"""Load: pods created at a constant rate, with their outcomes."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.environments.cluster.registered import pod_document
from tests.pods import CORES, container

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from tests.environments.server.apiserver import ApiServer

WORKERS = 5
PATIENCE_SECONDS = 60.0
INJECTED = "cmk.intel.com/resources-injected"


class Load:
    """Creates pods until it is stopped; each must be returned with the webhook's mutation."""

    def __init__(self, api: ApiServer, namespace: str, pods_a_second: float) -> None:
        self._api, self._path = api, f"/api/v1/namespaces/{namespace}/pods"
        self._pause = WORKERS / pods_a_second
        self._news = threading.Condition()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(WORKERS)]
        self.admitted = 0
        self.slowest = 0.0
        self.failures: list[str] = []

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop, and wait for requests in flight."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_for(self, pods: int) -> None:
        """Wait until this number of further pods has been admitted."""
        with self._news:
            wanted = self.admitted + pods
            assert self._news.wait_for(lambda: self.admitted >= wanted, PATIENCE_SECONDS), self.failures[:3]

    def _work(self, number: int) -> None:
        document = pod_document("load", container("main", {CORES: "1"}))
        document["metadata"] = {**document["metadata"], "generateName": f"load-{number}-"}
        del document["metadata"]["name"]
        due = time.monotonic() + number * self._pause / WORKERS
        with self._api.client() as client:
            while not self._stop.wait(max(due - time.monotonic(), 0)):
                self._create(client, document)
                due = max(due + self._pause, time.monotonic())  # no burst after a stall

    def _create(self, client: httpx.Client, document: dict[str, Any]) -> None:
        began = time.monotonic()
        answer = client.post(self._path, json=document)
        is_good = answer.is_success and INJECTED in answer.json()["metadata"].get("annotations", {})
        with self._news:
            self.slowest = max(self.slowest, time.monotonic() - began)
            self.admitted += is_good
            if not is_good:
                self.failures.append(answer.text)
            self._news.notify_all()


@contextmanager
def load(api: ApiServer, namespace: str, pods_a_second: float) -> Iterator[Load]:
    """Create pods until the block ends."""
    pods = Load(api, namespace, pods_a_second)
    pods.start()
    try:
        yield pods
    finally:
        pods.stop()
