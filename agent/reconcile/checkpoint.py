"""The ledger on disk, so that an agent killed at any instruction resumes with it.

It is written before any action, so that it survives a kill of the agent. It is flushed to disk after the actions,
because a flush takes longer than all cpuset writes. Only a power failure can lose an unflushed checkpoint, and it
undoes the actions too, so the previous checkpoint is kept until the flush. A damaged file counts as absent; it is kept
aside for analysis, and never has to be deleted by hand.

A later version may add members, which are ignored at the top and inside `ledger`. A feature that older agents must not
ignore is named in `needs`: if `needs` has a word that is not in KNOWN, an agent moves nothing and keeps the file.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import msgspec

from agent.errors import AgentError
from pinning.errors import PinningError
from pinning.json_text import parse_json
from pinning.machine.cpuset import CPUSet, union
from pinning.machine.topology import Topology
from pinning.planning.ledger_json import (
    devices_from_list,
    devices_to_list,
    ledger_from_dict,
    ledger_members,
)
from pinning.truncate import VALUE, listed, truncate

if TYPE_CHECKING:
    from pathlib import Path

    from pinning.machine.near import Device
    from pinning.planning.ledger import Ledger
    from pinning.planning.observed import Owner

VERSION: Final = 1
NAME: Final = "checkpoint.json"
LOCK: Final = "lock"
KEYS: Final = frozenset({"machineID", "bootID", "topology", "universe", "ledger"})
# Needed while ResourceClaims hold CPUs, because older agents would assign these to others.
NEEDS_CLAIMS: Final = frozenset({"claims"})
KNOWN: Final = NEEDS_CLAIMS  # the words of `needs` that this version supports
_HEAD: Final = f'{{"version":{VERSION},"checksum":"'.encode()
_dumps: Final = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode
_msgspec: Final = msgspec.json.Encoder(order="sorted")


class AlreadyRunning(AgentError):
    """Another agent runs on this node."""


class Unusable(AgentError):
    """The checkpoint exists and is unusable; the message has the reason."""


class NeedsNewer(AgentError):
    """A later version of corepin wrote the checkpoint, and this version lacks a feature that it needs."""

    def __init__(self, words: frozenset[str]) -> None:
        super().__init__(
            f"the checkpoint needs {listed(words)}, which this version of corepin does not know:"
            " start the version that wrote it, or a later one"
        )


@dataclass(frozen=True, slots=True)
class Saved:
    """The content of a checkpoint."""

    machine_id: str
    boot_id: str
    topology: Topology
    universe: CPUSet
    ledger: Ledger
    reserved: CPUSet | None = None  # None: an earlier agent wrote the checkpoint
    needs: frozenset[str] = frozenset()  # words for features that an agent must support to use the checkpoint
    devices: Mapping[Owner, tuple[Device, ...]] = field(default_factory=lambda: MappingProxyType({}))


class StateDir:
    """The agent's directory on the node, locked against other agents until the process ends."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._path = folder / NAME
        self._old = self._path.with_suffix(".old")
        self._lock = _locked(folder / LOCK)

    def load(self, machine_id: str) -> Saved | None:
        """Return the checkpoint of this machine, None if there is none.

        Raises Unusable for a damaged or foreign file, once: the file is then renamed to `checkpoint.json.damaged`.
        Raises NeedsNewer for a file that needs a later version, and keeps it.
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
        """Return the last flushed checkpoint, if the newest one was not flushed."""
        with suppress(FileNotFoundError, Unusable):
            return read(self._old.read_bytes(), machine_id)
        return None

    def save(self, saved: Saved) -> None:
        """Replace the checkpoint atomically: an agent that is killed leaves either the old or the new one."""
        beside = self._path.with_suffix(".new")
        with beside.open("wb") as file:
            write(saved, file)
        with suppress(FileExistsError, FileNotFoundError):  # an existing link is the flushed one
            self._old.hardlink_to(self._path)
        beside.replace(self._path)

    def beside(self, name: str) -> Path:
        """Return the path of another file in the agent's directory."""
        return self._folder / name

    def settle(self) -> None:
        """Flush the checkpoint; from here on it survives a power failure."""
        with self._path.open("rb") as file:
            os.fsync(file.fileno())
        self._old.unlink(missing_ok=True)

    def remove(self) -> None:
        """Delete the checkpoint (uninstall)."""
        for path in (self._path, self._old):
            path.unlink(missing_ok=True)
        _flush_folder(self._folder)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._lock)


class Checkpoint:
    """The last saved state: written when it changed, flushed after the actions that it was written for."""

    def __init__(self, state_dir: StateDir) -> None:
        self._state_dir = state_dir
        self._is_settled = True
        self.saved: Saved | None = None

    async def save(self, saved: Saved) -> None:
        """Save the state unless it equals the last one."""
        if self.saved is None or _differs(saved, self.saved):
            await asyncio.to_thread(self._state_dir.save, saved)
            self.saved, self._is_settled = saved, False

    async def settle(self) -> None:
        """Flush pending writes.

        After a failed flush the next `save` writes the file again, because the kernel reports the failure only once.
        """
        if self._is_settled:
            return
        try:
            await asyncio.to_thread(self._state_dir.settle)
        except OSError:
            self.saved = None
            raise
        self._is_settled = True

    def remove(self) -> None:
        """Delete the checkpoint (uninstall)."""
        self._state_dir.remove()


def _differs(new: Saved, old: Saved) -> bool:
    """Return whether a checkpoint is out of date; online CPUs do not count, because they are read at every start."""
    if new.ledger is not old.ledger and new.ledger != old.ledger:
        return True
    if new.devices is not old.devices and new.devices != old.devices:
        return True
    if (new.reserved, new.needs) != (old.reserved, old.needs):
        return True
    return new.universe != old.universe or new.topology.cores != old.topology.cores


