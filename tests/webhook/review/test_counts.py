"""Implausible counts of CPUs and cores: webhook, agent and command line refuse them at the field that has them."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from corepin.documents import Document, Item
from corepin.offline import review
from pinning.contract import ISOLATED_CORES
from pinning.pods.claims import read_pod
from pinning.pods.resources import MOST_CPUS
from tests.pods import CORES, CPU_MANAGER, SMT, container, launcher, pod
from tests.webhook.requests import RULES, request
from webhook.review.response import Allowed, Denied, Patched, message

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

LIMIT = "spec.containers[0].resources.limits"
WISHES = [
    pytest.param({SMT: "isolate"}, id="isolate"),
    pytest.param({SMT: "require"}, id="require"),
    pytest.param({CPU_MANAGER: "exclusive"}, id="exclusive"),
    pytest.param({CPU_MANAGER: "share"}, id="share"),
]
SUFFIXES = {
    "": Fraction(1),
    "m": Fraction(1, 1000),
    "n": Fraction(1, 10**9),
    "k": Fraction(1000),
    "Ki": Fraction(1024),
    "Ei": Fraction(1024**6),
}
NONSENSE = (
    "١٢", "\uff11\uff12", "²", "1e100", "1e-100", "1e1e1", "--1", "+-1", "1 ", "\n1", "1_0", "0x10", "inf", "nan", "", ".", "e9",
    "9" * 70, "9" * 5000, "0." + "0" * 70 + "1", "1mi", "1KI", "1\u0000", "½", "1,5", "True", "1e+", "1.2.3", "1é",
)  # fmt: skip


@st.composite
def amounts(draw: DrawFn) -> tuple[str, Fraction]:
    """Return a quantity as a user may spell it, and the amount that it means."""
    sign = draw(st.sampled_from(["", "", "+", "-"]))
    digits = draw(
        st.integers(0, 10**20) | st.integers(0, 10_000) | st.sampled_from([MOST_CPUS, MOST_CPUS + 1])
    )
    exponent = draw(st.sampled_from([None, None, 0, 1, 3, 50, 99, -1, -3, -50, -99]))
    if exponent is not None:
        text, amount = f"{digits}{draw(st.sampled_from('eE'))}{exponent}", digits * Fraction(10) ** exponent
    else:
        suffix = draw(st.sampled_from(list(SUFFIXES)))
        text, amount = f"{digits}{suffix}", digits * SUFFIXES[suffix]
    return sign + text, -amount if sign == "-" else amount


def answer_of(document: Any) -> Allowed | Denied:
    """Return the verdict on a pod after /mutate and /validate; offline has to say the same."""
    injected = review.inject(RULES, item(document)).content
    patched = RULES.mutate(request(document))
    assert isinstance(patched, Patched) == (injected != document)
    answer = RULES.validate(request(injected))

    judged = review.judge(RULES, item(document))
    causes = [(cause.field, cause.message) for cause in getattr(answer, "causes", ())]
    causes_told = [(cause["field"], cause["message"].removeprefix("corepin: ")) for cause in judged.causes]
    assert (judged.allowed, causes_told) == (isinstance(answer, Allowed), causes)
    return answer


def item(document: Any) -> Item:
    """Return a pod as the offline commands read it."""
    return Item(Document("pods.yaml", 1, document), "", document, "v1", "Pod", document["metadata"])


def fields(answer: Allowed | Denied) -> list[str]:
    """Return the fields that a refusal names, and check that every message is readable."""
    if isinstance(answer, Allowed):
        return []
    assert len(message(answer)) <= 1000
    assert all(len(cause.message) < 300 for cause in answer.causes)
    return [cause.field for cause in answer.causes]


@pytest.mark.parametrize("wish", WISHES)
@given(spelled=amounts())
@example(("1e99", Fraction(10) ** 99))
@example(("8192", Fraction(8192)))
@example(("8193", Fraction(8193)))
@example(("8192001m", Fraction(8192001, 1000)))
def test_a_cpu_limit_is_taken_or_refused_by_its_amount(
    wish: dict[str, str], spelled: tuple[str, Fraction]
) -> None:
    """A whole number of 1 to 8192 is taken, a larger one is refused at the limit, the rest at the annotation."""
    text, amount = spelled
    document = pod(container("main", text), annotations=wish)
    is_whole = amount.denominator == 1 and amount >= 1
    expected = [f"metadata.annotations[{next(iter(wish))}]"]
    if is_whole:
        expected = [f"{LIMIT}[cpu]"] if amount > MOST_CPUS else []

    assert fields(answer_of(document)) == expected
    assert [claim.count for claim in read_pod(document).claims] == ([amount] if not expected else [])


@given(spelled=amounts())
@example(("1e99", Fraction(10) ** 99))
def test_a_count_of_cores_is_taken_or_refused_by_its_amount(spelled: tuple[str, Fraction]) -> None:
    """CMK's resource has the same bounds as CPUs; a count outside of them is one cause."""
    text, amount = spelled
    document = pod(container("main", {CORES: text}, {CORES: text}))
    is_sound = amount.denominator == 1 and 1 <= amount <= MOST_CPUS

    assert fields(answer_of(document)) == ([] if is_sound else [f"{LIMIT}[{CORES}]"])
    assert [claim.count for claim in read_pod(document).claims] == ([amount] if is_sound else [])


