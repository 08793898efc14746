"""The packages that ship, the imports of their modules, and import cycles."""

from __future__ import annotations

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

PACKAGES = frozenset(
    {
        "pinning",
        "apiserver",
        "kubeyaml",
        "logs",
        "webhook",
        "agent",
        "certs",
        "corepin",
        "dashboard",
        "drawing",
        "published",
    }
)
MODULES = sorted(path for package in PACKAGES for path in Path(package).rglob("*.py"))


def named(path: Path) -> str:
    """Return the dotted name of a module."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


NAMES = frozenset(map(named, MODULES))


@cache
def imported(source: str) -> frozenset[str]:
    """Return the dotted names of a module's imports, in functions and for type checking too."""
    return frozenset(_imported(ast.parse(source)))


def _imported(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names)


@cache
def arrows() -> Mapping[str, frozenset[str]]:
    """Return the imports of our modules among each other."""
    return {
        named(path): frozenset(map(_module, imported(path.read_text(encoding="utf-8"))))
        & NAMES - {named(path)}
        for path in MODULES
    }


def _module(name: str) -> str:
    """Return the module of an imported name, which may be one itself."""
    return name if name in NAMES else name.rpartition(".")[0]


def room(module: str) -> str:
    """Return the folder of a module; one directly in a package with folders is a room of its own."""
    folder = Path(*module.split("."))
    if not folder.is_dir():
        folder = folder.parent
    has_folders = any(folder.glob("*/__init__.py"))
    return module if has_folders else ".".join(folder.parts)


def package(module: str) -> str:
    """Return the top-level package of a module."""
    return module.partition(".")[0]


def between(part: Callable[[str], str]) -> dict[str, set[str]]:
    """Return the parts, packages or rooms, that each part imports."""
    found: dict[str, set[str]] = {}
    for module, others in arrows().items():
        found.setdefault(part(module), set()).update(set(map(part, others)) - {part(module)})
    return found


def circle(graph: Mapping[str, set[str] | frozenset[str]]) -> list[str]:
    """Return a circle of a graph, nothing where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []
