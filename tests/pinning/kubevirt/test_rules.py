"""KubeVirt's table of rules about the CPUs and the memory of a VMI, its defaults, and warnings about what it admits."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from pinning.contract import EVEN_PARITY
from pinning.errors import BadQuantity
from pinning.kubevirt.defaults import defaulted, has_even_parity
from pinning.kubevirt.review import Kind, KubeVirtSettings, review_vmi, vcpu_count
from pinning.kubevirt.rules import dedicated_has_cpus
from pinning.kubevirt.view import VMIView, find
from pinning.kubevirt.warnings import pod_cpus
from tests.pinning.vmi_specs import PASSTHROUGH, SETTINGS, STAGED, dedicated, fields, review, vmi, wrapped
from tests.tables import table

if TYPE_CHECKING:
    from pinning.kubevirt.types import CPU, VirtSpec
    from pinning.pods.types import ObjectMeta

ARM = "arm64"
PLACEMENT = "cpu.dedicatedCpuPlacement"
ROWS = yaml.safe_load(Path(__file__).with_name("rules.yaml").read_text())


def spec_of(words: dict[str, Any]) -> VirtSpec:
    """Return the spec of a row: `vmi` with words for dedicated CPUs, for an isolated emulator and for pooled threads."""
    given = dict(words)
    if "isolated" in given:
        given["cpu"] = dedicated(cores=given.pop("isolated"), isolateEmulatorThread=True)
    if "dedicated" in given:
        given["cpu"] = dedicated(**given.pop("dedicated"))
    if "pool" in given:
        given |= {"ioThreadsPolicy": "supplementalPool"}
        given |= {"ioThreads": {"supplementalPoolThreadCount": given.pop("pool")}}
    return vmi(**given)


@table("words, field, reason, said", ROWS["refused"])
def test_rule_refuses(words: dict[str, Any], field: str, reason: str, said: str) -> None:
    """A spec that breaks one rule gets that rule's cause: KubeVirt's field and reason, the value and a remedy."""
    cause = (field, f"FieldValue{reason}")
    found = [it for it in review(spec_of(words)).causes if (*fields((it,)), it.reason) == cause]
    assert [said in it.message for it in found] == [True]
    assert any(word in found[0].message for word in ("set ", "lower ", "remove ")), "a remedy is named"


@table("words", ROWS["admitted"])
def test_rule_admits(words: dict[str, Any]) -> None:
    """A spec that keeps the rule, if only just, is admitted."""
    assert review(spec_of(words)).causes == ()


@table("words, expected", ROWS["causes"])
def test_every_cause_is_reported(words: dict[str, Any], expected: list[str]) -> None:
    """No cause hides another, and they come in KubeVirt's order."""
    assert fields(review(spec_of(words)).causes) == expected


LONG = {
    "count of 6000 digits": ({"cpu": {"cores": 16**6000}}, "cpu.cores", "a number of 24001 bits"),
    "long text": ({"memory": {"guest": "1Gi", "maxGuest": "x" * 99}}, "memory.maxGuest", "xxx..."),
}


@table("words, field, said", ROWS["unreadable"] | LONG)
def test_unreadable_number(words: dict[str, Any], field: str, said: str) -> None:
    """A number that cannot be read is one cause, and no rule speaks of its consequences."""
    causes, warnings = review(spec_of(words))
    assert fields(causes) == [field]
    assert said in causes[0].message
    assert len(causes[0].message) < 150
    assert warnings == ()


@pytest.mark.parametrize("matcher", ["instancetype", "preference"])
@pytest.mark.parametrize("kind", [Kind.VM, Kind.POOL])
@table("words, expected", ROWS["unfinished"])
def test_instancetype_may_bring_what_is_missing(
    kind: Kind, matcher: str, words: dict[str, Any], expected: list[str]
) -> None:
    """For an object with an instancetype or a preference only the rules apply that neither can change."""
    whole = wrapped(kind, spec_of(words), **{matcher: {"name": "u1"}})
    causes, warnings = review_vmi(kind, {}, whole, SETTINGS)
    assert [cause.field.partition(".domain.")[2] for cause in causes] == expected
    assert warnings == ()


@table("words, settings, path, value", ROWS["defaults"])
def test_default(words: dict[str, Any], settings: dict[str, Any], path: str, value: object) -> None:
    """A default is written where nothing is given, the user's own word stays, and a second pass changes nothing."""
    spec, chosen = spec_of(words), KubeVirtSettings(**settings)
    before = deepcopy(spec)
    result = defaulted(spec, chosen)
    place = {"architecture": "architecture", "requests.cpu": "domain.resources.requests.cpu"}
    assert find(result, place.get(path, f"domain.{path}")) == value
    assert defaulted(result, chosen) == result
    assert spec == before, "the input is not touched"


@table("words, even_parity, total", ROWS["pod_cpus"])
def test_cpus_of_the_pod(words: dict[str, Any], even_parity: bool, total: int) -> None:
    """The launcher pod's CPU count is that of KubeVirt's renderer."""
    view = VMIView("spec.", defaulted(spec_of(words), SETTINGS), SETTINGS)
    assert pod_cpus(view, even_parity=even_parity) == total


@table("words, known, expected", ROWS["warned"])
def test_warning(words: dict[str, Any], known: dict[str, Any], expected: dict[str, str]) -> None:
    """An odd total, threads without SMT, a pool without its policy, and CPUs that are said twice are warnings."""
    settings = KubeVirtSettings(**known.get("settings", {}))
    metadata: ObjectMeta = {"annotations": known.get("annotations")}
    shapes = tuple(known.get("threads_per_core", ()))
    causes, warnings = review_vmi(Kind.VMI, metadata, spec_of(words), settings, threads_per_core=shapes)
    assert (causes, fields(warnings)) == ((), list(expected))
    assert all(said in it.message for it, said in zip(warnings, expected.values(), strict=True))


