"""Who has what, for the agent that comes after this one. Of this boot alone: no process outlives it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agent.wrappers.registry import Claim, Holder, Process
from agent.wrappers.wants import Pool, Want
from pinning.contract import PoolUse, SharedPool
from pinning.errors import PinningError
from pinning.json_text import parse_json
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import Owner

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

VERSION: Final = 1
FILE: Final = "wrappers.json"  # in the state directory


class Kept(NamedTuple):
    """What outlives an agent."""

    claims: tuple[Claim, ...] = ()
    uses: Mapping[str, tuple[Owner, frozenset[PoolUse]]] = {}  # of containers that were wrapped, by their ids


class Store:
    """A file that is replaced at once. Not flushed: what a power cut takes back ended with it."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id

    def save(self, kept: Kept) -> None:
        """Leave it to the next agent; raise OSError."""
        beside = self._path.with_suffix(".new")
        beside.write_text(write(kept, self._boot_id), encoding="utf-8")
        beside.replace(self._path)

    def load(self) -> Kept:
        """Return what the last agent of this boot left, nothing where it left nothing that can be read."""
        try:
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return Kept()
        return read(text, self._boot_id)

    def remove(self) -> None:
        """Forget everything."""
        self._path.unlink(missing_ok=True)


def write(kept: Kept, boot_id: str) -> str:
    """Return it as text."""
    body = {
        "version": VERSION,
        "bootID": boot_id,
        "claims": [_claim(claim) for claim in kept.claims],
        "uses": {
            container: {"owner": list(owner), "pools": [[use.pool, use.socket] for use in sorted_uses(uses)]}
            for container, (owner, uses) in kept.uses.items()
        },
    }
    return json.dumps(body, separators=(",", ":")) + "\n"


def sorted_uses(uses: Iterable[PoolUse]) -> list[PoolUse]:
    """Return uses in a total order."""
    return sorted(uses, key=lambda use: (use.pool, -1 if use.socket is None else use.socket))


def _claim(claim: Claim) -> dict[str, Any]:
    return {
        "process": list(claim.process),
        "container": claim.holder.id,
        "owner": list(claim.holder.owner),
        "name": claim.holder.name,
        "want": list(claim.want),
        "cpus": str(claim.cpus),
    }


def read(text: str, boot_id: str) -> Kept:
    """Return what `write` wrote in this boot; nothing for everything else."""
    try:
        body = parse_json(text)
        if (body["version"], body["bootID"]) != (VERSION, boot_id):
            return Kept()
        claims = tuple(map(_read_claim, body["claims"]))
        uses = {container: _read_uses(each) for container, each in body["uses"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, PinningError):
        return Kept()
    return Kept(claims, uses)


def _read_claim(saved: Mapping[str, Any]) -> Claim:
    pid, began = saved["process"]
    uid, container = saved["owner"]
    pool, cores, socket, is_pinned = saved["want"]
    holder = Holder(saved["container"], Owner(uid, container), saved["name"])
    want = Want(Pool(pool), cores, socket, is_pinned)
    return Claim(Process(int(pid), int(began)), holder, want, CPUSet.parse(saved["cpus"]))


def _read_uses(saved: Mapping[str, Any]) -> tuple[Owner, frozenset[PoolUse]]:
    uid, container = saved["owner"]
    return Owner(uid, container), frozenset(
        PoolUse(SharedPool(pool), socket) for pool, socket in saved["pools"]
    )
