"""`make try` on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from demo.cluster.tour import guide, steps, write_pods
from tests.demo_cluster.session import session, take_the_tour


@pytest.mark.server
@pytest.mark.runtime
@pytest.mark.node
def test_tour_works_and_ctrl_c_leaves_nothing_behind() -> None:
    """Every command of the tour shows what is promised; after Ctrl-C there is no process, mount, cgroup or file."""
    with session() as tried:
        take_the_tour(tried)
        there = " ".join(tried.traces())
        assert all(word in there for word in ("kube-apiserver", "kubelet", "/run/netns/", "/sys/fs/cgroup/"))

        assert tried.interrupt() == 0
        assert tried.traces() == []


def test_guide_is_to_be_copied(tmp_path: Path) -> None:
    """Six commands stand below the line that sets KUBECONFIG, each with what it shows."""
    text = guide(tmp_path, tmp_path / "kubeconfig", (Path("/a"), Path("/b")), "http://127.0.0.1:1/")
    assert "http://127.0.0.1:1/" in text
    assert f"export KUBECONFIG={tmp_path / 'kubeconfig'} PATH=/a:/b:$PATH" in text
    assert len(steps(tmp_path)) == 6
    assert all(f"  {step.command}" in text for step in steps(tmp_path))


def test_pods_of_the_tour_want_cores_for_themselves(tmp_path: Path) -> None:
    """One takes a core, and the other one all that there are."""
    write_pods(tmp_path, cores=3)
    pods = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("web", "late")]
    assert [pod["spec"]["containers"][0]["resources"]["limits"]["cpu"] for pod in pods] == ["1", "3"]
    assert all(pod["metadata"]["annotations"] == {"smt-policy.corepin.io/pod": "isolate"} for pod in pods)
