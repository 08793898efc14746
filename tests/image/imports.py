"""A program that runs every import of corepin without some modules, and prints the imported modules.

`python -m tests.image.imports PATTERN...` blocks modules whose paths, such as `kubernetes/aio`, match a pattern, with
their submodules.
"""

from __future__ import annotations

import ast
import importlib
import sys
from fnmatch import fnmatch
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from tests.layout import PACKAGES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Refusal:
    """An import hook that blocks modules, as if they were not installed."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = patterns

    def find_spec(self, name: str, *_: Any) -> None:
        """Raise ModuleNotFoundError for a blocked module."""
        path = PurePath(*name.split("."))
        if any(fnmatch(str(it), pattern) for it in (path, *path.parents) for pattern in self._patterns):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def imports(path: Path) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports of a file, also inside functions, but not under TYPE_CHECKING."""
    found: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while found:
        node = found.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            found += ast.iter_child_nodes(node)


def import_all() -> None:
    """Import every module of corepin, and run each of its import statements."""
    for path in sorted(path for package in PACKAGES for path in Path(package).rglob("*.py")):
        importlib.import_module(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
        for node in imports(path):
            exec(compile(ast.Module([node], []), str(path), "exec"), {})  # noqa: S102 - a line of corepin


def use_libraries() -> None:
    """Use the libraries that import modules at their first use."""
    import httpx
    import kubernetes

    httpx.Client().close()
    kubernetes.client.ApiClient(kubernetes.client.Configuration())


if __name__ == "__main__":
    sys.meta_path.insert(0, Refusal(sys.argv[1:]))
    import_all()
    use_libraries()
    sys.stdout.write("\n".join(sorted(sys.modules)))
