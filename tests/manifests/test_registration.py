"""Match conditions of the webhooks: every annotation family, and pod-level resources."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pinning.contract import FAMILIES
from scripts.registration import FILE, with_families

TEXT = Path(FILE).read_text(encoding="utf-8")


def test_match_conditions_are_those_that_make_chart_writes() -> None:
    """The manifest's match conditions are what `make chart` writes for the contract's families."""
    assert with_families(TEXT) == TEXT


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_in_each_expression_that_looks_at_keys(family: str) -> None:
    """An expression that tests keys for one family of annotations tests them for all."""
    conditions = [
        condition["expression"]
        for configuration in yaml.safe_load_all(TEXT)
        for webhook in configuration["webhooks"]
        for condition in webhook["matchConditions"]
    ]
    expressions = [it for it in conditions if "corepin.io/')" in it]

    assert len(expressions) == 5
    assert all(
        it.count(f"k.startsWith('{family}/')") == it.count("k.startsWith('cpu-manager.") for it in expressions
    )


def test_update_of_the_pods_own_resources_is_judged() -> None:
    """A change of a pod's own resources calls the webhook, like a change of its containers' resources."""
    _, validating = yaml.safe_load_all(TEXT)
    (pods,) = [it for it in validating["webhooks"] if it["name"] == "pods.validate.corepin.io"]
    (changed,) = [it for it in pods["matchConditions"] if it["name"] == "something-of-ours-changed"]
    assert "object.spec.?resources != oldObject.spec.?resources" in changed["expression"]
