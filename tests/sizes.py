"""Size limits of folders, files, classes and functions, and the exceptions with their reasons."""

from __future__ import annotations

import ast
from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

FILES: Final = 25  # Python files of one folder
LINES: Final = 500
CLASS_LINES: Final = 250
FUNCTION_LINES: Final = 40

# Folders ("agent/reconcile"), files ("agent/main.py") and classes ("agent/main.py::Agent") above their limit, each with
# the reason why it reads better whole. Functions have no exceptions.
ABOVE: Final[Mapping[str, str]] = {}

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def full_folders(paths: Collection[Path]) -> Iterator[str]:
    """Yield the folders with more than FILES of these files."""
    counts = Counter(path.parent for path in paths)
    yield from (str(folder) for folder, count in counts.items() if count > FILES)


def long_files(texts: Mapping[Path, str]) -> Iterator[str]:
    """Yield the files with more than LINES lines."""
    yield from (str(path) for path, text in texts.items() if text.count("\n") > LINES)


def long_classes(texts: Mapping[Path, str]) -> Iterator[str]:
    """Yield the classes with more than CLASS_LINES lines, as `path::name`."""
    for path, text in texts.items():
        if text.count("\n") < CLASS_LINES:  # most files, and to parse one takes a thousand times as long
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and _lines(node) > CLASS_LINES:
                yield f"{path}::{node.name}"


def long_functions(texts: Mapping[Path, str]) -> Iterator[str]:
    """Yield the functions with more than FUNCTION_LINES lines, as `path::name`; their docstrings do not count."""
    for path, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, Function) and _lines(node) - _docstring_lines(node) > FUNCTION_LINES:
                yield f"{path}::{node.name}"


def _docstring_lines(node: Function) -> int:
    return _lines(node.body[0]) if ast.get_docstring(node) is not None else 0


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or 0) - node.lineno + 1