def write(saved: Saved, file: BinaryIO) -> None:
    """Write a checkpoint as one line into an empty file.

    The items of the ledger are encoded one by one, because a thread that had the whole text in memory keeps several times
    its size for good, and each write may run in another thread. So the checksum, which stands first, is written last.
    """
    file.write(_HEAD)
    at, pieces = file.tell(), _object(_body(saved))
    checksum = hashlib.sha256(next(pieces))
    file.write(bytes(2 * checksum.digest_size) + b'",')
    for piece in pieces:
        checksum.update(piece)
        file.write(piece)
    file.write(b"\n")
    file.seek(at)
    file.write(checksum.hexdigest().encode())


def _body(saved: Saved) -> dict[str, Any]:
    """Return the members of a checkpoint that the checksum covers.

    Reserve and devices are inside `ledger`, and `needs` is left out while empty: earlier agents refuse an unknown key at the
    top, and ignore one inside.
    """
    ledger = ledger_members(saved.ledger)
    if saved.reserved is not None:
        ledger["reserved"] = str(saved.reserved)
    if saved.devices:
        ledger["devices"] = devices_to_list(saved.devices)
    body = {
        "machineID": saved.machine_id,
        "bootID": saved.boot_id,
        "topology": saved.topology.to_dict(),
        "universe": str(saved.universe),
        "ledger": _object(
            {name: _array(it) if isinstance(it, Iterator) else it for name, it in ledger.items()}
        ),
    }
    if saved.needs:
        body["needs"] = sorted(saved.needs)
    return body


def _object(members: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the text of an object, with sorted keys; members may be texts in pieces."""
    yield b"{"
    for number, name in enumerate(sorted(members)):
        yield (b"," if number else b"") + _encoded(name) + b":"
        value = members[name]
        yield from value if isinstance(value, Iterator) else (_encoded(value),)
    yield b"}"


def _array(items: Iterator[object]) -> Iterator[bytes]:
    """Yield the text of a list."""
    yield b"["
    for number, item in enumerate(items):
        yield (b"," if number else b"") + _encoded(item)
    yield b"]"


def _encoded(value: object) -> bytes:
    """Return the text of a value as `_dumps` writes it, from which readers compute the checksum.

    msgspec takes a tenth of the time, and writes the same text unless it has characters that `_dumps` escapes.
    """
    with suppress(UnicodeEncodeError):  # a lone surrogate
        text = _msgspec.encode(value)
        if text.isascii() and b"\x7f" not in text:
            return text
    return _dumps(value).encode()


def read(content: bytes, machine_id: str) -> Saved:
    """Decode a checkpoint of this machine; raise NeedsNewer if it needs more, Unusable for everything else."""
    body = _members(content)
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
        devices = devices_from_list(body["ledger"].get("devices", []))
    except (PinningError, AttributeError) as problem:
        raise Unusable(str(problem)) from problem
    return Saved(machine_id, str(body["bootID"]), topology, universe, ledger, reserved, needs, devices)


def unknown_needs(path: Path) -> frozenset[str]:
    """Return the `needs` of a checkpoint that this version lacks; none if it cannot be read."""
    with suppress(OSError, Unusable):
        return _needs(_members(path.read_bytes())) - KNOWN
    return frozenset()


def _needs(body: Mapping[str, Any]) -> frozenset[str]:
    words = body.get("needs", [])
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise Unusable(
            f"the checkpoint is damaged: needs is {truncate(repr(words), VALUE)}, not a list of words"
        )
    return frozenset(words)


def _members(content: bytes) -> dict[str, Any]:
    try:
        body = parse_json(content)
        version, checksum = body.pop("version"), body.pop("checksum")
    except (ValueError, KeyError, AttributeError, TypeError) as problem:
        raise Unusable(f"the checkpoint is damaged: {problem!r}") from problem
    if version != VERSION:
        raise Unusable(f"the checkpoint has version {version!r}, this agent writes version {VERSION}")
    if not body.keys() >= KEYS or checksum != _checksum(body):
        raise Unusable("the checkpoint is damaged: its checksum is wrong")
    return dict(body)


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(_dumps(body).encode()).hexdigest()


def as_kept(saved: Saved, boot_id: str, now: Topology) -> Ledger:
    """Return the ledger to resume with.

    After a reboot, assignments on changed cores are dropped. Within one boot cores cannot change, and the plan handles
    offline CPUs.
    """
    if saved.boot_id == boot_id:
        return saved.ledger
    unchanged, ledger = _unchanged(saved.topology, now), saved.ledger
    for assignment in saved.ledger.parts:
        if not assignment.footprint <= unchanged:
            ledger = ledger.release(assignment.owner)
    return _unprepared(ledger, unchanged)


def _unprepared(ledger: Ledger, unchanged: CPUSet) -> Ledger:
    """Return the ledger after a reboot: claims on unchanged cores keep their CPUs, and the others are released.

    All count as not prepared, because the kubelet prepares each claim again.
    """
    for uid, grant in ledger.claims.items():
        stays = grant.footprint <= unchanged
        ledger = ledger.grant(replace(grant, is_prepared=False)) if stays else ledger.release_claim(uid)
    return ledger


def _unchanged(before: Topology, now: Topology) -> CPUSet:
    """Return the CPUs of the cores that have the same siblings and NUMA node after a reboot."""
    cores = {(core.cpus, core.numa_node) for core in now.cores}
    return union(core.cpus for core in before.cores if (core.cpus, core.numa_node) in cores)


def _locked(path: Path) -> int:
    """Return a lock that the kernel releases when the process dies."""
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
