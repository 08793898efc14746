"""Mounts of the agent's pod, and those that components add."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from agent.kubelet.pod_resources import socket_beside
from pinning.contract import KUBELET_STATE, NRI_SOCKET
from tests.manifests.rendered import ROOT, Object, manifest, text, text_of

pytestmark = pytest.mark.server  # kubectl renders the manifests


def agent_mounts(spec: Object) -> dict[str, tuple[Object, Object]]:
    """Return the mounts of the agent's container, each with its volume."""
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    (container,) = spec["containers"]
    assert len(volumes) == len(spec["volumes"]) == len(container["volumeMounts"])
    return {mount["mountPath"]: (mount, volumes[mount["name"]]) for mount in container["volumeMounts"]}


def test_nri_adds_one_mount() -> None:
    """NRI adds one read-only mount: the socket's directory, so that a new socket is seen."""
    base, nri = (
        manifest(name, "DaemonSet", "corepin-agent")["spec"]["template"]["spec"] for name in ("base", "nri")
    )
    there, added = agent_mounts(base), agent_mounts(nri)
    mount, volume = added.pop(str(Path(NRI_SOCKET).parent))
    assert volume["hostPath"] == {"path": mount["mountPath"], "type": "DirectoryOrCreate"}
    assert (mount["readOnly"], mount["mountPropagation"]) == (True, "HostToContainer")
    assert added == there


def test_what_may_be_missing_keeps_no_agent_from_starting() -> None:
    """Optional host paths do not keep the agent from starting, and are mounted read-only."""
    mounts = agent_mounts(manifest("base", "DaemonSet", "corepin-agent")["spec"]["template"]["spec"])
    mount, volume = mounts["/host/sys/kernel"]
    assert volume["hostPath"] == {"path": "/sys/kernel", "type": "Directory"}
    assert (mount["readOnly"], mount["recursiveReadOnly"]) == (True, "IfPossible")
    mount, volume = mounts[str(socket_beside(Path(KUBELET_STATE)).parent)]
    assert volume["hostPath"] == {"path": mount["mountPath"], "type": "DirectoryOrCreate"}
    assert mount["readOnly"]


def test_vm_probe_adds_a_capability_and_nothing_else() -> None:
    """The component `vm-probe` adds one capability and an AppArmor rule, and the base has neither."""
    base, probe = (
        manifest(name, "DaemonSet", "corepin-agent")["spec"]["template"]["spec"]
        for name in ("base", "vm-probe")
    )
    (there,), (added,) = base["containers"], probe["containers"]
    assert added["securityContext"].pop("appArmorProfile") == {"type": "Unconfined"}
    assert added["securityContext"]["capabilities"].pop("add") == ["SYS_NICE", "SYS_PTRACE"]
    assert there["securityContext"]["capabilities"].pop("add") == ["SYS_NICE"]
    assert probe == base


def test_quiet_adds_four_mounts_and_no_capability() -> None:
    """`quiet` mounts interrupt counts and irqbalance's socket read-only, and affinities and masks writable."""
    base, quiet = (
        manifest(name, "DaemonSet", "corepin-agent")["spec"]["template"]["spec"] for name in ("base", "quiet")
    )
    mounts = agent_mounts(quiet)
    mount, volume = mounts.pop("/host/proc/interrupts")
    assert volume["hostPath"] == {"path": "/proc/interrupts", "type": "File"}
    assert mount["readOnly"]
    irq, volume = mounts.pop("/host/proc/irq")
    assert volume["hostPath"] == {"path": "/proc/irq", "type": "Directory"}
    assert "readOnly" not in irq
    masks, volume = mounts.pop("/host/sys/devices/virtual/workqueue")
    assert volume["hostPath"] == {"path": "/sys/devices/virtual/workqueue", "type": "Directory"}
    assert "readOnly" not in masks
    balancer, volume = mounts.pop("/host/run/irqbalance")
    assert volume["hostPath"] == {"path": "/run/irqbalance", "type": "DirectoryOrCreate"}
    assert balancer["readOnly"]
    assert mounts == agent_mounts(base)
    there, added = ({it["name"]: it for it in spec["containers"][0]["env"]} for spec in (base, quiet))
    assert added.pop("COREPIN_INTERRUPTS")["value"] == mount["mountPath"]
    assert added.pop("COREPIN_IRQ")["value"] == irq["mountPath"]
    assert added.pop("COREPIN_WORKQUEUES")["value"] == masks["mountPath"]
    assert added.pop("COREPIN_IRQBALANCE")["value"] == balancer["mountPath"]
    assert added == there
    names = ("securityContext", "hostPID", "hostNetwork")
    assert all(base.get(name) == quiet.get(name) for name in names)
    assert base["containers"][0]["securityContext"] == quiet["containers"][0]["securityContext"]


def test_quiet_power_adds_one_mount_to_quiet() -> None:
    """`quiet-power` mounts the CPUs' folder writable, because each CPU has a folder with its idle states."""
    quiet, power = (
        manifest(name, "DaemonSet", "corepin-agent")["spec"]["template"]["spec"]
        for name in ("quiet", "quiet-power")
    )
    mounts = agent_mounts(power)
    mount, volume = mounts.pop("/host/cpu")
    assert volume["hostPath"] == {"path": "/sys/devices/system/cpu", "type": "Directory"}
    assert "readOnly" not in mount
    assert mounts == agent_mounts(quiet)
    there, added = ({it["name"]: it for it in spec["containers"][0]["env"]} for spec in (quiet, power))
    assert added.pop("COREPIN_POWER")["value"] == mount["mountPath"]
    assert added == there
    assert quiet["containers"][0]["securityContext"] == power["containers"][0]["securityContext"]


def test_nri_may_be_applied_twice(tmp_path: Path) -> None:
    """The component `nri` adds one mount even if a kustomization has it twice."""
    (tmp_path / "manifests").symlink_to(ROOT.absolute())
    (tmp_path / "mine").mkdir()
    folder = {"resources": ["../manifests/base"], "components": ["../manifests/components/nri"] * 2}
    (tmp_path / "mine/kustomization.yaml").write_text(yaml.safe_dump(folder))
    assert text_of(tmp_path / "mine") == text("nri")
