"""The ledger on disk, so that an agent that dies at any instruction starts again with what it held.

Written before any action, where an agent that is killed leaves it to the next one, and flushed after the actions: a
disk takes longer for that than the kernel for all cpusets. Only a power cut can take back what was not flushed, and it
takes back the actions too, so the one before is kept until then. A file that is not wholly right counts as absent; it
is kept aside for analysis, and never has to be deleted by hand.

A later version may add members, which are passed over at the top and inside `ledger`. What an agent must know in order
to act by the file it names in `needs`: with a word that is not in KNOWN an agent moves nothing and keeps the file.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from agent.errors import AgentError
from pinning.errors import PinningError
from pinning.json_text import parse_json
from pinning.machine.cpuset import CPUSet
from pinning.machine.topology import Topology
from pinning.planning.ledger_json import ledger_from_dict, ledger_to_dict
from pinning.truncate import VALUE, listed, truncate

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pinning.planning.ledger import Ledger

VERSION: Final = 1
NAME: Final = "checkpoint.json"
LOCK: Final = "lock"
KEYS: Final = frozenset({"machineID", "bootID", "topology", "universe", "ledger"})
KNOWN: Final[frozenset[str]] = frozenset()  # words of `needs`


class AlreadyRunning(AgentError):
    """Another agent works on this node."""


class Unusable(AgentError):
    """A checkpoint is there and cannot be used; the message says why."""


class NeedsNewer(AgentError):
    """A later version of corepin wrote the checkpoint, and this one does not know how to act by it."""

    def __init__(self, words: frozenset[str]) -> None:
        super().__init__(
            f"the checkpoint needs {listed(words)}, which this version of corepin does not know:"
            " start the version that wrote it, or a later one"
        )


@dataclass(frozen=True, slots=True)
class Saved:
    """What a checkpoint holds."""

    machine_id: str
    boot_id: str
    topology: Topology
    universe: CPUSet
    ledger: Ledger
    reserved: CPUSet | None = None  # None: an earlier agent wrote it
    needs: frozenset[str] = frozenset()  # what an agent must know in order to act by it


class StateDir:
    """The agent's directory on the node. Holding one keeps every other agent out, until the process ends."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._path = folder / NAME
        self._old = self._path.with_suffix(".old")
        self._lock = _locked(folder / LOCK)

    def load(self, machine_id: str) -> Saved | None:
        """Return the checkpoint of this machine, None when there is none.

        Raises Unusable for any other file, once: it is then kept aside as `checkpoint.json.damaged`. Raises NeedsNewer
        for one that a later version has to read, and keeps it.
        """
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return read(content, machine_id)
        except Unusable:
            before = self._before(machine_id)
            if before:
                return before
            self._path.replace(self._path.with_suffix(".json.damaged"))
            raise

    def _before(self, machine_id: str) -> Saved | None:
        """Return the last checkpoint that was flushed, where the newest one was not."""
        with suppress(FileNotFoundError, Unusable):
            return read(self._old.read_bytes(), machine_id)
        return None

    def save(self, saved: Saved) -> None:
        """Replace the checkpoint atomically: an agent that is killed leaves either the old or the new one."""
        beside = self._path.with_suffix(".new")
        beside.write_bytes(write(saved))
        with suppress(FileExistsError, FileNotFoundError):  # what is kept already is what was flushed
            self._old.hardlink_to(self._path)
        beside.replace(self._path)

    def beside(self, name: str) -> Path:
        """Return the path of another file of the agent's directory."""
        return self._folder / name

    def settle(self) -> None:
        """Flush the checkpoint; from here on it outlives a power cut too."""
        with self._path.open("rb") as file:
            os.fsync(file.fileno())
        self._old.unlink(missing_ok=True)

    def remove(self) -> None:
        """Forget everything (uninstall)."""
        for path in (self._path, self._old):
            path.unlink(missing_ok=True)
        _flush_folder(self._folder)

    def close(self) -> None:
        """Let another agent in."""
        os.close(self._lock)


class Checkpoint:
    """What this agent saved last: written when it is out of date, flushed after what it was written for is done."""

    def __init__(self, state_dir: StateDir) -> None:
        self._state_dir = state_dir
        self._is_settled = True
        self.saved: Saved | None = None

    async def save(self, saved: Saved) -> None:
        """Leave it to the next agent, unless that would find the same."""
        if self.saved is None or _differs(saved, self.saved):
            await asyncio.to_thread(self._state_dir.save, saved)
            self.saved, self._is_settled = saved, False

    async def settle(self) -> None:
        """Flush what was written since; what fails is written anew, for the kernel tells only once that it failed."""
        if self._is_settled:
            return
        try:
            await asyncio.to_thread(self._state_dir.settle)
        except OSError:
            self.saved = None
            raise
        self._is_settled = True

    def remove(self) -> None:
        """Forget everything (uninstall)."""
        self._state_dir.remove()


