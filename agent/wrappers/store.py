"""State of the wrappers in a file, from which the next agent restores it.

The file has lines of JSON and is valid in one boot only, because processes end with it. Changes are appended, so that
the cost of an answer does not grow with earlier ones. If two lines are about the same process or container, the later
one is valid. The end of a process is a line too. If a claim has no such line and its process has exited, the process
ended while no agent ran.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agent.wrappers.protocol import Pool, Want
from agent.wrappers.registry import Claim, Holder, Process
from pinning.cmk.pools import Reclaimed
from pinning.contract import PoolUse, SharedPool
from pinning.errors import PinningError
from pinning.json_text import parse_json
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import Owner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

VERSION: Final = 2
FILE: Final = "wrappers.json"  # in the state directory
SPARE_LINES: Final = 1000  # the file is rewritten when it exceeds twice its valid lines by this number
REST_SECONDS: Final = 1.0  # between retries for requests after a failure, because each writes the whole file
MOST_RECLAIMED: Final = 256  # reclaimed entries of a node: 16 kB in its ReconcileReport
_DAMAGES: Final = (ValueError, KeyError, TypeError, AttributeError, PinningError)
Used = tuple["Owner", frozenset["PoolUse"]]  # a container, and the pools that it uses besides its own cores


class Kept(NamedTuple):
    """State of the wrappers of a node."""

    claims: tuple[Claim, ...] = ()  # if two claims share a core, the later one is valid
    uses: Mapping[str, Used] = {}  # pools used by each container with wrappers, by container id
    pools: Mapping[PoolUse, CPUSet] = {}  # CPUs of the pools with running processes
    reclaimed: tuple[Reclaimed, ...] = ()
    dropped: int = 0  # number of entries that were dropped above the limit
    # False: written by an agent that recorded no ends, so a claim may have ended long ago
    has_ends: bool = True


class Reclaims:
    """Bounded list of CPUs whose processes died without releasing them.

    Above the bound, the oldest entry of the namespace with the most entries is evicted, so that a tenant which kills
    its own processes in a loop evicts only its own entries.
    """

    def __init__(self, entries: Iterable[Reclaimed] = (), dropped: int = 0) -> None:
        self._entries: dict[int, Reclaimed] = {}  # by number, oldest first
        self._of_namespace: dict[str, deque[int]] = {}
        self._next = 0
        self.dropped = dropped
        for entry in entries:
            self.add(entry)

    @property
    def entries(self) -> tuple[Reclaimed, ...]:
        """The entries, newest last."""
        return tuple(self._entries.values())

    def add(self, entry: Reclaimed) -> None:
        """Add an entry, and drop one above the limit."""
        self._entries[self._next] = entry
        self._of_namespace.setdefault(_namespace(entry), deque()).append(self._next)
        self._next += 1
        if len(self._entries) > MOST_RECLAIMED:
            most = max(self._of_namespace, key=self._rank)
            del self._entries[self._of_namespace[most].popleft()]
            if not self._of_namespace[most]:
                del self._of_namespace[most]
            self.dropped += 1

    def _rank(self, namespace: str) -> tuple[int, int]:
        """Return the order of eviction: most entries first, then the oldest entry."""
        numbers = self._of_namespace[namespace]
        return len(numbers), -numbers[0]


def _namespace(entry: Reclaimed) -> str:
    return entry.container.partition("/")[0]


class Store:
    """The file of the state: changes are appended to it, or it is replaced atomically.

    It is not flushed to disk, because after a power failure the processes have ended too.
    """

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._end = -1  # file descriptor; -1 until this agent has written the file
        self._lines = 0

    def add(self, texts: Iterable[str], kept: Callable[[], Kept]) -> None:
        """Append lines for changes; after a failure, or if the file is too long, save all of `kept`; raise OSError."""
        lines = list(texts)
        if self._end < 0 or self._lines + len(lines) > SPARE_LINES:
            self.save(kept())
            return
        try:
            _append(self._end, "".join(lines).encode())
        except OSError:
            self._close()
            raise
        self._lines += len(lines)

    def save(self, kept: Kept) -> None:
        """Replace the file by this state; raise OSError."""
        self._close()
        beside = self._path.with_suffix(".new")
        beside.write_text(write(kept, self._boot_id), encoding="utf-8")
        beside.replace(self._path)
        self._end = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._lines = -len(kept.claims) - len(kept.uses) - len(kept.pools) - len(kept.reclaimed)

    def load(self) -> Kept:
        """Return the state that the last agent saved in this boot; an empty one if it cannot be read."""
        try:
            text = self._path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return Kept()
        return read(text, self._boot_id)

    def remove(self) -> None:
        """Delete the file."""
        self._close()
        self._path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._end >= 0:
            os.close(self._end)
            self._end = -1


def _append(end: int, content: bytes) -> None:
    if os.write(end, content) != len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Saver:
    """Saves changes, coalesced per loop iteration."""

    def __init__(
        self, store: Store, kept: Callable[[], Kept], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._kept = kept
        self._clock = clock
        self._due: list[str] = []  # lines that are not saved yet
        # Arguments of the OSError of the last save; empty: the save succeeded.
        self._failed: tuple[object, ...] = ()
        self._again = 0.0  # time of the next retry for requests
        self._saving: asyncio.Future[None] | None = None  # the pending save that all callers wait for

    def took(self, claim: Claim) -> None:
        """Queue a new or changed claim."""
        self._due.append(claim_text(claim))

    def ended(self, claim: Claim) -> None:
        """Queue the end of a claim."""
        self._due.append(end_text(claim.process))

    def reclaimed(self, entry: Reclaimed) -> None:
        """Queue a CPU list whose process died without releasing it."""
        self._due.append(reclaimed_text(entry))

    def pool(self, use: PoolUse, cpus: CPUSet) -> None:
        """Queue a pool with a new process, or with changed CPUs."""
        self._due.append(pool_text(use, cpus))

    @property
    def rests(self) -> bool:
        """Return whether the last save failed less than REST_SECONDS ago."""
        return bool(self._failed) and self._clock() < self._again

    def uses(self, container_id: str, used: Used) -> None:
        """Queue a container with additional pools."""
        self._due.append(use_text(container_id, used))

    def save(self) -> None:
        """Save the queue now; raise OSError."""
        if not self._due:
            return
        try:
            self._store.add(self._due, self._kept)
        except OSError as error:
            # the next save writes everything, so the queue need not grow on a full disk
            self._due = self._due[-1:]
            self._failed, self._again = error.args, self._clock() + REST_SECONDS
            raise
        self._due, self._failed = [], ()

    async def saved(self) -> None:
        """Wait until everything queued so far is saved; raise OSError, at once if a save failed a moment ago."""
        if not self._due:
            return
        if self.rests:
            raise OSError(*self._failed)
        if self._saving is None:
            loop = asyncio.get_running_loop()
            self._saving = loop.create_future()
            loop.call_soon(self._save_for, self._saving)
        await asyncio.shield(self._saving)  # a cancelled waiter must not cancel the save for the others

    def _save_for(self, saving: asyncio.Future[None]) -> None:
        self._saving = None
        try:
            self.save()
        except Exception as error:  # noqa: BLE001 the waiters raise it
            saving.set_exception(error)
        else:
            saving.set_result(None)


def write(kept: Kept, boot_id: str) -> str:
    """Encode the whole state as lines of the file."""
    head = _line({"version": VERSION, "bootID": boot_id, "ends": True, "dropped": kept.dropped})
    uses = [use_text(container, used) for container, used in kept.uses.items()]
    pools = [pool_text(use, cpus) for use, cpus in kept.pools.items()]
    return "".join([head, *uses, *pools, *map(reclaimed_text, kept.reclaimed), *map(claim_text, kept.claims)])


def use_text(container_id: str, used: Used) -> str:
    """Encode the pools of a container."""
    owner, uses = used
    pools = [[use.pool, use.socket] for use in sorted_uses(uses)]
    return _line({"uses": container_id, "owner": list(owner), "pools": pools})


def sorted_uses(uses: Iterable[PoolUse]) -> list[PoolUse]:
    """Return uses in a total order."""
    return sorted(uses, key=lambda use: (use.pool, -1 if use.socket is None else use.socket))


def claim_text(claim: Claim) -> str:
    """Encode a claim."""
    body: dict[str, Any] = {
        "process": list(claim.process),
        "container": claim.holder.id,
        "owner": list(claim.holder.owner),
        "name": claim.holder.name,
        "want": list(claim.want),
        "cpus": str(claim.cpus),
    }
    if claim.outer:
        body["outer"] = {"want": list(claim.outer.want), "cpus": str(claim.outer.cpus)}
    return _line(body)


def end_text(process: Process) -> str:
    """Encode the end of a process's claim."""
    return _line({"ended": list(process)})


