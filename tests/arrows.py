"""`python -m tests.arrows`: write the table of arrows of docs/architecture.md from the imports."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.layout import between, package, room

if TYPE_CHECKING:
    from collections.abc import Iterable

PAGE: Final = Path("docs/architecture.md")
TABLE: Final = re.compile(r"(?<=<!-- arrows: make arrows -->\n).*?(?=<!-- end of arrows -->)", re.DOTALL)


def table() -> str:
    """Return a row for each room with the rooms that it imports."""
    found = {one: others for one, others in between(room).items() if is_drawn(one)}
    rows = [f"| `{path_of(one)}` | {_listed(others)} |" for one, others in sorted(found.items()) if others]
    leaves = ", ".join(f"`{path_of(one)}`" for one, others in sorted(found.items()) if not others)
    return "\n".join(["| from | to |", "|---|---|", *rows, f"| {leaves} | nothing of ours |", ""])


def is_drawn(one: str) -> bool:
    """Return whether a room is more than the docstring of a folder that holds rooms."""
    return not any(Path(*one.split(".")).glob("*/__init__.py"))


def path_of(one: str) -> str:
    """Return a room as a reader finds it: a folder, or a file."""
    path = one.replace(".", "/")
    return f"{path}/" if Path(path).is_dir() else f"{path}.py"


def _listed(rooms: Iterable[str]) -> str:
    """Return rooms by their packages: `agent`: errors, kernel; `pinning`: machine."""
    parts = []
    for name, members in groupby(sorted(rooms), key=package):
        inner = [each.removeprefix(f"{name}.").replace(".", "/") for each in members if each != name]
        parts.append(f"`{name}`: {', '.join(inner)}" if inner else f"`{name}`")
    return "; ".join(parts)


if __name__ == "__main__":
    PAGE.write_text(TABLE.sub(lambda _: table(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
