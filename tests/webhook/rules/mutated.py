"""Pods as the webhook makes them, and its verdicts on them."""

from __future__ import annotations

import copy
from typing import Any

import jsonpatch

from tests.webhook.requests import request
from webhook.config.mutations import BUILT_IN
from webhook.config.settings import load_settings
from webhook.review.handler import Decider
from webhook.rules.injection import Injection
from webhook.rules.mutate import plan_mutation
from webhook.rules.pods import Verdict


def mutated(document: Any, settings: bytes) -> Any:
    """Return the pod after its plan, which a second pass has nothing to add to."""
    read = load_settings(settings)
    plan = plan_mutation(document, read, Injection(BUILT_IN))
    result = jsonpatch.apply_patch(copy.deepcopy(document), [dict(step) for step in plan.operations])
    assert plan_mutation(result, read, Injection(BUILT_IN)).operations == ()
    return result


def judged(document: Any, settings: bytes = b"") -> Verdict:
    """Return the verdict on a new pod after its injection, as the API server asks for it."""
    read = load_settings(settings)
    plan = plan_mutation(document, read, Injection(BUILT_IN))
    final = jsonpatch.apply_patch(document, [dict(step) for step in plan.operations])
    return Decider(read, BUILT_IN).judge_new_pod(request(final))
