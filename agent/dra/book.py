"""Prepare waits until a saved ledger has a claim's CPUs, and Unprepare until it no longer has them.

The ledger in the checkpoint records which claims are prepared, because the kubelet calls Prepare once for a claim and
does not repeat it after a restart of the kubelet or the agent. This module only adds the claims whose Prepare is not
answered yet, and the claims that were unprepared since the last pass.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from agent.dra.read_limit import BURST_BYTES, BYTES_A_SECOND
from agent.dra.refusals import Cause, RefusedPrepare
from apiserver.errors import APIError
from pinning.contract import DRA_CAPACITY
from pinning.dra.claims import BadClaim, DeviceClaim, is_uid

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from agent.dra.reader import ClaimReader
    from pinning.dra.claims import ClaimGrant
    from pinning.planning.ledger import Ledger

# Limit of one Prepare or Unprepare. The kubelet waits 45 s, and retries a failed Prepare after 60 to 90 s.
WAIT_SECONDS: Final = 40.0
# Claims that are read within this time are placed by one pass, because each pass plans the whole node.
GATHER_SECONDS: Final = 0.02
# Limit of reading a claim that is already prepared; after it the known CPUs are used, because a claim cannot be
# reallocated while a pod for which it is reserved exists.
READ_SECONDS: Final = 5.0


class ClaimBook:
    """The kubelet's requests to the driver between two passes."""

    def __init__(self, reader: ClaimReader, wait_seconds: float = WAIT_SECONDS) -> None:
        self._reader = reader
        self._wait_seconds = wait_seconds
        self.read_seconds = READ_SECONDS
        self.present: frozenset[str] = frozenset()  # uids of the pods of this node that have not ended
        # Claims of the saved ledger, by uid; None before the first pass.
        self.grants: Mapping[str, ClaimGrant] | None = None
        self._waiting: Mapping[str, str] = {}
        self._asked: dict[str, DeviceClaim] = {}  # claims whose Prepare has not been answered, by uid
        self._callers: Counter[str] = Counter()  # number of Prepare calls that wait for a claim, by uid
        self._reads = 0  # number of claims that are being read from the API server
        # Runs until a pass is requested for the claims read so far.
        self._gathering: asyncio.TimerHandle | None = None
        self._released: set[str] = set()
        self._releasing: frozenset[str] = frozenset()  # claims that the newest pass may release
        # Unprepared claims that the last pass did not release, because containers still run on their CPUs.
        self._in_use: frozenset[str] = frozenset()
        self._begun = 0  # number of the newest pass; passes do not overlap
        # By claim in Prepare: number of the last pass that may still release it, because an earlier Unprepare asked for
        # that. The ledger of such a pass does not count for the claim.
        self._stale_until: dict[str, int] = {}
        self._passed = asyncio.Event()  # set, and replaced, after each pass
        self.request_pass: Callable[[], None] = lambda: None

    @property
    def asked(self) -> Mapping[str, DeviceClaim]:
        """The claims whose Prepare call waits for CPUs, by uid."""
        return self._asked

    def begin(self, known: Collection[str]) -> frozenset[str]:
        """Begin a pass, and return the uids of unprepared claims, which it may release.

        An unprepared claim is forgotten when neither the ledger, nor a pod (`known`), nor a Prepare has it.
        """
        self._begun += 1
        grants, asked = self.grants or {}, self._asked
        self._released = {uid for uid in self._released if uid in known or uid in grants or uid in asked}
        self._releasing = frozenset(self._released)
        return self._releasing

    def passed(self, ledger: Ledger, waiting: Mapping[str, str]) -> None:
        """Receive the ledger that a pass saved, and the reasons for claims without CPUs."""
        self.grants, self._waiting = ledger.claims, waiting
        self._in_use = self._releasing & ledger.claims.keys()
        self._stale_until = {uid: last for uid, last in self._stale_until.items() if last >= self._begun}
        self._passed.set()
        self._passed = asyncio.Event()

    def release(self, uid: str) -> None:
        """Release the CPUs of a claim in the next pass."""
        self._released.add(uid)
        self.request_pass()

    async def prepare(self, namespace: str, uid: str, name: str) -> ClaimGrant | DeviceClaim | RefusedPrepare:
        """Return the CPUs of a claim, the claim itself if it has no device of this driver, or a refusal."""
        if not is_uid(uid):
            return RefusedPrepare(Cause.INVALID, f"claim {namespace}/{name}: {uid[:64]!r} is not a uid")
        is_read = False
        try:
            async with asyncio.timeout(self._wait_seconds):
                claim = await self._newest(namespace, uid, name)
                if not isinstance(claim, DeviceClaim) or not claim.parts:
                    return claim
                if grant := self._granted_for(claim):
                    return grant
                is_read = True
                return await self._granted(claim)
        except TimeoutError:
            if not is_read:
                return self._unread(namespace, name)
            cause, why = self._late(uid)
            return RefusedPrepare(cause, f"claim {namespace}/{name}: {why}")

    def _late(self, uid: str) -> tuple[Cause, str]:
        """Return why a claim has no CPUs at the timeout."""
        why = self._waiting.get(uid)
        return (Cause.NO_ROOM, why) if why else (Cause.NOT_READY, NOT_PASSED)

    def _unread(self, namespace: str, name: str) -> RefusedPrepare:
        """Return the refusal of a claim that is not read at the timeout."""
        what = f"claim {namespace}/{name}"
        if failure := self._reader.failure(namespace, name):
            return RefusedPrepare(Cause.UNREADABLE, f"{what} cannot be read: {failure}")
        why = LIMITED if self._reader.prepare_limit.wait(namespace) > 0 else SILENT
        return RefusedPrepare(Cause.UNREADABLE, f"{what}: {why}")

    def prepared(self, uid: str) -> ClaimGrant | None:
        """Return the CPUs of a prepared claim; None if it has none, or is being unprepared."""
        grant = (self.grants or {}).get(uid)
        is_valid = uid not in self._released and uid not in self._stale_until
        return grant if grant and grant.is_prepared and is_valid else None

    def served(self, uid: str) -> ClaimGrant | None:
        """Return the CPUs of a claim that is prepared, or was unprepared while its containers still run."""
        kept = (self.grants or {}).get(uid) if uid in self._in_use else None
        return self.prepared(uid) or kept

    def _granted_for(self, claim: DeviceClaim) -> ClaimGrant | None:
        """Return the CPUs of a prepared claim; None if it is not prepared, or if they belong to another allocation."""
        grant = self.prepared(claim.uid)
        return grant if grant and grant.claim.parts == claim.parts else None

    async def _newest(self, namespace: str, uid: str, name: str) -> ClaimGrant | DeviceClaim | RefusedPrepare:
        """Return an allocated claim, its CPUs if it cannot be read and cannot have changed, or a refusal."""
        held = self._held(uid)
        try:
            async with asyncio.timeout(self.read_seconds if held else None):
                with self._reading():
                    claim = await self._read(namespace, uid, name)
        except TimeoutError:
            return self._held(uid) or self._unread(namespace, name)
        is_unreadable = isinstance(claim, RefusedPrepare) and claim.cause is Cause.UNREADABLE
        return self._held(uid) or claim if is_unreadable else claim

    def _held(self, uid: str) -> ClaimGrant | None:
        """Return the CPUs of a prepared claim, if a pod for which it is reserved still exists."""
        grant = self.prepared(uid)
        return grant if grant and not grant.claim.pods.isdisjoint(self.present) else None

    async def _read(self, namespace: str, uid: str, name: str) -> DeviceClaim | RefusedPrepare:
        """Return an allocated claim, or a refusal."""
        what = f"claim {namespace}/{name}"
        try:
            claim = await self._reader.read_limited(namespace, name)
        except APIError as error:
            return RefusedPrepare(Cause.UNREADABLE, f"{what} cannot be read: {error}")
        if claim is None:
            return RefusedPrepare(Cause.GONE, f"{what} does not exist: delete the pod")
        if isinstance(claim, BadClaim):
            return RefusedPrepare(Cause.INVALID, f"{what}: {claim.message}")
        if claim.uid != uid:
            why = f"{what} was recreated with another uid than the pod names: delete the pod"
            return RefusedPrepare(Cause.GONE, why)
        if (
            claim.elsewhere
        ):  # a pod that names its node itself: neither scheduler nor kubelet compares the nodes
            why = f"{what} has CPUs of node {claim.elsewhere} alone: delete the pod, and let the scheduler choose its node"
            return RefusedPrepare(Cause.INVALID, why)
        return claim

    async def _granted(self, claim: DeviceClaim) -> ClaimGrant | RefusedPrepare:
        """Wait until the saved ledger has the CPUs of a claim, and return them; a refusal if it was unprepared."""
        uid = claim.uid
        if uid in self._released:
            self._released.remove(uid)
            self._stale_until[uid] = self._begun
        with self._asking(claim):
            self._request_gathered()
            while uid not in self._released:
                if grant := self._granted_for(claim):
                    return grant
                await self._passed.wait()
        return RefusedPrepare(Cause.GIVEN_BACK, f"claim {claim.full_name} was unprepared in the meantime")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        self._reads += 1
        try:
            yield
        finally:
            self._reads -= 1

    def _request_gathered(self) -> None:
        """Request a pass: at once if no other claim is being read, otherwise after these reads, or GATHER_SECONDS."""
        if self._reads == 0:
            self._end_gathering()
        elif self._gathering is None:
            loop = asyncio.get_running_loop()
            self._gathering = loop.call_later(GATHER_SECONDS, self._end_gathering)

    def _end_gathering(self) -> None:
        if self._gathering:
            self._gathering.cancel()
            self._gathering = None
        self.request_pass()

    @contextmanager
    def _asking(self, claim: DeviceClaim) -> Iterator[None]:
        """Show a claim to passes until the last Prepare that waits for it returns."""
        self._asked[claim.uid] = claim
        self._callers[claim.uid] += 1
        try:
            yield
        finally:
            self._callers[claim.uid] -= 1
            if not self._callers[claim.uid]:
                del self._callers[claim.uid], self._asked[claim.uid]

    async def unprepare(self, uid: str) -> str:
        """Release the CPUs of a claim; return an error if no ledger without them was saved in time, otherwise "".

        If containers still run on the CPUs, return "" too: the kubelet must continue, and a later pass releases them.
        """
        self._released.add(uid)
        self._in_use -= {uid}
        self.request_pass()
        try:
            async with asyncio.timeout(self._wait_seconds):
                while self.grants is None or (uid in self.grants and uid not in self._in_use):
                    await self._passed.wait()
        except TimeoutError:
            return "the CPUs of the claim are not released yet: see the log of corepin's agent"
        return ""


SILENT: Final = "the API server does not answer"
LIMITED: Final = (
    f"claims of its namespace are read at {BYTES_A_SECOND // 2**10} KiB a second after the first {BURST_BYTES // 2**20} MiB,"
    " and other claims come first: use smaller claims, or start fewer pods with claims at once"
)
NOT_PASSED: Final = (
    f"no CPUs of {DRA_CAPACITY} yet, because corepin's agent does not know all pods and containers of this node: see its"
    " log"
)
