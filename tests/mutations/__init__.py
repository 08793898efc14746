"""Mutations of the product, and whether the tests that need no server catch them: `python -m tests.mutations`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[2]
LIST: Final = Path(__file__).with_name("list.toml")


@dataclass(frozen=True, slots=True)
class Mutation:
    """One text of one file, and the text in its place."""

    file: str
    old: str
    new: str
    tests: str  # the folder that mirrors the file's, unless the list names another

    def applied(self, text: str) -> str:
        """Return the file's text with the mutation."""
        if text.count(self.old) != 1:
            raise ValueError(
                f"{self.file} has {self.old!r} {text.count(self.old)} times, not once: change {LIST.name}"
            )
        return text.replace(self.old, self.new)


def mutations() -> Iterator[Mutation]:
    """Yield the mutations of the list."""
    listed = tomllib.loads(LIST.read_text())
    for file, pairs in listed["mutations"].items():
        tests = listed["tests"].get(file, f"tests/{Path(file).parent}")
        yield from (Mutation(file, old, new, tests) for old, new in pairs)