def _differs(new: Saved, old: Saved) -> bool:
    """Say whether a checkpoint is out of date; which CPUs are online now is read anew at every start."""
    if new.ledger is not old.ledger and new.ledger != old.ledger:
        return True
    if (new.reserved, new.needs) != (old.reserved, old.needs):
        return True
    return new.universe != old.universe or new.topology.cores != old.topology.cores


def write(saved: Saved) -> bytes:
    """Return a checkpoint as text of one line.

    The reserve stands inside `ledger`, and `needs` is there only with words in it: earlier agents refuse a
    checkpoint with another key beside it, and ignore one within.
    """
    ledger = ledger_to_dict(saved.ledger)
    if saved.reserved is not None:
        ledger["reserved"] = str(saved.reserved)
    body = {
        "machineID": saved.machine_id,
        "bootID": saved.boot_id,
        "topology": saved.topology.to_dict(),
        "universe": str(saved.universe),
        "ledger": ledger,
    }
    if saved.needs:
        body["needs"] = sorted(saved.needs)
    text = _text(body)
    return f'{{"version":{VERSION},"checksum":"{_checksum(text)}",{text[1:]}\n'.encode()


def read(content: bytes, machine_id: str) -> Saved:
    """Return what `write` wrote on this machine; raise NeedsNewer if it needs more, Unusable for everything else."""
    body = _body(content)
    if body["machineID"] != machine_id:
        raise Unusable(
            f"the checkpoint belongs to another machine ({body['machineID']}), this one is {machine_id}"
        )
    needs = _needs(body)
    if needs - KNOWN:
        raise NeedsNewer(needs - KNOWN)
    try:
        topology, ledger = Topology.from_dict(body["topology"]), ledger_from_dict(body["ledger"])
        universe = CPUSet.parse(body["universe"])
        reserved = CPUSet.parse(body["ledger"]["reserved"]) if "reserved" in body["ledger"] else None
    except (PinningError, AttributeError) as problem:
        raise Unusable(str(problem)) from problem
    return Saved(machine_id, str(body["bootID"]), topology, universe, ledger, reserved, needs)


def unknown_needs(path: Path) -> frozenset[str]:
    """Return what an agent of this version lacks in order to act by a checkpoint; nothing if it cannot be read."""
    with suppress(OSError, Unusable):
        return _needs(_body(path.read_bytes())) - KNOWN
    return frozenset()


def _needs(body: Mapping[str, Any]) -> frozenset[str]:
    words = body.get("needs", [])
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise Unusable(
            f"the checkpoint is damaged: needs is {truncate(repr(words), VALUE)}, no list of words"
        )
    return frozenset(words)


def _body(content: bytes) -> dict[str, Any]:
    try:
        body = parse_json(content)
        version, checksum = body.pop("version"), body.pop("checksum")
    except (ValueError, KeyError, AttributeError, TypeError) as problem:
        raise Unusable(f"the checkpoint is damaged: {problem!r}") from problem
    if version != VERSION:
        raise Unusable(f"the checkpoint has version {version!r}, this agent writes version {VERSION}")
    if not body.keys() >= KEYS or checksum != _checksum(_text(body)):
        raise Unusable("the checkpoint is damaged: its checksum is wrong")
    return dict(body)


def _text(body: dict[str, Any]) -> str:
    return json.dumps(body, separators=(",", ":"), sort_keys=True)


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def as_kept(saved: Saved, boot_id: str, now: Topology) -> Ledger:
    """Return the ledger to go on with. After a reboot, what rests on cores that changed is given up.

    Within one boot cores cannot change, and CPUs that are offline are the plan's business.
    """
    if saved.boot_id == boot_id:
        return saved.ledger
    cores = {core.cpus for core in now.cores}
    ledger = saved.ledger
    for assignment in saved.ledger:
        before = saved.topology.cores_of(assignment.footprint)
        if not assignment.footprint <= now.cpus or any(core.cpus not in cores for core in before):
            ledger = ledger.release(assignment.owner)
    return ledger


def _locked(path: Path) -> int:
    """Return a lock that the kernel lets go when the process dies, however it does."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(lock, 32).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        holds = f"another corepin agent (pid {holder}) works on this node and holds {path}"
        raise AlreadyRunning(f"{holds}: stop it, or start this one with another --state-dir") from error
    os.ftruncate(lock, 0)
    with suppress(OSError):  # the pid is only a hint for people
        os.write(lock, f"{os.getpid()}\n".encode())
    return lock


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
