"""The list of mutations fits the product."""

from __future__ import annotations

import ast

import pytest

from tests.mutations import ROOT, Mutation, mutations

EVERY = list(mutations())


def test_there_are_sixty() -> None:
    """The list has at least 60 mutations, of the domain, the published types, the webhook's rules and the agent."""
    assert len(EVERY) >= 60
    assert {it.file.partition("/")[0] for it in EVERY} == {"pinning", "published", "webhook", "agent"}


@pytest.mark.parametrize("mutation", EVERY, ids=lambda it: f"{it.file}: {it.old}")
def test_a_mutation_fits(mutation: Mutation) -> None:
    """The old text stands once in its file, and the file with the new text is Python and another program."""
    text = (ROOT / mutation.file).read_text()
    assert ast.dump(ast.parse(mutation.applied(text))) != ast.dump(ast.parse(text))
    assert (ROOT / mutation.tests).exists(), "no such tests"
