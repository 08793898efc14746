"""Records of changed interrupts on disk, as texts of a `Restorable`, so that the next agent can restore them."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from pinning.errors import PinningError
from pinning.json_text import parse_json
from pinning.machine.cpuset import CPUSet
from pinning.machine.interrupts import Taken

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.reconcile.restorable import Restorable

FILE: Final = "interrupts.json"  # in the state directory
KNOWN: Final = "known"  # numbers that existed when the default affinity was narrowed, or were seen since
_PREFIX: Final = "irq/"
_DAMAGES: Final = (ValueError, TypeError, KeyError, PinningError)


class TakenStore:
    """The records of a node; each change is on disk when a method returns, else it raises Refused."""

    def __init__(self, saved: Restorable) -> None:
        self._saved = saved
        self.taken = dict(_read(saved.originals))
        self.known = _numbers(saved.originals.get(KNOWN))

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


def _read(originals: Mapping[str, str]) -> Iterable[tuple[str, Taken]]:
    """Yield the saved records; damaged ones are dropped, because no invented value may be restored."""
    for key, text in originals.items():
        if key.startswith(_PREFIX):
            with suppress(*_DAMAGES):
                yield key.removeprefix(_PREFIX), _taken(text)


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


def _numbers(text: str | None) -> frozenset[str] | None:
    if text is None:
        return None
    return frozenset(it for it in text.split(",") if it.isdecimal())