@pytest.mark.parametrize("text", NONSENSE, ids=[ascii(text)[:20] for text in NONSENSE])
@pytest.mark.parametrize("resource", ["cpu", CORES])
def test_an_invalid_quantity_is_refused_at_its_field(resource: str, text: str) -> None:
    """An invalid quantity is refused at its field, repeated in at most 40 characters."""
    document = pod(container("main", {resource: text}), annotations={SMT: "isolate"})
    assert fields(answer_of(document))[0] == f"{LIMIT}[{resource}]"
    assert read_pod(document).claims == ()


def test_the_limit_is_named_and_not_what_would_be_injected() -> None:
    """The refusal of an absurd count names the user's own field, and no injected resource."""
    document = pod(container("main", "1e99"), annotations={SMT: "isolate"})
    assert RULES.mutate(request(document)) == Allowed()

    answer = answer_of(document)
    assert isinstance(answer, Denied)
    assert ISOLATED_CORES not in message(answer)
    assert [cause.message for cause in answer.causes] == [
        "1e99 CPUs are more than any machine has: write a whole number from 1 to 8192"
    ]
    assert answer.warnings == ()


def test_cores_are_refused_where_the_count_was_taken_from() -> None:
    """CMK's cores are refused at the request, from which the count is taken."""
    document = pod(container("main", {CORES: "2"}, {CORES: "1e30"}))
    assert fields(answer_of(document)) == [f"spec.containers[0].resources.requests[{CORES}]"]


def test_a_launcher_of_absurd_size_is_refused_at_its_limit() -> None:
    """A launcher pod, which claims without an annotation, is refused at its limit."""
    document = launcher(compute=container("compute", {"cpu": "1e30", "memory": "1Gi"}))
    assert fields(answer_of(document)) == [f"{LIMIT}[cpu]"]


def test_the_others_of_the_pod_keep_their_claims() -> None:
    """The agent, which cannot refuse a pod, acts on the valid claims and does not warn about the shared set."""
    document = pod(container("main", "2"), container("b", "1e30"), annotations={CPU_MANAGER: "exclusive"})
    pod_claims = read_pod(document)
    assert [(claim.container, claim.count) for claim in pod_claims.claims] == [("main", 2)]
    assert [cause.field for cause in pod_claims.causes] == ["spec.containers[1].resources.limits[cpu]"]
    assert pod_claims.warnings == ()


def test_remedy_is_within_the_largest_machine() -> None:
    """The remedy for a request that differs from its limit is at most the largest count, 8192."""
    document = pod(container("main", "1e30", "1"), annotations={CPU_MANAGER: "exclusive"})
    (cause,) = read_pod(document).causes
    assert cause.message.endswith(", e.g. 8192 for both")
