"""The arrows between the packages: webhook -> pinning <- agent, corepin -> all, certs alone, pinning on nothing."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

PACKAGES = frozenset({"pinning", "webhook", "agent", "certs", "corepin"})
OUTSIDE = frozenset({"tests", "bench", "demo", "scripts"})  # nothing that ships may import these
ARROWS = {
    "pinning": frozenset(),
    "certs": frozenset(),
    "webhook": frozenset({"pinning"}),
    "agent": frozenset({"pinning"}),
    "corepin": PACKAGES,
}
MODULES = sorted(path for package in PACKAGES for path in Path(package).rglob("*.py"))


def imports(source: str) -> set[str]:
    """Return the top-level names that a module imports anywhere in its text, also for type checking only."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." if node.level else str(node.module).partition(".")[0])
    return found


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_module_follows_the_arrows(path: Path) -> None:
    """A module imports its own package, those its arrows point to, and never the tests; never relatively."""
    package = path.parts[0]

    assert imports(path.read_text(encoding="utf-8")) & (PACKAGES | OUTSIDE | {"."}) <= ARROWS[package] | {
        package
    }


@pytest.mark.parametrize("path", sorted(Path("pinning").rglob("*.py")), ids=str)
def test_pinning_is_standard_library_only(path: Path) -> None:
    """The domain runs wherever Python runs: no package from elsewhere is imported."""
    assert imports(path.read_text(encoding="utf-8")) <= sys.stdlib_module_names | {"pinning"}


def test_imports_are_found_wherever_they_stand() -> None:
    """The walk sees imports in functions and under TYPE_CHECKING, and dotted and relative ones."""
    source = "import a.b, c\nif X:\n    from d.e import f\ndef g():\n    from h import i\nfrom . import j\n"

    assert imports(source) == {"a", "c", "d", "h", "."}


def test_every_package_is_held() -> None:
    """A new package gets its arrows here before it ships."""
    shipped = {path.parent.name for path in Path().glob("*/__init__.py")} - OUTSIDE

    assert shipped == ARROWS.keys() == PACKAGES
