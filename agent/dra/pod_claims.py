"""ResourceClaims that the pods of this node name, read once, and again when other pods name them.

A read is repeated with exponential backoff until the claim can be read and is reserved for each pod that names it,
because until then the scheduler may still allocate or reallocate it. Containers wait for the reads, and users control
their number. So namespaces are served round-robin by two readers. One slow read delays no other namespace, nor do reads
of claims at which the API server fails.
The delay between repeated reads grows with the number and size of such claims in the namespace. First reads have a rate
limit of their own, because pods that are created and deleted all the time cause only first reads.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import ExitStack
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.dra.read_limit import BYTES_A_SECOND
from agent.dra.read_queue import Key, ReadQueue
from apiserver.backoff import Backoff
from apiserver.errors import APIError
from pinning.dra.claims import BadClaim, DeviceClaim

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from agent.dra.reader import ClaimReader
    from pinning.dra.claims import ClaimGrant
    from pinning.planning.observed import SeenPod

PATIENCE_SECONDS: Final = 5.0  # timeout of a read, after which containers no longer wait for the claim
AGAIN_SECONDS: Final = (1.0, 60.0)  # first and longest delay between repeated reads (exponential backoff)
EACH_SECONDS: Final = 0.2  # least time between two repeated reads in one namespace
PASS_SECONDS: Final = 0.05  # between two passes for pods whose claims are known, while others are still read
NO_ANSWER: Final = "the API server does not answer"
READERS: Final = 2  # concurrent first reads: while one waits for a slow answer, the other continues
GONE: Final = "it does not exist: delete the pod"

logger = logging.getLogger(__name__)


class _Read(NamedTuple):
    """The result of the last read of a claim from the API server."""

    pods: frozenset[str]  # uids of the pods that named the claim when it was read
    claim: DeviceClaim | None
    problem: str = ""  # why the claim cannot be read or served

    @property
    def is_final(self) -> bool:
        """Whether the claim is reserved for its pods, so that its allocation cannot change."""
        return not self.problem and self.claim is not None and self.pods <= self.claim.pods


class PodClaims:
    """Reads the claims that pods name."""

    def __init__(
        self,
        reader: ClaimReader,
        patience_seconds: float = PATIENCE_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        pass_seconds: float = PASS_SECONDS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._reader = reader
        self._patience = patience_seconds
        self._sleep = sleep
        self._pass_seconds = pass_seconds
        self._clock = clock
        self._limit = reader.pod_limit
        self._wanted: dict[Key, frozenset[str]] = {}  # uids of the pods that name a claim, by claim
        self._queue = ReadQueue(reader.pod_limit)
        self._left: Counter[str] = Counter()  # number of unread claims that are not late, by uid of the pod
        self._has_news = False  # a claim was read since the last request for a pass
        self._has_complete = False  # all claims of a pod were read since the last request for a pass
        self._requested = 0.0  # time of the last request for a pass
        self._timer: asyncio.TimerHandle | None = None  # requests a pass for pods whose claims are known
        self._read: dict[Key, _Read] = {}
        self._late: set[Key] = set()  # claims whose last read the API server did not answer
        self._silent: set[str] = set()  # namespaces of such reads since the last answer of the API server
        self._doubts = asyncio.Event()
        self._repeats: dict[Key, asyncio.Task[None]] = {}
        self._turn = asyncio.Lock()

    def follow(self, pods: Iterable[SeenPod]) -> None:
        """Read the claims of pods that are new, and forget those that no pod names."""
        wanted: dict[Key, frozenset[str]] = {}
        for pod in pods:
            alone = frozenset((pod.uid,))
            for name in pod.claim_names if not pod.is_final else ():
                key = pod.namespace, name
                wanted[key] = wanted[key] | alone if key in wanted else alone
        # Reads refer to sets of earlier passes, so equal ones stay, and are in memory once.
        wanted |= {key: pods for key, pods in self._wanted.items() if wanted.get(key) == pods}
        self._wanted = wanted
        self._reader.keep_known(wanted)
        self._read = {key: read for key, read in self._read.items() if key in wanted}
        self._late &= wanted.keys()
        self._silent &= {namespace for namespace, _ in wanted}
        for key in self._repeats.keys() - wanted.keys():
            self._repeats.pop(key).cancel()
        self._queue_unread()

    def share(self, grants: Mapping[str, ClaimGrant]) -> None:
        """Refer to the ledger's claims where reads found equal ones, so that each claim is in memory once."""
        for key, read in self._read.items():
            grant = grants.get(read.claim.uid) if read.claim else None
            if grant and grant.claim is not read.claim and grant.claim == read.claim:
                self._read[key] = read._replace(claim=grant.claim)

    def _queue_unread(self) -> None:
        """Queue the unread claims; those whose read timed out come last in their namespaces."""
        unread = sorted(filter(self._is_unread, self._wanted), key=self._late.__contains__)
        self._left = Counter(pod for key in unread if key not in self._late for pod in self._wanted[key])
        self._queue.fill(unread, (namespace for namespace, _ in self._wanted))

    @property
    def known(self) -> Mapping[str, DeviceClaim]:
        """The claims with CPUs of this node, by uid."""
        return {it.claim.uid: it.claim for it in self._read.values() if it.claim and it.claim.parts}

    @property
    def read(self) -> frozenset[tuple[str, str, str]]:
        """Claims that were read, also those without CPUs, each with the uid of a pod that names it.

        While a claim is read again for another pod, earlier pods keep the last answer. A claim whose read timed out
        counts as read. Until the next answer of the API server, so do all claims of its namespace; after timeouts in two
        namespaces all claims do, because the API server is out of reach.
        """
        return frozenset(
            (*key, pod)
            for key, pods in self._wanted.items()
            for pod in (pods if self._is_given_up(key) else pods & self._read_for(key))
        )

    @property
    def problems(self) -> Mapping[Key, str]:
        """Why claims cannot be read or served."""
        problems = {key: it.problem for key, it in self._read.items() if it.problem}
        unread = [key for key in self._wanted if self._is_given_up(key) and self._is_unread(key)]
        return problems | {key: self._reader.failure(*key) or NO_ANSWER for key in unread}

    def _is_given_up(self, key: Key) -> bool:
        return key in self._late or key[0] in self._silent or len(self._silent) > 1

    def _read_for(self, key: Key) -> frozenset[str]:
        return self._read[key].pods if key in self._read else frozenset()

    def _is_unread(self, key: Key) -> bool:
        return key in self._wanted and (key not in self._read or self._read[key].pods != self._wanted[key])

    async def run(self, request_pass: Callable[[], None]) -> None:
        """Read claims until cancelled; request passes for the results."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(READERS):
                    group.create_task(self._read_new(group, request_pass))
                group.create_task(self._read_again(request_pass))
        finally:
            self._stop_timer()

    async def _read_new(self, group: asyncio.TaskGroup, request_pass: Callable[[], None]) -> None:
        """Read queued claims; request a pass when the queue is empty, or all claims of a pod are read (rate-limited).

        While the API server fails at a claim, another reader continues, and this one ends with the claim. So it delays
        its namespace alone.
        """
        successors: list[asyncio.Task[None]] = []

        def hand_over() -> None:
            if not successors:
                successors.append(group.create_task(self._read_new(group, request_pass)))

        while not successors:
            async with self._queue.next() as key:
                if self._is_unread(key):  # another reader may have read it in the meantime
                    await self._look(key, request_pass, hand_over)
                    self._limit.charge(key[0], self._reader.size(*key))
            is_last = self._queue.is_empty  # a namespace that waits for its rate limit has claims in it
            if self._has_news and is_last:
                self._request(request_pass)
            elif self._has_complete:
                self._request_when_due(request_pass)
            if key in self._late and self._is_unread(key):
                self._queue.put_last(key)

    def _request(self, request_pass: Callable[[], None]) -> None:
        """Request a pass for all claims that are known by now."""
        self._stop_timer()
        self._has_news = self._has_complete = False
        self._requested = self._clock()
        request_pass()

    def _request_when_due(self, request_pass: Callable[[], None]) -> None:
        """Request a pass, PASS_SECONDS after the last request or later; by a timer, as the next read may take long."""
        wait = self._requested + self._pass_seconds - self._clock()
        if wait <= 0:
            self._request(request_pass)
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(wait, self._request, request_pass)

    def _stop_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = None

    async def _read_again(self, request_pass: Callable[[], None]) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                await self._doubts.wait()
                self._doubts.clear()
                for key in [key for key, read in self._read.items() if not read.is_final]:
                    if key not in self._repeats:
                        self._repeats[key] = group.create_task(self._repeat(key, request_pass))

    async def _repeat(self, key: Key, request_pass: Callable[[], None]) -> None:
        """Repeat the read of a claim until it is reserved for the pods that name it, or no pod names it.

        While the API server fails at the claim, other claims have their turn.
        """
        backoff = Backoff(*AGAIN_SECONDS)
        while self._is_doubtful(key):
            together = sum(self._seconds_for(other) for other in self._repeats if other[0] == key[0])
            await self._sleep(max(backoff.next(), together))
            await self._turn.acquire()  # the timeout of a read starts with its turn
            with ExitStack() as turn:
                turn.callback(self._turn.release)
                if not self._is_doubtful(key):
                    break
                before = self._read[key]
                await self._look(key, request_pass, failing=turn.close)
                if self._read.get(key) != before:
                    request_pass()
        if self._repeats.get(key) is asyncio.current_task():
            del self._repeats[key]

    def _seconds_for(self, key: Key) -> float:
        """Return how long a repeated read of a claim delays the next one of its namespace."""
        return EACH_SECONDS + self._reader.size(*key) / BYTES_A_SECOND

    def _is_doubtful(self, key: Key) -> bool:
        return key in self._read and not self._read[key].is_final

    async def _look(
        self, key: Key, request_pass: Callable[[], None], failing: Callable[[], None] = lambda: None
    ) -> None:
        pods = self._wanted.get(key)
        if pods is None:
            return
        try:
            async with asyncio.timeout(self._patience):
                found = await self._reader.read(*key, failing)
        except TimeoutError:
            self._note_late(key, request_pass)
            return
        except APIError as error:
            if self._is_news(key, str(error)):
                facts = {"claim": "/".join(key), "reason": str(error)}
                logger.warning("claim not read", extra={"facts": facts})
            self._note(key, _Read(pods, self._read[key].claim if key in self._read else None, str(error)))
            return
        if isinstance(found, BadClaim):
            if self._is_news(key, found.message):
                facts = {"claim": "/".join(key), "reason": found.message}
                logger.warning("claim not served", extra={"facts": facts})
            self._note(key, _Read(pods, None, found.message))
        else:
            self._note(key, _Read(pods, found, "" if found else GONE))

    def _note_late(self, key: Key, request_pass: Callable[[], None]) -> None:
        """Record a timeout; request a pass unless the claim was late already and the API server still fails at it."""
        is_failing, was_late = bool(self._reader.failure(*key)), key in self._late
        self._late.add(key)
        if not was_late and self._is_unread(key):
            self._left.subtract(self._wanted[key])
        if not is_failing:  # otherwise the API server answers
            self._silent.add(key[0])
        if not (is_failing and was_late):
            request_pass()

    def _is_news(self, key: Key, problem: str) -> bool:
        """Return whether a problem differs from that of the claim's last read, so that it is logged."""
        return key not in self._read or self._read[key].problem != problem

    def _note(self, key: Key, read: _Read) -> None:
        was_unread, was_late = self._is_unread(key), key in self._late
        self._has_news = True
        self._silent.clear()
        self._late.discard(key)
        self._read[key] = read
        if was_unread and not self._is_unread(key):
            if not was_late:  # `_note_late` has subtracted it
                self._left.subtract(read.pods)
            self._has_complete |= any(self._left[pod] <= 0 for pod in read.pods)
        if not read.is_final:
            self._doubts.set()
