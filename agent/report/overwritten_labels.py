"""Rate limit for restoring node labels that other programs overwrite, as KubeVirt's handler does every minute or two.

A label is restored at once, but at most WRITES times per window, so that a program that overwrites it in a loop does
not cause a loop of writes here. Other writes to the node do not wait for labels.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.clock import Clock
    from agent.metrics import Metrics
    from agent.report.desired_node import DesiredNode
    from agent.report.node_types import Node

WINDOW_SECONDS: Final = 60.0
WRITES: Final = 6  # number of restores in a window

Label: TypeAlias = tuple[str, str | None]  # name and desired value of a label; None: it must be absent

logger = logging.getLogger(__name__)


class OverwrittenLabels:
    """Tracks labels that had their desired value, to detect foreign writes, and limits how often they are restored."""

    def __init__(self, clock: Clock, metrics: Metrics, window_seconds: float = WINDOW_SECONDS) -> None:
        self._clock = clock
        self._metrics = metrics
        self._window = window_seconds
        self._right: frozenset[Label] = frozenset()
        # Desired labels that another writer changed, and that are not restored yet.
        self._overwritten: frozenset[Label] = frozenset()
        self._written: deque[float] = deque(maxlen=WRITES)

    def allowed(self, node: Node, desired: DesiredNode) -> DesiredNode:
        """Return the fields to write now: all desired ones, except labels over the rate limit."""
        self._look(node.metadata.labels or {}, frozenset(desired.labels.items()))
        if not self.is_waiting:
            return desired
        kept = {
            name: value for name, value in desired.labels.items() if (name, value) not in self._overwritten
        }
        return replace(desired, labels=kept)

    def _look(self, present: Mapping[str, str], desired: frozenset[Label]) -> None:
        wrong = frozenset(label for label in desired if present.get(label[0]) != label[1])
        news = wrong & self._right
        self._right = desired - wrong
        self._overwritten = self._overwritten & wrong | news
        if news:
            self._metrics.label_overwrites.inc()
            self._log({name: present.get(name) for name, _ in sorted(news)})

    def _log(self, found: Mapping[str, str | None]) -> None:
        wait = self.wait_seconds()
        if wait:
            facts = {"labels": found, "put_back_in_seconds": round(wait)}
            logger.warning("node labels overwritten too often by another program", extra={"facts": facts})
        else:
            logger.info("node labels overwritten by another program", extra={"facts": {"labels": found}})

    def wrote(self, labels: Mapping[str, str | None]) -> None:
        """Record that the agent wrote these labels."""
        written = frozenset(labels.items())
        if self._overwritten & written:
            self._written.append(self._clock.monotonic())
        self._overwritten -= written
        self._right |= written

    def wait_seconds(self) -> float:
        """Return the seconds until overwritten labels are restored; 0: now."""
        if len(self._written) < WRITES:
            return 0.0
        return max(0.0, self._written[0] + self._window - self._clock.monotonic())

    @property
    def is_waiting(self) -> bool:
        """Return whether overwritten labels wait for the rate limit."""
        return bool(self._overwritten) and self.wait_seconds() > 0
