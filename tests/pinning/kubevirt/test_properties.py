"""Properties for every VMI: an answer, no change of the input, one verdict before and after defaulting."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pinning.errors import Cause
from pinning.kubevirt.review import Kind, KubeVirtSettings, defaulted, find_template, review_vmi
from pinning.kubevirt.view import unreadable
from tests.pinning.vmi_specs import HUGE, PASSTHROUGH, SETTINGS, dedicated, review, vmi, wrapped

if TYPE_CHECKING:
    from pinning.kubevirt.types import VirtSpec

COUNTS = st.one_of(st.none(), st.integers(0, 5), st.integers(), st.sampled_from([2**32, 2**32 - 1]))
AMOUNTS = st.one_of(
    st.none(),
    st.integers(-2, 8),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(["2", "1500m", "-1", "1Gi", "2Mi", "1e99", "9" * 60, "", "2000m", "0"]),
)
RESOURCES = st.one_of(st.none(), st.fixed_dictionaries({}, optional={"cpu": AMOUNTS, "memory": AMOUNTS}))
MASKS = st.one_of(st.none(), st.text("0123-,^ ", max_size=8), st.text(max_size=5))
CPUS = st.fixed_dictionaries(
    {},
    optional={
        "sockets": COUNTS,
        "cores": COUNTS,
        "threads": COUNTS,
        "maxSockets": COUNTS,
        "model": st.sampled_from([None, "", "EPYC"]),
        "features": st.sampled_from([None, [], [{"name": "a", "policy": "b"}, {}]]),
        "dedicatedCpuPlacement": st.sampled_from([None, True, False]),
        "isolateEmulatorThread": st.sampled_from([None, True, False]),
        "numa": st.sampled_from([None, {}, PASSTHROUGH]),
        "realtime": st.one_of(st.none(), st.fixed_dictionaries({}, optional={"mask": MASKS})),
    },
)
MEMORIES = st.fixed_dictionaries(
    {},
    optional={
        "guest": AMOUNTS,
        "maxGuest": AMOUNTS,
        "hugepages": st.one_of(st.none(), st.fixed_dictionaries({}, optional={"pageSize": AMOUNTS})),
    },
)
DOMAINS = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.none() | CPUS,
        "memory": st.none() | MEMORIES,
        "resources": st.none()
        | st.fixed_dictionaries({}, optional={"requests": RESOURCES, "limits": RESOURCES}),
        "ioThreadsPolicy": st.sampled_from([None, "", "auto", "supplementalPool", "x"]),
        "ioThreads": st.none() | st.fixed_dictionaries({}, optional={"supplementalPoolThreadCount": COUNTS}),
    },
)
SPECS = st.fixed_dictionaries(
    {},
    optional={
        "architecture": st.sampled_from([None, "", "amd64", "arm64", "s390x", "x"]),
        "domain": st.none() | DOMAINS,
    },
)
SOME_SETTINGS = st.builds(
    KubeVirtSettings,
    architecture=st.sampled_from(["amd64", "arm64"]),
    live_update=st.booleans(),
    max_cpu_sockets=st.sampled_from([None, 0, 3]),
    cpu_request=st.sampled_from(["100m", "2"]),
    even_parity=st.booleans(),
)
MATCHERS: st.SearchStrategy[Any] = st.sampled_from([{}, {"instancetype": {}}, {"preference": {}}])


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(Kind), SPECS, SOME_SETTINGS, MATCHERS)
def test_any_spec_gets_an_answer(kind: Kind, spec: Any, chosen: KubeVirtSettings, matchers: Any) -> None:
    """No spec raises or is changed, and every cause and warning has a field under its root and a short message."""
    whole = spec if kind is Kind.VMI else wrapped(kind, spec, **matchers)
    before = deepcopy(whole)
    answer = review_vmi(kind, {}, whole, chosen, sidecar_gate=False, threads_per_core=(1,))
    template = find_template(kind, {}, whole)
    assert repr(whole) == repr(before)  # repr: not-a-number is not equal to itself
    assert not isinstance(template, Cause)
    assert all(
        cause.field.startswith(f"{template.path}spec.") and 0 < len(cause.message) < 250
        for cause in (*answer.causes, *answer.warnings)
    )


@settings(max_examples=200, deadline=None)
@given(SPECS, SOME_SETTINGS)
def test_defaulting_changes_no_verdict(spec: Any, chosen: KubeVirtSettings) -> None:
    """A VMI that KubeVirt has completed gets the same causes as the one that its user wrote."""
    causes = review(spec, chosen).causes
    domain: Any = spec.get("domain") or {}
    if not unreadable(domain):
        complete: Any = defaulted(spec, chosen)
        assert review(complete, chosen).causes == causes


@st.composite
def valid_specs(draw: st.DrawFn) -> VirtSpec:
    """Return a dedicated VMI that keeps every rule."""
    counts = {name: draw(st.integers(1, 4)) for name in ("sockets", "cores")} | {
        "threads": draw(st.integers(1, 2))
    }
    total = counts["sockets"] * counts["cores"] * counts["threads"]
    amount = draw(st.sampled_from([None, total, str(total), f"{total}000m"]))
    request = draw(st.sampled_from([None, amount]))
    cpu = dedicated(**counts, isolateEmulatorThread=draw(st.booleans()))
    cpu |= draw(
        st.sampled_from([{}, {"numa": PASSTHROUGH}, {"numa": PASSTHROUGH, "realtime": {"mask": "0"}}])
    )
    return vmi(cpu, requests={"cpu": request}, limits={"cpu": amount}, memory=HUGE)


@settings(max_examples=100, deadline=None)
@given(valid_specs(), st.sampled_from(Kind))
def test_valid_stays_valid(spec: VirtSpec, kind: Kind) -> None:
    """A VMI that keeps every rule is admitted in every kind of object, completed or not."""
    for written in (spec, defaulted(spec, SETTINGS)):
        whole: Any = written if kind is Kind.VMI else wrapped(kind, written)
        assert review_vmi(kind, {}, whole, SETTINGS).causes == ()
