"""Records of changed interrupts on disk, as texts of a `Restorable`, so that the next agent can restore them.

Interrupts with the same affinities share a record, and each set is written in the shorter of its two forms, so that the
file stays small with thousands of interrupts on hundreds of CPUs.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from agent.errors import Refused
from pinning.json_text import parse_json
from pinning.machine.cpuset import CPUSet
from pinning.machine.interrupts import Taken

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.reconcile.restorable import Restorable

# Key of the interrupt numbers that existed when the first affinity was changed, or appeared since.
KNOWN: Final = "known"
_GROUP: Final = "alike/"  # interrupts with the same affinities
_SINGLE: Final = "irq/"  # prefix of a record of one interrupt, as builds before 27 November 2026 wrote it
_MASK: Final = "0x"


class TakenStore:
    """The records of a node; each method returns after its changes are on disk, and raises Refused if they are not."""

    def __init__(self, saved: Restorable) -> None:
        self._saved = saved
        self.taken: dict[str, Taken] = {}
        # Identity of each known interrupt by number (None: unknown); None while the agent has changed no affinity.
        self.known: dict[str, int | None] | None = None
        self.is_read = False  # False: the file cannot be used, so that no interrupt may be moved
        saved.require(_check)
        with suppress(Refused):
            self.read()

    def read(self) -> None:
        """Read the records of an earlier agent, once; raise Refused while their file cannot be used."""
        if self.is_read:
            return
        self._saved.reread()
        originals = self._saved.originals
        self.taken = {
            number: taken for key, text in originals.items() for number, taken in _records(key, text)
        }
        self.known = _identities(originals[KNOWN]) if KNOWN in originals else None
        self.is_read = True

    def change(
        self,
        taken: Mapping[str, Taken],
        dropped: Iterable[str] = (),
        known: Mapping[str, int | None] | None = None,
    ) -> None:
        """Save the records `taken`, delete the records `dropped`, and replace the known numbers; None deletes these."""
        gone = set(dropped)
        kept = {number: it for number, it in self.taken.items() if number not in gone} | dict(taken)
        texts = {} if known is None else {KNOWN: _known_text(known)}
        self._saved.replace(_texts(kept) | texts)
        self.known = None if known is None else dict(known)
        self.taken = kept


def _texts(records: Mapping[str, Taken]) -> dict[str, str]:
    """Return the texts of records by key, one for all interrupts with the same affinities."""
    alike: dict[Taken, dict[str, str]] = {}
    for number, it in records.items():
        alike.setdefault(it._replace(name=""), {})[number] = it.name
    return {
        f"{_GROUP}{at}": json.dumps([_set_text(it.original), list(map(_set_text, it.wrote)), names])
        for at, (it, names) in enumerate(alike.items())
    }


def _records(key: str, text: str) -> Iterator[tuple[str, Taken]]:
    """Yield the interrupts of a saved text; raise an error for a damaged one."""
    if key.startswith(_SINGLE):
        original, wrote, name = parse_json(text)
        yield key.removeprefix(_SINGLE), _taken(original, wrote, name)
    if key.startswith(_GROUP):
        original, wrote, names = parse_json(text)
        for number, name in names.items():
            yield number, _taken(original, wrote, name)


def _check(key: str, text: str) -> None:
    """Raise an error for a damaged record, because no invented value may be restored."""
    for _ in _records(key, text):
        pass
    if key == KNOWN:
        _identities(text)


def _taken(original: Any, wrote: Any, name: Any) -> Taken:
    taken = Taken(_cpus(original), tuple(map(_cpus, wrote)), str(name))
    if not taken.wrote:
        raise ValueError(wrote)
    return taken


def _set_text(cpus: CPUSet) -> str:
    """Return a set as list or as mask: a list of every second CPU is eight times as long as its mask."""
    return min(str(cpus), f"{_MASK}{cpus.to_mask()}", key=len)


def _cpus(text: Any) -> CPUSet:
    is_mask = str(text).startswith(_MASK)
    cpus = CPUSet.parse_mask(text.removeprefix(_MASK)) if is_mask else CPUSet.parse(str(text))
    if not cpus:
        raise ValueError(text)
    return cpus


def _known_text(known: Mapping[str, int | None]) -> str:
    numbers = sorted(known.items(), key=lambda it: int(it[0]))
    return ",".join(number if identity is None else f"{number}:{identity}" for number, identity in numbers)


def _identities(text: str) -> dict[str, int | None]:
    """Return the identity of each interrupt number; None in texts of earlier builds, which have numbers alone."""
    pairs = [it.partition(":") for it in text.split(",")] if text else []
    return {str(int(number)): int(identity) if colon else None for number, colon, identity in pairs}
