"""The review of KubeVirt objects: where each kind keeps its VMI, numbers that cannot be read, instancetypes, updates."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from pinning.contract import HOOK_SIDECARS
from pinning.errors import Cause
from pinning.kubevirt.review import (
    Kind,
    Review,
    find_template,
    review_vmi,
    vmi_hotplug_causes,
    vmi_update_causes,
)
from pinning.kubevirt.rules import INSTANCETYPE_RULES, REPLICA_SET_RULES, VM_RULES, VMI_RULES
from pinning.kubevirt.view import shortened
from tests.pinning.vmi_specs import (
    HUGE,
    PASSTHROUGH,
    SETTINGS,
    STAGED,
    dedicated,
    review,
    vmi,
    wrapped,
)
from tests.tables import table
from webhook.rules.machine_parts import changes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pinning.kubevirt.types import VirtSpec

WRONG = vmi(dedicated(threads=3))


@table(
    "kind, spec, root",
    {
        "vmi": (Kind.VMI, WRONG, ""),
        "vm": (Kind.VM, wrapped(Kind.VM, WRONG), "spec.template."),
        "replica-set": (Kind.REPLICA_SET, wrapped(Kind.REPLICA_SET, WRONG), "spec.template."),
        "pool": (Kind.POOL, wrapped(Kind.POOL, WRONG), "spec.virtualMachineTemplate.spec.template."),
    },
)
def test_field_has_the_path_of_its_kind(kind: Kind, spec: VirtSpec, root: str) -> None:
    """A cause names the field where the user wrote it, whatever the object around the VMI."""
    found = review_vmi(kind, {}, spec, SETTINGS).causes
    assert [cause.field for cause in found] == [f"{root}spec.domain.cpu.dedicatedCpuPlacement"]


def test_architecture_lies_beside_the_domain() -> None:
    """The path of the architecture has the same root as the domain's."""
    spec = wrapped(Kind.VM, vmi(architecture="riscv64"))
    assert [cause.field for cause in review_vmi(Kind.VM, {}, spec, SETTINGS).causes] == [
        "spec.template.spec.architecture"
    ]


@table(
    "kind, spec, field",
    {
        "vm": (Kind.VM, {}, "spec.template"),
        "replica-set": (Kind.REPLICA_SET, {"template": None}, "spec.template"),
        "pool": (Kind.POOL, {}, "spec.virtualMachineTemplate"),
        "pool-without-vm": (
            Kind.POOL,
            {"virtualMachineTemplate": {}},
            "spec.virtualMachineTemplate.spec.template",
        ),
    },
)
def test_missing_template(kind: Kind, spec: VirtSpec, field: str) -> None:
    """An object without the template of its machine is refused."""
    causes, warnings = review_vmi(kind, {}, spec, SETTINGS)
    assert [(cause.field, cause.reason) for cause in causes] == [(field, "FieldValueRequired")]
    assert kind in causes[0].message
    assert warnings == ()


def test_metadata_of_the_template() -> None:
    """The annotations that the VMI will have are its own, or the template's."""
    own = find_template(Kind.VMI, {"annotations": {"a": "b"}}, {})
    inner = find_template(Kind.POOL, {"annotations": {"c": "d"}}, wrapped(Kind.POOL, {}, {"a": "b"}))
    bare = find_template(Kind.VM, {}, {"template": {}})
    assert not any(isinstance(found, Cause) for found in (own, inner, bare))
    assert [found.annotations for found in (own, inner, bare) if not isinstance(found, Cause)] == [
        {"a": "b"},
        {"a": "b"},
        {},
    ]


@table(
    "kind, annotations, gate, expected",
    {
        "vmi": (Kind.VMI, {HOOK_SIDECARS: "[]"}, False, [f"metadata.annotations[{HOOK_SIDECARS}]"]),
        "vm": (
            Kind.VM,
            {HOOK_SIDECARS: "[]"},
            False,
            [f"spec.template.metadata.annotations[{HOOK_SIDECARS}]"],
        ),
        "gate": (Kind.VMI, {HOOK_SIDECARS: "[]"}, True, []),
        "empty": (Kind.VMI, {HOOK_SIDECARS: ""}, False, []),
        "absent": (Kind.VMI, {}, False, []),
    },
)
def test_hook_sidecars(kind: Kind, annotations: dict[str, str], gate: bool, expected: list[str]) -> None:
    """Hook sidecars are refused while their gate is absent."""
    spec = vmi() if kind is Kind.VMI else wrapped(kind, vmi(), annotations)
    found = review_vmi(kind, {"annotations": annotations}, spec, SETTINGS, sidecar_gate=gate)
    assert [cause.field for cause in found.causes] == expected


