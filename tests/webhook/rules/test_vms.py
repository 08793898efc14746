"""SMT policies of virtual machines against the topology of their guests."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from pinning.kubevirt.review import Kind
from webhook.config.settings import Settings
from webhook.rules.raw_json import Malformed
from webhook.rules.vms import (
    RunningMachine,
    VirtObject,
    is_kubevirt,
    read_running,
    review_changed_vm,
    review_changed_vmi,
    review_hotplugged_vmi,
    review_vm,
)

FIELD = "spec.domain.cpu.threads"


def vmi(threads: Any = 2, *, dedicated: bool = True, **annotations: str) -> VirtObject:
    """Return a VirtualMachineInstance; keys of annotations stand for those of its policies."""
    keys = {"smt": "smt-policy.corepin.io/pod", "mine": "smt-policy.corepin.io/container.compute"}
    keys |= {"cpu": "cpu-manager.corepin.io/pod", "shared": "shared-cpus.corepin.io/pod"}
    keys |= {"ours": "shared-cpus.corepin.io/container.compute"}
    cpu = {"cores": 2, "threads": threads, "dedicatedCpuPlacement": dedicated}
    return {
        "metadata": {"annotations": {keys[key]: value for key, value in annotations.items()}},
        "spec": {"domain": {"memory": {"guest": "1Gi"}, "cpu": cpu}},  # type: ignore[typeddict-item]
    }


def fields(document: VirtObject) -> list[str]:
    """Return the fields of the causes."""
    return [cause.field for cause in review_vm(Kind.VMI, document, Settings()).causes]


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        pytest.param(vmi(smt="isolate"), [FIELD], id="pod"),
        pytest.param(vmi(smt="require", mine="isolate"), [FIELD], id="container"),
        pytest.param(vmi(smt="isolate", cpu="exclusive"), [FIELD], id="exclusive"),
        pytest.param(vmi(smt="isolate", mine="prefer"), [], id="not-this-container"),
        pytest.param(vmi(smt="require"), [], id="require"),
        pytest.param(vmi(smt="isolate", cpu="share"), [], id="policy-does-not-act"),
        pytest.param(vmi(1, smt="isolate"), [], id="one-thread"),
        pytest.param(vmi(None, smt="isolate"), [], id="no-threads-stated"),
        pytest.param(vmi(smt="isolate", dedicated=False), [], id="not-dedicated"),
        pytest.param(vmi(), [], id="no-policy"),
    ],
)
def test_isolated_guests_have_no_siblings(document: VirtObject, expected: list[str]) -> None:
    """A guest under `isolate` may have only one thread per core."""
    assert fields(document) == expected


@pytest.mark.parametrize("scope", ["pod", "container.compute"])
def test_machines_do_not_use_the_shared_set(scope: str) -> None:
    """The shared-CPUs annotation is refused for a VM and in its template: no guest can move a thread there."""
    inner = vmi(shared="true") if scope == "pod" else vmi(ours="true")
    (cause,) = review_vm(Kind.VMI, inner, Settings()).causes
    key = f"shared-cpus.corepin.io/{scope}"
    assert cause.field == f"metadata.annotations[{key}]"
    assert cause.message.endswith("none of them can be moved by the guest; remove shared-cpus.corepin.io")
    machine: VirtObject = {
        "metadata": {},
        "spec": {"template": {"metadata": inner["metadata"], "spec": inner["spec"]}},
    }
    (cause,) = review_vm(Kind.VM, machine, Settings()).causes
    assert cause.field == f"spec.template.metadata.annotations[{key}]"
    assert not fields(vmi(shared="false", ours="false"))


def limited(limit: str | None = None, request: str | None = None, **annotations: str) -> VirtObject:
    """Return a machine without dedicated CPUs, with a CPU limit and request."""
    machine: Any = vmi(dedicated=False, **annotations)
    amounts = {"limits": limit, "requests": request}
    resources = {kind: {"cpu": amount} for kind, amount in amounts.items() if amount}
    machine["spec"]["domain"]["resources"] = resources
    return machine  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("document", "warned"),
    [
        pytest.param(vmi(cpu="exclusive"), None, id="dedicated"),
        pytest.param(limited(cpu="exclusive"), "cpu-manager.corepin.io/pod", id="exclusive"),
        pytest.param(limited(cpu="share"), "cpu-manager.corepin.io/pod", id="share"),
        pytest.param(limited(mine="require"), "smt-policy.corepin.io/container.compute", id="require"),
        pytest.param(limited("1500m", smt="isolate"), "smt-policy.corepin.io/pod", id="a fraction"),
        pytest.param(limited("2", "1", smt="isolate"), "smt-policy.corepin.io/pod", id="a smaller request"),
        pytest.param(limited("4", smt="isolate", cpu="none"), None, id="none"),
        pytest.param(limited("4", smt="isolate"), None, id="a whole limit"),
        pytest.param(limited("4", "4", cpu="exclusive"), None, id="request and limit"),
        pytest.param(limited(smt="prefer"), None, id="prefer alone"),
    ],
)
def test_policy_of_a_machine_without_whole_cpus_is_warned_of(
    document: VirtObject, warned: str | None
) -> None:
    """A policy is a warning if the machine's container gets no whole CPUs: its launcher pod is refused later."""
    found = [it for it in review_vm(Kind.VMI, document, Settings()).warnings if "whole CPUs" in it.message]
    assert [it.field for it in found] == ([f"metadata.annotations[{warned}]"] if warned else [])


