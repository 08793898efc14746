"""Messages, events and log warnings of the programs, read from their source code."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

LOUD: Final = frozenset({"warning", "error", "exception", "critical"})
_C_LITERAL: Final = r'"(?:[^"\\]|\\.)*"'
_C_LITERALS: Final = re.compile(rf"(?:{_C_LITERAL}\s*)+")
_C_CHARACTER: Final = re.compile(r"'(?:[^'\\\n]|\\.)'")
_C_HOLE: Final = re.compile(r"%[-+.*0-9]*l?[a-z]|`")
_DOCUMENTED: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def texts(*modules: str) -> set[str]:
    """Return every string of modules except docstrings and messages of ValueErrors."""
    return {text for module in modules for text in _texts(_tree(Path(module)))}


def _texts(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and _called(node.exc) == "ValueError":
        return
    body = list(ast.iter_child_nodes(node))
    if isinstance(node, _DOCUMENTED) and ast.get_docstring(node) is not None:
        body.remove(node.body[0])
    for child in body:
        yield from _texts(child)


def c_texts(*files: str) -> set[str]:
    """Return the string literals of C programs, split at their placeholders, except requests to the agent."""
    literals = {text for file in files for text in _c_literals(Path(file).read_text(encoding="utf-8"))}
    return {part for text in literals if "\\n" not in text for part in _C_HOLE.split(text)}


def _c_literals(source: str) -> Iterator[str]:
    for found in _C_LITERALS.finditer(_C_CHARACTER.sub("0", source)):
        yield "".join(re.findall(_C_LITERAL, found[0])).replace('""', "").strip('"')


def first_arguments(folder: str, *functions: str) -> set[str]:
    """Return the constant first arguments of calls of these functions or methods in a folder."""
    return {text for path in sorted(Path(folder).rglob("*.py")) for text in _first_arguments(path, functions)}


def _first_arguments(path: Path, functions: Collection[str]) -> set[str]:
    return {
        call.args[0].value
        for call in ast.walk(_tree(path))
        if isinstance(call, ast.Call) and _called(call) in functions and call.args
        if isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)
    }


def returned(module: str, function: str) -> set[str]:
    """Return the constant texts that a function or method of a module returns."""
    return {
        node.value.value
        for found in ast.walk(_tree(Path(module)))
        if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef) and found.name == function
        for node in ast.walk(found)
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Constant)
        if isinstance(node.value.value, str)
    }


def subjects(folder: str) -> set[str]:
    """Return the subjects of `corepin doctor`: the first arguments of its checks, or their constants."""
    named = {
        node.value.value
        for module in sorted(Path(folder).glob("*.py"))
        for node in ast.walk(_tree(module))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "subject"
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    return named | first_arguments(folder, "ok", "finding", "unknown")


def makers(*calls: str) -> set[str]:
    """Return the modules of pinning and webhook that call one of these functions."""
    return {
        str(path)
        for folder in ("pinning", "webhook")
        for path in sorted(Path(folder).rglob("*.py"))
        for call in ast.walk(_tree(path))
        if isinstance(call, ast.Call) and _called(call) in calls
    }


def loud_logs(*folders: str) -> set[str]:
    """Return the log events at the levels warning and above."""
    return {event for folder in folders for event in first_arguments(folder, *LOUD)}


def _called(call: ast.Call) -> str:
    function = call.func
    return (
        function.attr
        if isinstance(function, ast.Attribute)
        else function.id
        if isinstance(function, ast.Name)
        else ""
    )
