"""The operator guide's patch for CRI-O, applied to the base."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from tests.docs.blocks import blocks
from tests.manifests.rendered import ROOT, parsed, text_of

GUIDE = Path("docs/operator-guide.md")
pytestmark = pytest.mark.server  # kubectl renders the manifests


def test_patch_of_the_guide_leaves_nothing_of_containerd(tmp_path: Path) -> None:
    """The patch replaces containerd's endpoint, mount and volume by CRI-O's."""
    section = (
        GUIDE.read_text(encoding="utf-8").partition("\n### CRI-O and OpenShift\n")[2].partition("\n### ")[0]
    )
    (patch,) = blocks(section, "yaml")
    head = (
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [../manifests/base]\n"
    )
    shutil.copytree(ROOT, tmp_path / "manifests")
    (tmp_path / "my-corepin").mkdir()
    (tmp_path / "my-corepin/kustomization.yaml").write_text(head + patch, encoding="utf-8")

    documents = parsed(text_of(tmp_path / "my-corepin"))
    (pod,) = (
        it["spec"]["template"]["spec"]
        for it in documents
        if it["kind"] == "DaemonSet" and it["metadata"]["name"] == "corepin-agent"
    )
    (container,) = pod["containers"]
    assert "containerd" not in yaml.safe_dump(pod)
    assert {"name": "COREPIN_RUNTIME_ENDPOINT", "value": "/run/crio/crio.sock"} in container["env"]
    mounts = [it["mountPath"] for it in container["volumeMounts"] if it["name"] == "runtime"]
    assert mounts == ["/run/crio"]
    (volume,) = (it for it in pod["volumes"] if it["name"] == "runtime")
    assert volume["hostPath"] == {"path": "/run/crio", "type": "Directory"}