@table(
    "spec",
    {
        "count": vmi({"cores": 2**32 - 1}),
        "product": vmi({"sockets": 65537, "cores": 65535}),
        "amount": vmi({"cores": 1}, requests={"cpu": 2**32 - 1}),
    },
)
def test_largest_number(spec: VirtSpec) -> None:
    """The largest number that KubeVirt can count is readable."""
    assert review(spec).causes == ()


@table(
    "value, text",
    {
        "fits": ("x" * 40, "x" * 40),
        "too-long": ("x" * 41, "x" * 37 + "..."),
        "long-number": (2**128, "a number of 129 bits"),
        "nothing": (None, "not set"),
    },
)
def test_values_in_messages_are_short(value: object, text: str) -> None:
    """A user's value takes at most 40 characters of a message."""
    assert shortened(value) == text


def test_refused_is_not_warned() -> None:
    """A refused object has no warnings."""
    odd = vmi(dedicated(cores=3))
    assert review(odd).warnings
    assert not review({**odd, "architecture": "x"}).warnings


def test_instancetype_counts_the_cpus() -> None:
    """CPU counts beside an instancetype are refused field by field; beside a preference they are fine."""
    spec = vmi({"cores": 2, "sockets": 0}, requests={"cpu": "2"}, limits={"cpu": "2"})
    beside = wrapped(Kind.VM, spec, instancetype={"name": "u1"})
    assert [
        cause.field.partition(".domain.")[2] for cause in review_vmi(Kind.VM, {}, beside, SETTINGS).causes
    ] == [
        "resources.requests.cpu",
        "resources.limits.cpu",
        "cpu.cores",
    ]
    assert review_vmi(Kind.VM, {}, wrapped(Kind.VM, spec, preference={"name": "p"}), SETTINGS) == Review()


@pytest.mark.parametrize("matcher", ["instancetype", "preference"])
def test_replica_sets_know_no_instancetype(matcher: str) -> None:
    """A key that is not in the API of replica sets switches no rule off."""
    spec = wrapped(Kind.REPLICA_SET, vmi({"isolateEmulatorThread": True}), **{matcher: {"name": "u1"}})
    assert len(review_vmi(Kind.REPLICA_SET, {}, spec, SETTINGS).causes) == 1


def test_rules_for_instancetypes_are_rules_for_vms() -> None:
    """The shorter lists have no rule that the longer ones lack, and keep their order."""
    assert [rule for rule in VM_RULES if rule in INSTANCETYPE_RULES] == list(INSTANCETYPE_RULES)
    assert [rule for rule in VMI_RULES if rule in REPLICA_SET_RULES] == list(REPLICA_SET_RULES)


@table(
    "cpu, memory, live, expected",
    {
        "both": (dedicated(numa=PASSTHROUGH, realtime={}), HUGE | {"maxGuest": "4Gi"}, True, 2),
        "numa": (dedicated(numa=PASSTHROUGH), HUGE | {"maxGuest": "4Gi"}, True, 1),
        "no-max-guest": (dedicated(numa=PASSTHROUGH, realtime={}), HUGE, True, 0),
        "plain": (dedicated(), HUGE | {"maxGuest": "4Gi"}, True, 0),
        "staged": (dedicated(numa=PASSTHROUGH, realtime={}), HUGE | {"maxGuest": "4Gi"}, False, 0),
    },
)
def test_memory_hotplug_of_vms(
    cpu: dict[str, Any], memory: dict[str, Any], live: bool, expected: int
) -> None:
    """With LiveUpdate a VM has no room for memory hotplug beside realtime or NUMA passthrough; a VMI may."""
    spec, chosen = vmi(cpu, memory=memory), SETTINGS if live else STAGED
    causes = review_vmi(Kind.VM, {}, wrapped(Kind.VM, spec), chosen).causes
    assert [cause.field for cause in causes] == ["spec.template.spec.domain.memory.guest"] * expected
    assert review(spec, chosen).causes == ()


