"""SMT policies of virtual machines against the topology of their guests."""

from __future__ import annotations

from typing import Any

import pytest

from pinning.kubevirt.review import Kind
from webhook.config.settings import Settings
from webhook.rules.vms import VirtObject, review_changed_vm, review_vm

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