def test_guest_memory_is_held_to_the_limit_without_live_update() -> None:
    """More guest memory than the limit is refused where the rollout strategy is not LiveUpdate, and only there."""
    spec = vmi(memory={"guest": "2Gi"}, limits={"memory": "1Gi"})
    assert fields(review(spec, STAGED).causes) == ["memory.guest"]
    assert review(vmi(memory={"guest": "1Gi"}, limits={"memory": "1Gi"}), STAGED).causes == ()


def test_dedicated_without_any_number_is_refused_before_defaulting() -> None:
    """Rule 8 covers a spec before defaulting; after defaulting no spec breaks it."""
    spec = vmi(dedicated())
    assert [cause.field for cause in dedicated_has_cpus(VMIView("spec.", spec, SETTINGS))] == [
        f"spec.domain.{PLACEMENT}"
    ]
    assert not list(dedicated_has_cpus(VMIView("spec.", defaulted(spec, SETTINGS), SETTINGS)))
    assert not list(dedicated_has_cpus(VMIView("spec.", vmi(dedicated(), limits={"cpu": 1}), SETTINGS)))


def test_threads_are_judged_by_the_default_architecture() -> None:
    """A VMI without an architecture is judged by that of the cluster."""
    arm = KubeVirtSettings(architecture=ARM)
    assert fields(review(vmi(dedicated(threads=2)), arm).causes) == ["spec.architecture"]


@pytest.mark.parametrize("kind", [Kind.VM, Kind.REPLICA_SET])
def test_memory_may_come_later_in_templates(kind: Kind) -> None:
    """Rule 25 is for VMIs: a template without memory is admitted."""
    spec: VirtSpec = {"template": {"spec": vmi(memory={})}}
    assert review_vmi(kind, {}, spec, SETTINGS).causes == ()


@table(
    "cpu, count",
    {
        "nothing": (None, 0),
        "empty": ({}, 0),
        "zeros": ({"cores": 0, "sockets": 0, "threads": 0}, 0),
        "cores-alone": ({"cores": 3}, 3),
        "all": ({"cores": 2, "sockets": 3, "threads": 2}, 12),
        "zero-is-not-set": ({"sockets": 3, "cores": 0, "threads": None}, 3),
        "max-sockets-do-not-count": ({"cores": 2, "maxSockets": 8}, 2),
    },
)
def test_vcpu_count(cpu: CPU | None, count: int) -> None:
    """The number of vCPUs is the product of the counts that are not zero."""
    assert vcpu_count(cpu) == count


def test_everything_may_be_absent() -> None:
    """A spec without any part gets one socket, one core, one thread and no memory."""
    cpu: dict[str, Any] = {"sockets": 1, "cores": 1, "threads": 1, "model": "host-model", "maxSockets": 4}
    assert defaulted({}, SETTINGS) == {
        "architecture": "amd64",
        "domain": {"cpu": cpu, "memory": {"guest": None}, "resources": {"requests": {}}},
    }


def test_unreadable_amount_raises() -> None:
    """Defaulting raises an error that names the unreadable amount."""
    with pytest.raises(BadQuantity, match="'lots' is not"):
        defaulted(vmi(limits={"cpu": "lots"}), SETTINGS)


@table(
    "cpu, annotations, settings, expected",
    {
        "presence-counts": ({}, {EVEN_PARITY: ""}, SETTINGS, True),
        "absent": ({}, {}, SETTINGS, False),
        "cr": (dedicated(isolateEmulatorThread=True), {}, KubeVirtSettings(even_parity=True), True),
        "cr-without-isolation": (dedicated(), {}, KubeVirtSettings(even_parity=True), False),
        "gate-off": (dedicated(isolateEmulatorThread=True), {}, SETTINGS, False),
    },
)
def test_even_parity(
    cpu: dict[str, Any], annotations: dict[str, str], settings: KubeVirtSettings, expected: bool
) -> None:
    """Even parity comes from the VMI's annotation or, for isolated emulators, from the cluster's."""
    assert has_even_parity(vmi(cpu), annotations, settings) is expected


@table(
    "mask, said",
    {
        "negation-alone": ("^3", ["mask ^3 selects no vCPU"]),
        "stranger": ("0,7", ["mask names 7, but the vCPUs are 0 to 3"]),
        "only-strangers": ("9", ["mask 9 selects no vCPU", "mask names 9"]),
        "leading-zero": ("03", ["mask 03 selects no vCPU", "mask names 03"]),
        "all-by-range": ("0-3", []),
        "absent": (None, []),
        "refused-instead": ("x", []),
    },
)
def test_mask_that_selects_no_vcpu(mask: str | None, said: list[str]) -> None:
    """A mask that selects no vCPU, or names one that does not exist, is a warning."""
    memory = {"guest": "1Gi", "hugepages": {"pageSize": "2Mi"}}
    spec = vmi(dedicated(cores=4, numa=PASSTHROUGH, realtime={"mask": mask}), memory=memory)
    warnings = review(spec).warnings
    assert [cause.field for cause in warnings] == ["spec.domain.cpu.realtime.mask"] * len(said)
    assert all(text in cause.message for text, cause in zip(said, warnings, strict=True))
