"""Who has what, for the agent that comes after this one. Of this boot alone: no process outlives it.

A file of lines of JSON: what is new is added to its end, so that an answer costs the same however many were given
before. Of two lines for one process or container the later one counts. Nothing is written at an end: a process that is
over is seen to be.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agent.wrappers.registry import Claim, Holder, Process
from agent.wrappers.wants import Pool, Want
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
SPARE_LINES: Final = 1000  # beyond twice those that count, before the file is written anew
REST_SECONDS: Final = 1.0  # after a failure, before another try for those who ask: it writes everything

_DAMAGES: Final = (ValueError, KeyError, TypeError, AttributeError, PinningError)

Used = tuple[Owner, frozenset[PoolUse]]  # which pools a container reaches beside what it owns


class Kept(NamedTuple):
    """What outlives an agent."""

    claims: tuple[Claim, ...] = ()  # of two that have one core the later counts
    uses: Mapping[str, Used] = {}  # of containers that were wrapped, by their ids


class Store:
    """A file that is added to, or replaced at once. Not flushed: what a power cut takes back ended with it."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._end = -1  # its descriptor; none as long as this agent has not written it
        self._lines = 0

    def add(self, texts: Iterable[str], kept: Callable[[], Kept]) -> None:
        """Leave the texts to the next agent, which are of some of what is `kept` in all; raise OSError.

        After a failure everything is left to it.
        """
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
        """Leave this alone to the next agent; raise OSError."""
        self._close()
        beside = self._path.with_suffix(".new")
        beside.write_text(write(kept, self._boot_id), encoding="utf-8")
        beside.replace(self._path)
        self._end = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._lines = -len(kept.claims) - len(kept.uses)

    def load(self) -> Kept:
        """Return what the last agent of this boot left, nothing where it left nothing that can be read."""
        try:
            text = self._path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return Kept()
        return read(text, self._boot_id)

    def remove(self) -> None:
        """Forget everything."""
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
    """Saves what is new, once for all that comes in one turn of the loop."""

    def __init__(
        self, store: Store, kept: Callable[[], Kept], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._kept = kept
        self._clock = clock
        self._due: list[str] = []  # what is not saved yet
        self._failed: tuple[object, ...] = ()  # with what, if the last try did
        self._again = 0.0  # when those who ask have another try
        self._saving: asyncio.Future[None] | None = None  # that which all wait for

    def took(self, claim: Claim) -> None:
        """Know of a claim that is new, or another one than before."""
        self._due.append(claim_text(claim))

    def uses(self, container_id: str, used: Used) -> None:
        """Know of a container that reaches more pools than before."""
        self._due.append(use_text(container_id, used))

    def save(self) -> None:
        """Save now what is not saved yet; raise OSError."""
        if not self._due:
            return
        try:
            self._store.add(self._due, self._kept)
        except OSError as error:
            self._due = self._due[-1:]  # the next time everything is written: a full disk fills no memory
            self._failed, self._again = error.args, self._clock() + REST_SECONDS
            raise
        self._due, self._failed = [], ()

    async def saved(self) -> None:
        """Return as soon as everything is saved that came until now; raise OSError, also for a failure just now."""
        if not self._due:
            return
        if self._failed and self._clock() < self._again:
            raise OSError(*self._failed)
        if self._saving is None:
            loop = asyncio.get_running_loop()
            self._saving = loop.create_future()
            loop.call_soon(self._save_for, self._saving)
        await asyncio.shield(self._saving)  # others wait for it too, whoever gives up

    def _save_for(self, saving: asyncio.Future[None]) -> None:
        self._saving = None
        try:
            self.save()
        except Exception as error:  # noqa: BLE001 whoever waits raises it
            saving.set_exception(error)
        else:
            saving.set_result(None)


def write(kept: Kept, boot_id: str) -> str:
    """Return it as text."""
    head = _line({"version": VERSION, "bootID": boot_id})
    uses = [use_text(container, used) for container, used in kept.uses.items()]
    return "".join([head, *uses, *map(claim_text, kept.claims)])


def use_text(container_id: str, used: Used) -> str:
    """Return the line that tells which pools a container reaches."""
    owner, uses = used
    pools = [[use.pool, use.socket] for use in sorted_uses(uses)]
    return _line({"uses": container_id, "owner": list(owner), "pools": pools})


def sorted_uses(uses: Iterable[PoolUse]) -> list[PoolUse]:
    """Return uses in a total order."""
    return sorted(uses, key=lambda use: (use.pool, -1 if use.socket is None else use.socket))


def claim_text(claim: Claim) -> str:
    """Return the line that tells of a claim."""
    return _line(
        {
            "process": list(claim.process),
            "container": claim.holder.id,
            "owner": list(claim.holder.owner),
            "name": claim.holder.name,
            "want": list(claim.want),
            "cpus": str(claim.cpus),
        }
    )


def _line(body: dict[str, Any]) -> str:
    return json.dumps(body, separators=(",", ":")) + "\n"


def read(text: str, boot_id: str) -> Kept:
    """Return what `write` wrote in this boot, and what was added; nothing for everything else."""
    head, *lines = text.split("\n")
    claims: dict[Process, Claim] = {}
    uses: dict[str, Used] = {}
    try:
        body = parse_json(head)
        if (body["version"], body["bootID"]) != (VERSION, boot_id):
            return Kept()
    except _DAMAGES:
        return Kept()
    for line in lines:
        with suppress(*_DAMAGES):  # an agent that ends in the middle of a line has not answered for it
            _read_line(parse_json(line), claims, uses)
    return Kept(tuple(claims.values()), uses)


def _read_line(saved: Mapping[str, Any], claims: dict[Process, Claim], uses: dict[str, Used]) -> None:
    if "uses" in saved:
        uses[str(saved["uses"])] = _read_uses(saved)
        return
    claim = _read_claim(saved)
    claims.pop(claim.process, None)
    claims[claim.process] = claim


def _read_claim(saved: Mapping[str, Any]) -> Claim:
    pid, began = saved["process"]
    uid, container = saved["owner"]
    pool, cores, socket, is_pinned = saved["want"]
    holder = Holder(saved["container"], Owner(uid, container), saved["name"])
    want = Want(Pool(pool), cores, socket, is_pinned)
    return Claim(Process(int(pid), int(began)), holder, want, CPUSet.parse(saved["cpus"]))


def _read_uses(saved: Mapping[str, Any]) -> Used:
    uid, container = saved["owner"]
    return Owner(uid, container), frozenset(
        PoolUse(SharedPool(pool), socket) for pool, socket in saved["pools"]
    )
