"""For any pod and resize, the webhook admits exactly what the agent can follow without a loss."""

from __future__ import annotations

import copy
from typing import Any

import jsonpatch
from hypothesis import assume, given
from hypothesis import strategies as st

from pinning.pods.claims import Claim, Origin, read_pod
from pinning.pods.resources import Role, members
from tests.pods import CORES, container, launcher, pod
from webhook.config.mutations import BUILT_IN
from webhook.config.settings import load_settings
from webhook.rules.injection import Injection
from webhook.rules.mutate import plan_mutation
from webhook.rules.pods import review_changed_pod, review_new_pod

RULES = load_settings(b"")
AMOUNTS = st.sampled_from([("1", "1"), ("2", "2"), ("3", "3"), ("1500m", "1500m"), ("2", "1"), (None, None)])
WORDS = {
    "cpu-manager": ("exclusive", "share", "none"),
    "smt-policy": ("prefer", "require", "isolate"),
    "numa-policy": ("packed", "single"),
    "numa-memory": ("free", "bind"),
}
POLICIES = st.dictionaries(
    st.tuples(st.sampled_from(sorted(WORDS)), st.sampled_from(["pod", "container.c0", "container.c1"])),
    st.integers(0, 2),
    max_size=3,
)


@st.composite
def pods(draw: st.DrawFn) -> Any:
    """Return a pod of main containers, sidecars and init containers, of whatever owner, as it would be stored."""
    kinds = draw(st.lists(st.sampled_from(["main", "sidecar", "init", "cmk"]), max_size=3))
    listed = [sized(f"c{at}", draw(AMOUNTS), kind) for at, kind in enumerate(["main", *kinds])]
    written = {
        f"{family}.corepin.io/{scope}": WORDS[family][at % len(WORDS[family])]
        for (family, scope), at in draw(POLICIES).items()
    }
    main = [entry for entry, kind in zip(listed, ["main", *kinds], strict=True) if kind in {"main", "cmk"}]
    first = [
        entry for entry, kind in zip(listed, ["main", *kinds], strict=True) if kind in {"sidecar", "init"}
    ]
    document: Any = pod(*main, init=first, annotations=written)
    if draw(st.integers(0, 5)) == 0:
        document = launcher(compute=sized("compute", draw(AMOUNTS), "main"))
    plan = plan_mutation(document, RULES, Injection(BUILT_IN))
    return jsonpatch.apply_patch(document, [dict(step) for step in plan.operations])


def sized(name: str, amount: tuple[str | None, str | None], kind: str) -> Any:
    """Return a container with a CPU limit and request."""
    limit, request = ({"cpu": quantity} if quantity else {} for quantity in amount)
    cores = {CORES: "1"} if kind == "cmk" else {}
    more = {"restartPolicy": "Always"} if kind == "sidecar" else {}
    return container(name, {**limit, **cores}, {**request, **cores}, **more)


def resized(document: Any, amounts: dict[str, tuple[str | None, str | None]]) -> Any:
    """Return the pod after a resize: CPU amounts of whatever runs as long as the pod."""
    copied = copy.deepcopy(document)
    for member in members(copied):
        resources: Any = member.container.get("resources") or {}
        for kind, amount in zip(("limits", "requests"), amounts.get(member.name, ()), strict=False):
            if member.role is not Role.INIT and amount and "cpu" in resources.get(kind, {}):
                resources[kind]["cpu"] = amount
    return copied


def kept(before: Claim, after: Claim | None) -> bool:
    """Return whether a container keeps its claimed kind of CPUs, in whatever number."""
    return after is not None and (before.policy, before.smt, before.numa, before.origin) == (
        after.policy,
        after.smt,
        after.numa,
        after.origin,
    )


@given(pods(), st.data())
def test_a_resize_is_refused_exactly_when_a_container_would_lose_its_policy(document: Any, data: Any) -> None:
    """A resize is refused if and only if a container becomes ineligible for its policy.

    In addition a CMK container is refused that a policy of the whole pod would claim from now on.
    """
    assume(not review_new_pod(document, RULES, Injection(BUILT_IN)).causes)
    names = [member.name for member in members(document)]
    after = resized(document, {name: data.draw(AMOUNTS) for name in names})
    verdict = review_changed_pod(document, after, RULES)
    now = read_pod(after)
    lost = [claim for claim in read_pod(document).claims if not kept(claim, now.claim_of(claim.container))]
    twice = any("which claims cores by" in cause.message for cause in verdict.causes)
    assert bool(verdict.causes) == (bool(lost) or twice)


@given(pods(), st.data())
def test_a_resize_that_the_kubelet_defers_changes_no_claim(document: Any, data: Any) -> None:
    """While the kubelet defers an admitted resize the agent keeps the claim of the old size."""
    assume(not review_new_pod(document, RULES, Injection(BUILT_IN)).causes)
    after = resized(document, {member.name: data.draw(AMOUNTS) for member in members(document)})
    assume(not review_changed_pod(document, after, RULES).causes)
    given_before = [
        {"name": member.name, "allocatedResources": {"cpu": member.requests["cpu"]}}
        for member in members(document)
        if "cpu" in member.requests
    ]
    deferred: Any = {**after, "status": {"containerStatuses": given_before}}
    had = {claim.container: claim for claim in read_pod(document).claims}
    for claim in read_pod(deferred).claims:
        if claim.container in had or claim.origin is Origin.CMK:
            assert claim == had[claim.container]
    assert {claim.container for claim in read_pod(deferred).claims} >= set(had)