def test_sockets_over_maximum_are_one_cause() -> None:
    """Too many sockets of a VM are one cause, while KubeVirt reports two."""
    spec = wrapped(Kind.VM, vmi({"sockets": 8, "maxSockets": 4}))
    assert len(review_vmi(Kind.VM, {}, spec, SETTINGS).causes) == 1


def update_causes(old: Mapping[str, object], new: Mapping[str, object]) -> tuple[Cause, ...]:
    """Return why a spec may not change so, which is compared as the bytes that travel."""
    before, after = (msgspec.Raw(msgspec.json.encode(spec)) for spec in (old, new))
    return tuple(vmi_update_causes(changes(before, after)))


@table(
    "old, new, expected",
    {
        "same": (vmi({"cores": 2}), vmi({"cores": 2}), []),
        "count": (vmi({"cores": 2}), vmi({"cores": 4}), ["spec.domain.cpu.cores"]),
        "null-is-absent": ({"a": None}, {}, []),
        "empty-list-is-absent": ({"volumes": []}, {}, []),
        "empty-object-is-not": ({}, {"domain": {"cpu": {"realtime": {}}}}, ["spec.domain"]),
        "list": ({"volumes": [{"a": 1}]}, {"volumes": [{"a": 2}]}, ["spec.volumes"]),
        "two-in-order": ({"x": 1, "b": 2}, {"x": 2, "b": 1}, ["spec.b", "spec.x"]),
        "other-type": ({"a": {"b": 1}}, {"a": 1}, ["spec.a"]),
    },
)
def test_spec_of_a_vmi_is_fixed(
    old: Mapping[str, object], new: Mapping[str, object], expected: list[str]
) -> None:
    """A user may change nothing in the spec of a VMI; each change is a cause with its path."""
    causes = update_causes(old, new)
    assert [cause.field for cause in causes] == expected
    assert {cause.reason for cause in causes} <= {"FieldValueNotSupported"}


def test_update_prints_no_secrets() -> None:
    """Lists and objects, which may hold passwords, are not printed."""
    (cause,) = update_causes({"volumes": [{"userData": "s3cret"}]}, {"volumes": [1]})
    assert "s3cret" not in cause.message
    assert cause.message.startswith("changes from another value to another value;")


def test_update_prints_booleans_as_json() -> None:
    """A boolean reads as it stands in the manifest."""
    (cause,) = update_causes({"domain": {"cpu": {"isolateEmulatorThread": True}}}, {"domain": {"cpu": {}}})
    assert cause.message.startswith("changes from true to not set;")


def test_update_of_a_deep_spec() -> None:
    """Below a certain depth a part is compared as a whole."""
    old: dict[str, Any] = {"k": 1}
    for _ in range(50):
        old = {"k": old}
    new = deepcopy(old) | {"l": 1}
    assert [cause.field for cause in update_causes(old, new)] == ["spec.l"]
    assert [cause.field for cause in update_causes(old, {"k": {"k": old}})] == ["spec" + ".k" * 8]


@table(
    "old, new, expected",
    {
        "hotplug": ({"maxSockets": 4}, {"maxSockets": 4, "sockets": 2}, []),
        "changed": ({"maxSockets": 4}, {"maxSockets": 8}, ["spec.domain.cpu.maxSockets"]),
        "removed": ({"maxSockets": 4}, {}, ["spec.domain.cpu.maxSockets"]),
        "zero-is-absent": ({"maxSockets": 0}, {}, []),
    },
)
def test_kubevirt_changes_all_but_the_maximum(
    old: dict[str, int], new: dict[str, int], expected: list[str]
) -> None:
    """KubeVirt's own accounts change a VMI, for hotplug; maxSockets stays."""
    causes = vmi_hotplug_causes(vmi(old), vmi(new))
    assert [(cause.field, cause.reason) for cause in causes] == [
        (field, "FieldValueNotSupported") for field in expected
    ]
