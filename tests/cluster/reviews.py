"""Have pods reviewed without a pause, and see whether a review is ever missed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, Self

import httpx

from tests.environments.cluster.pods import ISOLATED, isolated, limits_of
from tests.environments.waiting import until

if TYPE_CHECKING:
    from tests.environments.cluster.cluster import Cluster

_PATH: Final = "/api/v1/namespaces/default/pods?dryRun=All"
_PAUSE_SECONDS: Final = 0.1
_FEWEST: Final = 20


class Reviews(threading.Thread):
    """Asks until its block ends; with the failure policy `Ignore` a missed review is a pod that lacks its resource."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self.cluster = cluster
        self.done = 0
        self.missed: list[Any] = []
        self._ended = threading.Event()

    def run(self) -> None:
        """Create pods, without making any."""
        with self.cluster.plane.server.client() as client:
            while not self._ended.wait(_PAUSE_SECONDS):
                try:
                    answer = client.post(_PATH, json=isolated("reviewed"), timeout=60).raise_for_status()
                    if ISOLATED not in limits_of(answer.json()):
                        self.missed.append(answer.text)
                except httpx.HTTPError as error:
                    self.missed.append(error)
                self.done += 1

    def __enter__(self) -> Self:
        """Begin."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End, but not before a few were done."""
        until("reviews are done", lambda: self.done >= _FEWEST or not self.is_alive())
        self._ended.set()
        self.join()
