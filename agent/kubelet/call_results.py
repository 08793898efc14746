"""Results of the kubelet calls for devices: counted, failures logged once, and reasons shown at a limited rate.

The results also determine the longest delay of the next call.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from agent.kubelet.device_answers import LATER, SLOW, SLOW_SECONDS, result_of
from pinning.planning.observed import AT_EACH_START

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from agent.errors import AgentError
    from agent.kubelet.waiting_pods import Waiting
    from agent.metrics import Metrics

REASON_SECONDS: Final = 10.0  # at most one pass in this time for a changed reason
USUAL_SECONDS: Final = 1.0  # longest delay between two calls
# Once every pod has waited this long, their sandboxes probably do not start, and calls become as rare as LONGEST_SECONDS.
# A sandbox that NRI or a pass shows causes a call at once.
OLD_SECONDS: Final = 180.0
LONGEST_SECONDS: Final = 30.0
# After a late answer the kubelet counts as slow for this time, which is longer than the delay and the wait of a call.
SLOW_AGAIN_SECONDS: Final = 60.0

logger = logging.getLogger(__name__)


class CallResults:
    """Why the last call failed, or that the call in flight is late."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float]) -> None:
        self.reason = ""  # empty: it did not fail and is not late
        self._metrics = metrics
        self._clock = clock
        # the reasons for which the last pass was requested, by the uid of the pod that waits
        self._shown: Mapping[str, str] = {}
        self._shown_at = -REASON_SECONDS
        self._logged: set[str] = set()  # results of failed calls since the last answer
        self._slow_until = float("-inf")  # the kubelet is slow: its answers are late, and come

    def answered(self, asked: float) -> None:
        """Record the answer to a call that was made at this time."""
        now = self._clock()
        if now - asked >= SLOW_SECONDS:
            self._slow_until = now + SLOW_AGAIN_SECONDS
        self.reason = ""
        self._logged.clear()
        self._metrics.podresources_called("ok", now - asked)

    def failed(self, error: AgentError, asked: float) -> None:
        """Record the failure of a call that was made at this time."""
        result, reason = result_of(error)
        seconds = self._clock() - asked
        self._metrics.podresources_called(result, seconds)
        # a late call has shown its reason already
        was_late = result == LATER and seconds >= SLOW_SECONDS
        self._show(result, SLOW if was_late else reason)

    @contextmanager
    def in_flight(self, shows_reason: Callable[[], bool], request_pass: Callable[[], None]) -> Iterator[None]:
        """Make SLOW the reason if the call in the block takes longer; request a pass if that reason is to be shown.

        A slow kubelet does not get this reason before a call fails: each call would log it, and each answer end it, so
        that the statuses of the pods that wait were written twice for each call.
        """

        def late() -> None:
            if self._clock() < self._slow_until:
                return
            self._show(LATER, SLOW)
            if shows_reason():
                request_pass()

        timer = asyncio.get_running_loop().call_later(SLOW_SECONDS, late)
        try:
            yield
        finally:
            timer.cancel()

    def _show(self, result: str, reason: str) -> None:
        self.reason = reason
        if result not in self._logged:
            self._logged.add(result)
            logger.warning("devices not known", extra={"facts": {"reason": reason}})

    def longest_wait(self, waiting: Collection[Waiting]) -> float:
        """Return the longest delay of the next call, 0 if no pod waits.

        It grows once all pods have waited for OLD_SECONDS, unless the last call failed.
        """
        newest = max((pod.since for pod in waiting), default=None)
        if newest is None:
            return 0.0
        is_old = self._clock() - newest >= OLD_SECONDS and not self.reason
        return LONGEST_SECONDS if is_old else USUAL_SECONDS

    def shows(self, reasons: Mapping[str, str]) -> bool:
        """Return whether to request a pass, because a pod waits for a reason that is new since the last such pass.

        `reasons` has the reason of each pod, by uid; the usual ones of a start do not count. A failing socket may give
        another reason with each call.
        """
        lasting = {uid: it for uid, it in reasons.items() if it not in AT_EACH_START}
        is_early = self._clock() - self._shown_at < REASON_SECONDS
        if is_early or lasting.items() <= self._shown.items():
            return False
        self._shown, self._shown_at = lasting, self._clock()
        return True
