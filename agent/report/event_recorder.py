"""Send Events: one object for equal events, with a count, and rate-limited per pod.

An Event's name derives from its content, so a restarted agent finds its own Events. While the API server is out of
reach, the newest PENDING events are kept. A namespace that fails, or has used up its quota of events, delays no other.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from agent.clock import Clock
from agent.report.events import event_document, events_between
from agent.report.object_backoff import BETWEEN_SECONDS, FAILURES, ObjectBackoff
from agent.report.publisher import Later
from agent.token_bucket import TokenBucket
from apiserver.errors import Conflict, Failed, Gone, Refused
from pinning.pods.identity import by_runtime_uid, name_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from agent.interfaces import PodSource
    from agent.node_state import NodeState
    from agent.report.events import Event
    from apiserver.client import Api
    from pinning.pods.types import Pod

BURST: Final = 10  # events about one pod before the rate limit applies
REFILL_SECONDS: Final = 30.0  # seconds until one more event about a pod is allowed
PENDING: Final = 500
REMEMBERED: Final = 2000

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Sent:
    """An event as stored by the API server."""

    path: str
    count: int = 1


@dataclass(slots=True)
class _Attempt:
    """State of one attempt to send all pending events."""

    pods: Mapping[str, Pod]  # pods by the uid that the runtime reports
    late: Collection[str]  # uids of pods that the watch has not shown yet
    turns: set[str]  # namespaces whose backoff has ended
    failures: int = 0  # failed requests in a row, in namespaces that had not failed before


class EventReport:
    """Sends events, oldest first."""

    def __init__(self, api: Api, node: str, pods: PodSource, clock: Clock = Clock()) -> None:
        self._api = api
        self._node = node
        self._pods = pods
        self._clock = clock
        self._last: NodeState | None = None
        self._pending: deque[Event] = deque(maxlen=PENDING)
        self._sent: dict[str, _Sent] = {}
        self._buckets: dict[str, TokenBucket] = {}
        self._backoff = ObjectBackoff(clock)  # backoff for each namespace
        self.writes = 0
        self.held_back = 0

    async def publish(self, state: NodeState) -> None:
        """Send the events since the last state; failed ones are retried at the next call.

        An event about a pod that the watch has not shown yet stays pending. While events are pending, Later is raised.
        """
        by_uid = by_runtime_uid(list(self._pods.pods().values()), state.names)
        self._buckets = {uid: bucket for uid, bucket in self._buckets.items() if uid in by_uid}
        happened = events_between(self._last, state)
        self._last = state
        self._pending.extend(event for event in happened if self._may_send(event.owner.pod_uid))
        late = {pod.uid for pod in state.pods if pod.is_known} - by_uid.keys()
        await self._send_all(_Attempt(by_uid, late, set(self._backoff.turns({})[:1])))
        if self._pending:
            seconds = None if any(event.owner.pod_uid in late for event in self._pending) else BETWEEN_SECONDS
            raise Later(f"events wait: {len(self._pending)}", seconds, len(self._backoff))

    async def _send_all(self, attempt: _Attempt) -> None:
        """Send all events that can be sent. Pods without an API object get none."""
        kept: list[Event] = []
        try:
            while self._pending:
                event = self._pending[0]
                pod = attempt.pods.get(event.owner.pod_uid)
                if event.owner.pod_uid in attempt.late or (pod and not await self._try(event, pod, attempt)):
                    kept.append(event)
                self._pending.popleft()
        finally:
            self._pending.extendleft(reversed(kept))
            self._backoff.keep(
                {_namespace(pod) for event in self._pending if (pod := attempt.pods.get(event.owner.pod_uid))}
            )

    async def _try(self, event: Event, pod: Pod, attempt: _Attempt) -> bool:
        """Send one event unless its namespace is in backoff; return whether to remove the event from the queue."""
        namespace = _namespace(pod)
        has_turn = namespace in attempt.turns
        if namespace in self._backoff and not has_turn:
            return False
        try:
            await self._send(event, pod)
        except Failed as error:
            attempt.turns.discard(namespace)
            self._refuse(namespace, error)
            attempt.failures += not has_turn
            if attempt.failures == FAILURES:
                raise
            return False
        self._backoff.forget(namespace)
        attempt.failures = 0
        return True

    def _refuse(self, namespace: str, error: Failed) -> None:
        if self._backoff.refuse(namespace, error):
            facts = {"namespace": namespace, "reason": str(error)}
            logger.warning("events delayed", extra={"facts": facts})

    async def reset(self) -> None:
        """Drop pending events; sent ones are not deleted, because the API server does so within an hour."""
        self._pending.clear()

    def _may_send(self, uid: str) -> bool:
        now = self._clock.monotonic()
        if self._buckets.setdefault(uid, TokenBucket(BURST, REFILL_SECONDS)).take(now):
            return True
        self.held_back += 1
        return False

    async def _send(self, event: Event, pod: Pod) -> None:
        document = event_document(event, pod, self._node, self._clock.text())
        name = document["metadata"]["name"]
        sent = self._sent.get(name)
        try:
            sent = await (self._repeat(sent, document) if sent else self._first(document))
        except Gone:  # its namespace is terminating
            self._sent.pop(name, None)
        except Refused as error:
            logger.warning("event refused", extra={"facts": {"name": name, "reason": str(error)}})
        else:
            self._remember(name, sent)

    def _remember(self, name: str, sent: _Sent) -> None:
        self._sent[name] = sent
        if len(self._sent) > REMEMBERED:
            del self._sent[next(iter(self._sent))]

    async def _first(self, document: dict[str, Any]) -> _Sent:
        metadata = document["metadata"]
        folder = f"/api/v1/namespaces/{metadata['namespace']}/events"
        event = _Sent(f"{folder}/{metadata['name']}")
        self.writes += 1
        try:
            await self._api.create(folder, document)
        except Conflict:  # an earlier agent sent this event
            return await self._again(event)
        return event

    async def _repeat(self, sent: _Sent, document: dict[str, Any]) -> _Sent:
        """Increase the count of a sent event; create it again if it expired."""
        try:
            return await self._again(sent)
        except Gone:
            return await self._first(document)

    async def _again(self, sent: _Sent) -> _Sent:
        counted = replace(sent, count=sent.count + 1)
        self.writes += 1
        await self._api.patch(sent.path, {"count": counted.count, "lastTimestamp": self._clock.text()})
        return counted


def _namespace(pod: Pod) -> str:
    return name_of(pod)[0]
