"""Pods as the webhook makes them, and its verdicts on them."""

from __future__ import annotations

import copy
from typing import Any

import jsonpatch

from tests.webhook.requests import request
from webhook.config.mutations import BUILT_IN, Mutations
from webhook.config.settings import Settings, load_settings
from webhook.review.handler import Decider
from webhook.rules.injection import Injection
from webhook.rules.mutate import Plan, plan_mutation
from webhook.rules.pods import Verdict, review_changed_pod, review_new_pod, review_template


def planned(document: Any, settings: bytes | Settings = b"", mutations: Mutations = BUILT_IN) -> Plan:
    """Return the patch of a new pod, and the warnings about it."""
    return plan_mutation(document, _read(settings), Injection(mutations))


def patched(document: Any, settings: bytes | Settings = b"", mutations: Mutations = BUILT_IN) -> Any:
    """Return a copy of the pod after its plan."""
    steps = [dict(step) for step in planned(document, settings, mutations).operations]
    return jsonpatch.apply_patch(copy.deepcopy(document), copy.deepcopy(steps))


def mutated(document: Any, settings: bytes | Settings = b"", mutations: Mutations = BUILT_IN) -> Any:
    """Return the pod after its plan, which does not change its input and to which a second pass has nothing to add."""
    before = copy.deepcopy(document)
    result = patched(document, settings, mutations)
    assert document == before
    assert planned(result, settings, mutations).operations == ()
    return result


def reviewed(document: Any, settings: bytes | Settings = b"") -> Verdict:
    """Return the verdict on a new pod as it is."""
    return review_new_pod(document, _read(settings), Injection(BUILT_IN))


def changed(old: Any, new: Any, settings: bytes | Settings = b"") -> Verdict:
    """Return the verdict on an update."""
    return review_changed_pod(old, new, _read(settings))


def templated(document: Any, settings: bytes | Settings = b"") -> Verdict:
    """Return the verdict on the template of a workload."""
    return review_template(document, _read(settings))


def judged(document: Any, settings: bytes = b"") -> Verdict:
    """Return the verdict on a new pod after its injection, as the API server asks for it."""
    return Decider(_read(settings), BUILT_IN).judge_new_pod(request(patched(document, settings)))


def _read(settings: bytes | Settings) -> Settings:
    return load_settings(settings) if isinstance(settings, bytes) else settings
