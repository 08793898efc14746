"""Rate and connection limits of `cmk.sock`, fair between pods and containers. Pure except for the clock.

A connection needs a turn before it is answered. A node-wide token bucket limits the turns, and so the agent's CPU time
for all answers. Waiting turns are served round robin by pod, and within a pod by container. A pod that was idle has a
small reserve of turns for which it does not wait. The bucket is charged for them, so that the total rate stays the
same.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from agent.token_bucket import TokenBucket
from agent.wrappers.protocol import Crowded, Denied

if TYPE_CHECKING:
    from collections.abc import Callable

AT_ONCE: Final = 256  # open connections of one container, which never has that many cores
OPEN: Final = 2048  # open connections of the node; once reached, each pod and container has an equal share
RATE: Final = 70.0  # turns per second on the node; an answer takes the agent 0.5 to 1 ms
BURST: Final = 512  # turns that may begin at once after the node was idle
# Turns that a pod may begin at once after it was idle, divided by the number of busy pods.
RESERVE: Final = 32
# Waiting turns begun in one iteration of the loop, so that a burst does not block it.
BEGUN_AT_ONCE: Final = 4
REFUSALS: Final = 64  # refusals answered with a reason after a container was idle; then one per second
DEAF_SECONDS: Final = 1.0  # seconds for which later connections of a refused process are closed unread
DEAF_MOST: Final = 4096  # number of refused processes to remember

Ticket = TypeVar("Ticket")


class Origin(NamedTuple):
    """The pod and container to which a connection is charged."""

    pod: str
    container: str


class Connections:
    """Counts open connections by pod and container."""

    def __init__(self) -> None:
        self._total = 0
        self._of_pod: dict[str, Counter[str]] = {}

    def opened(self, origin: Origin) -> None:
        """Count a connection; raise Denied at the container's limit, Crowded at its share of a full node."""
        pod = self._of_pod.get(origin.pod, Counter())
        if pod[origin.container] >= AT_ONCE:
            raise Denied(f"too many wrappers ask at once from this container: at most {AT_ONCE} may")
        if self._total >= OPEN and not self._has_share(pod, origin.container):
            raise Crowded("all connections of the node are in use, and this container has its share of them")
        self._of_pod.setdefault(origin.pod, pod)[origin.container] += 1
        self._total += 1

    def _has_share(self, pod: Counter[str], container: str) -> bool:
        """Return whether a container has less than its share of connections, which leaves room for one more pod."""
        of_pod = OPEN // (len(self._of_pod) + 1)
        return pod.total() < of_pod and pod[container] < max(1, of_pod // (len(pod) + 1))

    def closed(self, origin: Origin) -> None:
        """Stop counting a connection."""
        pod = self._of_pod[origin.pod]
        pod[origin.container] -= 1
        self._total -= 1
        if not pod[origin.container]:
            del pod[origin.container]
        if not pod:
            del self._of_pod[origin.pod]


class Reserve:
    """Turns that a pod may take without waiting after it was idle; refilled at an equal part of the node's rate."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due: dict[str, float] = {}  # when a pod's reserve is full again; absent: full
        self._by_due: list[
            tuple[float, str]
        ] = []  # heap with the current entry of each busy pod, and outdated ones

    def has(self, pod: str) -> bool:
        """Return whether a pod's reserve has a turn left."""
        now = self._clock()
        return self._due.get(pod, now) - now < RESERVE / RATE

    def spend(self, pod: str) -> None:
        """Charge a turn to a pod's reserve, which does not go below zero."""
        now = self._clock()
        self._prune(now)
        due = self._due.get(pod, now)
        step = (len(self._due) + (pod not in self._due)) / RATE
        self._due[pod] = min(due + step, now + RESERVE / RATE + step)
        heappush(self._by_due, (self._due[pod], pod))

    def _prune(self, now: float) -> None:
        """Drop pods whose reserve is full; O(log n) for each turn that was charged."""
        while self._by_due and self._by_due[0][0] <= now:
            _, pod = heappop(self._by_due)
            if self._due.get(pod, now + 1.0) <= now:
                del self._due[pod]


class Turns(Generic[Ticket]):
    """Fair queue of turns: a node-wide token bucket, round robin by pod and then by container."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._bucket = TokenBucket(BURST, 1 / RATE)
        self._reserve = Reserve(clock)
        self._waiting: OrderedDict[str, OrderedDict[str, deque[tuple[Ticket, int]]]] = OrderedDict()

    def ask(self, origin: Origin, ticket: Ticket, turns: int = 1) -> bool:
        """Return True if a turn from the pod's reserve starts at once; otherwise queue the ticket and return False."""
        is_quiet = turns == 1 and origin.pod not in self._waiting and self._reserve.has(origin.pod)
        if (
            is_quiet and self._bucket.wait(self._clock(), 2 * BURST) <= 0
        ):  # all reserves together may overdraw the bucket by at most BURST turns
            self._spend(origin.pod)
            return True
        pod = self._waiting.setdefault(origin.pod, OrderedDict())
        pod.setdefault(origin.container, deque()).append((ticket, turns))
        return False

    def begin(self) -> list[Ticket]:
        """Remove and return the tickets whose turn starts now, at most BEGUN_AT_ONCE."""
        begun: list[Ticket] = []
        while self._waiting and len(begun) < BEGUN_AT_ONCE and self._bucket.wait(self._clock()) <= 0:
            begun += self._next()
        return begun

    def wait(self) -> float | None:
        """Return the seconds until a waiting turn begins; None if none waits."""
        return max(0.0, self._bucket.wait(self._clock())) if self._waiting else None

    def _spend(self, pod: str) -> None:
        self._bucket.spend(self._clock())
        self._reserve.spend(pod)

    def _next(self) -> list[Ticket]:
        """Spend one turn on the next container's first ticket; return the ticket if it now has all its turns."""
        pod, containers = self._waiting.popitem(last=False)
        container, tickets = containers.popitem(last=False)
        self._spend(pod)
        ticket, turns = tickets.popleft()
        if turns > 1:
            tickets.appendleft((ticket, turns - 1))
        if tickets:
            containers[container] = tickets
        if containers:
            self._waiting[pod] = containers
        return [] if turns > 1 else [ticket]


class Refusals:
    """Limits the cost of refused connections."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._explained: dict[Origin, TokenBucket] = {}
        self._deaf: dict[int, float] = {}

    def may_explain(self, origin: Origin) -> bool:
        """Return whether to send the reason of a refusal; rate-limited by container."""
        return self._explained.setdefault(origin, TokenBucket(REFUSALS, 1.0)).take(self._clock())

    def refused(self, pid: int) -> None:
        """Ignore a process for DEAF_SECONDS, because finding its container costs more than closing its connections."""
        if len(self._deaf) < DEAF_MOST:
            self._deaf[pid] = self._clock() + DEAF_SECONDS

    def ignores(self, pid: int) -> bool:
        """Return whether connections of a process are closed unread."""
        until = self._deaf.get(pid)
        if until is None:
            return False
        if until > self._clock():
            return True
        del self._deaf[pid]
        return False

    def forget(self) -> None:
        """Drop containers with a full bucket, and processes that are no longer ignored."""
        now = self._clock()
        self._explained = {origin: it for origin, it in self._explained.items() if it.full_at > now}
        self._deaf = {pid: until for pid, until in self._deaf.items() if until > now}


class Bounds(Generic[Ticket]):
    """The rate and connection limits of one node; kept when the socket is created again."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.connections = Connections()
        self.turns: Turns[Ticket] = Turns(clock)
        self.refusals = Refusals(clock)