def reclaimed_text(entry: Reclaimed) -> str:
    """Encode a CPU list whose process died without releasing it."""
    return _line({"reclaimed": list(entry)})


def pool_text(use: PoolUse, cpus: CPUSet) -> str:
    """Encode the CPUs of a pool."""
    return _line({"pool": [use.pool, use.socket], "cpus": str(cpus)})


def _line(body: dict[str, Any]) -> str:
    return json.dumps(body, separators=(",", ":")) + "\n"


class _Reader:
    """Parser that collects the state from the lines of a file."""

    def __init__(self, dropped: int) -> None:
        self.claims: dict[Process, Claim] = {}
        self.uses: dict[str, Used] = {}
        self.pools: dict[PoolUse, CPUSet] = {}
        self.reclaims = Reclaims(dropped=dropped)

    def read(self, saved: Mapping[str, Any]) -> None:
        """Parse one line and add it to the state; raise one of _DAMAGES."""
        if "uses" in saved:
            self.uses[str(saved["uses"])] = _read_uses(saved)
        elif "ended" in saved:
            self.claims.pop(_process(saved["ended"]), None)
        elif "reclaimed" in saved:
            pid, container, pool, cpus, *source = saved["reclaimed"]  # earlier agents wrote no source
            self.reclaims.add(
                Reclaimed(int(pid), str(container), str(pool), str(cpus), *map(str, source[:1]))
            )
        elif "pool" in saved:
            self.pools[_pool_use(saved["pool"])] = CPUSet.parse(saved["cpus"])
        else:
            claim = _read_claim(saved)
            self.claims.pop(claim.process, None)
            self.claims[claim.process] = claim