def test_instancetype_may_bring_dedicated_cpus() -> None:
    """A machine with an instancetype is not warned of a policy, because the instancetype may dedicate CPUs."""
    inner = limited(cpu="exclusive")
    template: Any = {"metadata": inner["metadata"], "spec": inner["spec"]}
    machine = machine_of(template)
    (warning,) = review_vm(Kind.VM, machine, Settings()).warnings
    assert warning.field == "spec.template.metadata.annotations[cpu-manager.corepin.io/pod]"
    machine["spec"]["instancetype"] = {}  # type: ignore[index]
    assert review_vm(Kind.VM, machine, Settings()).warnings == ()


def test_templates_and_updates() -> None:
    """A cause names the template's field, and a machine admitted earlier may be edited elsewhere."""
    inner = vmi(smt="isolate")
    machine: VirtObject = {
        "metadata": {},
        "spec": {"template": {"metadata": inner["metadata"], "spec": inner["spec"]}},
    }
    (cause,) = review_vm(Kind.VM, machine, Settings()).causes

    assert cause.field == f"spec.template.{FIELD}"
    assert review_changed_vm(Kind.VM, machine, machine, Settings()).causes == ()


def machine_of(template: Any) -> VirtObject:
    """Return a VirtualMachine."""
    return {"metadata": {}, "spec": {"template": template}}


def test_machine_without_a_template_is_refused() -> None:
    """A VirtualMachine without a template is refused with that field; an update is refused only if it removes it."""
    (cause,) = review_vm(Kind.VM, machine_of(None), Settings()).causes
    assert cause.field == "spec.template"
    assert review_changed_vm(Kind.VM, machine_of(None), machine_of(None), Settings()).causes == ()
    template: Any = {"metadata": {}, "spec": vmi()["spec"]}
    (added,) = review_changed_vm(Kind.VM, machine_of(template), machine_of(None), Settings()).causes
    assert added == cause


def test_update_is_judged_by_what_it_adds() -> None:
    """A cause or a warning that the machine had before is not repeated."""
    good, bad = ({"metadata": it["metadata"], "spec": it["spec"]} for it in (vmi(), vmi(smt="isolate")))
    (cause,) = review_changed_vm(Kind.VM, machine_of(good), machine_of(bad), Settings()).causes
    assert cause.field == f"spec.template.{FIELD}"
    mended = review_changed_vm(Kind.VM, machine_of(bad), machine_of(good), Settings())
    assert (mended.causes, mended.warnings) == ((), ())


def running(spec: Any, **annotations: Any) -> RunningMachine:
    """Return a running machine with a spec that is not decoded."""
    document = {"metadata": vmi(**annotations)["metadata"], "spec": spec, "status": {"phase": "Running"}}
    return read_running(msgspec.Raw(json.dumps(document).encode()))


def test_running_machine_is_compared_as_it_is_written() -> None:
    """Users may change no part of its spec, and no policy to a wrong one."""
    before, after = ({"domain": {"cpu": {"cores": cores}}} for cores in (1, 2))
    assert review_changed_vmi(running(before), running(before)).causes == ()
    (cause,) = review_changed_vmi(running(before), running(after)).causes
    assert cause.field == "spec.domain.cpu.cores"
    (wrong,) = review_changed_vmi(running(before), running(before, smt="x")).causes
    assert wrong.field == "metadata.annotations[smt-policy.corepin.io/pod]"
    assert review_changed_vmi(running(before, smt="x"), running(before, smt="x")).causes == ()


def test_running_machine_that_cannot_be_read_is_refused() -> None:
    """A running machine with unreadable metadata is refused with the path of the member."""
    with pytest.raises(Malformed) as refused:
        read_running(msgspec.Raw(b'{"metadata":{"annotations":[]}}'))
    assert refused.value.path == "$.request.object.metadata.annotations"


def test_kubevirt_may_hotplug() -> None:
    """KubeVirt's own accounts may change a running machine's sockets, but not maxSockets."""
    specs: list[Any] = [
        {"domain": {"cpu": {"sockets": sockets, "maxSockets": most}}}
        for sockets, most in ((1, 4), (2, 4), (1, 8))
    ]
    old, plugged, raised = (VirtObject(metadata={}, spec=it) for it in specs)
    assert review_hotplugged_vmi(old, plugged).causes == ()
    (cause,) = review_hotplugged_vmi(old, raised).causes
    assert cause.field == "spec.domain.cpu.maxSockets"
    account = "system:serviceaccount:kubevirt:kubevirt-controller"
    accounts = (account, account.replace("kubevirt:", "any:", 1), "kubevirt-controller", f"{account}-2")
    assert [is_kubevirt(it, Settings()) for it in accounts] == [True, True, False, False]
