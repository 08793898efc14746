"""Records of changed interrupts on disk, as texts of a `Restorable`, so that the next agent can restore them."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from agent.errors import Refused
from pinning.json_text import parse_json
from pinning.machine.cpuset import CPUSet
from pinning.machine.interrupts import Taken

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.reconcile.restorable import Restorable

FILE: Final = "interrupts.json"  # in the state directory
KNOWN: Final = "known"  # numbers that existed when the default affinity was narrowed, or were seen since
_PREFIX: Final = "irq/"


class TakenStore:
    """The records of a node; each change is on disk when a method returns, else it raises Refused."""

    def __init__(self, saved: Restorable) -> None:
        self._saved = saved
        self.taken: dict[str, Taken] = {}
        self.known: frozenset[str] | None = None
        self.is_read = False  # False: the file cannot be used, so that no interrupt may be moved
        saved.require(_check)
        with suppress(Refused):
            self.read()

    def read(self) -> None:
        """Take over the records of an earlier agent, once; raise Refused while their file cannot be used."""
        if self.is_read:
            return
        self._saved.reread()
        originals = self._saved.originals
        self.taken = {
            key.removeprefix(_PREFIX): _taken(text)
            for key, text in originals.items()
            if key.startswith(_PREFIX)
        }
        self.known = _numbers(originals[KNOWN]) if KNOWN in originals else None
        self.is_read = True

    def change(
        self,
        taken: Mapping[str, Taken],
        dropped: Iterable[str] = (),
        known: frozenset[str] | None = None,
    ) -> None:
        """Save records and drop others; `known` None drops the known numbers too."""
        texts = {f"{_PREFIX}{number}": _text(it) for number, it in taken.items()}
        texts |= {} if known is None else {KNOWN: ",".join(sorted(known, key=int))}
        gone = {number for number in dropped if number in self.taken}
        if texts:
            self._saved.remember(texts)
        self._saved.forget([f"{_PREFIX}{it}" for it in gone] + ([KNOWN] if known is None else []))
        self.known = known
        self.taken = {number: it for number, it in {**self.taken, **taken}.items() if number not in gone}


def _text(taken: Taken) -> str:
    return json.dumps([str(taken.original), list(map(str, taken.wrote)), taken.name])


def _check(key: str, text: str) -> None:
    """Raise an error for a damaged record, because no invented value may be restored."""
    if key.startswith(_PREFIX):
        _taken(text)
    if key == KNOWN:
        _numbers(text)


def _taken(text: str) -> Taken:
    original, wrote, name = parse_json(text)
    taken = Taken(_cpus(original), tuple(map(_cpus, wrote)), str(name))
    if not taken.wrote:
        raise ValueError(text)
    return taken


def _cpus(text: Any) -> CPUSet:
    cpus = CPUSet.parse(str(text))
    if not cpus:
        raise ValueError(text)
    return cpus


def _numbers(text: str) -> frozenset[str]:
    numbers = text.split(",") if text else []
    return frozenset(str(int(it)) for it in numbers)
