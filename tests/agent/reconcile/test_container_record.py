"""Fields of a container record are changed only by the record's own methods."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path

import pytest

import agent.reconcile
from agent.reconcile.container_record import ContainerRecord

MODULES = sorted(Path(agent.reconcile.__path__[0]).glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_only_the_record_assigns_its_fields(path: Path) -> None:
    """Only methods of the container record assign its fields; no other module of `agent.reconcile` does."""
    names = {field.name for field in fields(ContainerRecord)}
    assigned = {
        ast.unparse(node)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in names
        if ast.unparse(node.value) != "self"
    }

    assert assigned == set()
