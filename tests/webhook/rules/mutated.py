"""Pods as the webhook makes them."""

from __future__ import annotations

import copy
from typing import Any

import jsonpatch

from webhook.config.mutations import BUILT_IN
from webhook.config.settings import load_settings
from webhook.rules.injection import Injection
from webhook.rules.mutate import plan_mutation


def mutated(document: Any, settings: bytes) -> Any:
    """Return the pod after its plan, which a second pass has nothing to add to."""
    read = load_settings(settings)
    plan = plan_mutation(document, read, Injection(BUILT_IN))
    result = jsonpatch.apply_patch(copy.deepcopy(document), [dict(step) for step in plan.operations])
    assert plan_mutation(result, read, Injection(BUILT_IN)).operations == ()
    return result