def read(text: str, boot_id: str) -> Kept:
    """Decode the text that `write` wrote, with appended lines; return an empty state for another boot or version."""
    first, *lines = text.split("\n")
    try:
        head = parse_json(first)
        if (head["version"], head["bootID"]) != (VERSION, boot_id):
            return Kept()
        reader, has_ends = _Reader(int(head.get("dropped", 0))), head.get("ends") is True
    except _DAMAGES:
        return Kept()
    for line in lines:
        with suppress(*_DAMAGES):  # an agent killed while it wrote a line had not answered
            reader.read(parse_json(line))
    reclaims = reader.reclaims
    return Kept(
        tuple(reader.claims.values()),
        reader.uses,
        reader.pools,
        reclaims.entries,
        reclaims.dropped,
        has_ends,
    )


def _process(saved: Any) -> Process:
    pid, began = saved
    return Process(int(pid), int(began))


def _pool_use(saved: Any) -> PoolUse:
    pool, socket = saved
    return PoolUse(SharedPool(pool), socket)


def _read_claim(saved: Mapping[str, Any]) -> Claim:
    process, (uid, container) = _process(saved["process"]), saved["owner"]
    holder = Holder(saved["container"], Owner(uid, container), saved["name"])
    outer = saved.get("outer")
    return Claim(
        process,
        holder,
        _read_want(saved["want"]),
        CPUSet.parse(saved["cpus"]),
        outer and Claim(process, holder, _read_want(outer["want"]), CPUSet.parse(outer["cpus"])),
    )


def _read_want(saved: Any) -> Want:
    pool, cores, socket, is_pinned = saved
    return Want(Pool(pool), cores, socket, is_pinned)


def _read_uses(saved: Mapping[str, Any]) -> Used:
    uid, container = saved["owner"]
    return Owner(uid, container), frozenset(map(_pool_use, saved["pools"]))
