"""Values of `irq-policy`: which interrupts stay on the CPUs of a quiet container. Pure.

It is the only policy with a free-form value, so its length, number of parts and characters are limited.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pinning.contract import IrqWord

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_GLOBS: Final = 8  # globs in one annotation
LONGEST: Final = 96  # characters of one annotation; the agent keeps 100 of any annotation
# Characters of interrupt names, as drivers choose them, and of globs; a slash is in no name.
_GLOB: Final = re.compile(r"[A-Za-z0-9_.:@()+#=\[\]!*?-]+( [A-Za-z0-9_.:@()+#=\[\]!*?-]+)*")
_EXAMPLE: Final = "eth1-rx-*, eth1-tx-*"
_EXPECTED: Final = (
    f"write {IrqWord.AWAY}, or {IrqWord.DEVICES} and globs of interrupt names, such as {_EXAMPLE}"
)


class IrqPolicy(str):
    """A validated value of `irq-policy`; the constructor raises ValueError for an invalid value, as an enum does."""

    __slots__ = ()

    def __new__(cls, text: str) -> IrqPolicy:
        """Validate the text of the annotation."""
        if irq_flaw(text):
            raise ValueError
        return super().__new__(cls, text)

    @property
    def names(self) -> tuple[str, ...]:
        """The globs, and `devices`, in alphabetical order; none for `away`."""
        return tuple(sorted(set(_parts(self)) - {IrqWord.AWAY}))


def irq_flaw(text: str) -> str:
    """Return the error in a value of `irq-policy`, with the remedy; empty if it is valid."""
    if len(text) > LONGEST:
        return f"has {len(text)} characters, and at most {LONGEST} are read: use globs such as {_EXAMPLE}"
    parts = _parts(text)
    for part in parts:
        if not _GLOB.fullmatch(part):
            shown = f"{part!r} is neither a word nor a glob" if part else f"{text!r} has an empty part"
            return f"{shown}: {_EXPECTED}"
    if len(parts) > MOST_GLOBS:
        return f"has {len(parts)} parts, and at most {MOST_GLOBS} are read: use globs such as {_EXAMPLE}"
    if IrqWord.AWAY in parts and len(parts) > 1:
        return f"{IrqWord.AWAY} means that no interrupt stays: write it alone, or leave it out"
    return ""


def merged(policies: Iterable[IrqPolicy]) -> tuple[str, ...]:
    """Return the names of several policies together, in alphabetical order."""
    return tuple(sorted({name for policy in policies for name in policy.names}))


def _parts(text: str) -> list[str]:
    return [part.strip(" ") for part in text.split(",")]
