"""`make try` on this machine."""

from __future__ import annotations

import base64
import json
import os
import signal
from pathlib import Path

import pytest

from demo.cluster import steps as progress
from demo.cluster.emulated import machine
from demo.cluster.reached import write_kubeconfig
from demo.cluster.tour import guide, steps, write_pods
from tests.demo_cluster.session import SECONDS, session, take_the_tour
from tests.environments.waiting import until_equal


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
        # The kernel removes interfaces after their namespace.
        until_equal("remains", lambda: "\n".join(tried.traces()), "")


@pytest.mark.server
@pytest.mark.runtime
@pytest.mark.node
def test_what_a_killed_cluster_leaves_is_taken_away() -> None:
    """A killed cluster's containers are ended by the process that the user started."""
    with session() as tried:
        os.kill(tried.inner, signal.SIGKILL)

        assert tried.process.wait(SECONDS) != 0
        until_equal("remains", lambda: "\n".join(tried.traces()), "")


def test_guide_is_to_be_copied(tmp_path: Path) -> None:
    """Six commands stand below the line that sets KUBECONFIG, each with what it shows."""
    text = guide(tmp_path, tmp_path / "kubeconfig", (Path("/a"), Path("/b")), "http://127.0.0.1:1/")
    assert "http://127.0.0.1:1/" in text
    assert f"export KUBECONFIG={tmp_path / 'kubeconfig'} PATH=/a:/b:$PATH" in text
    assert len(steps(tmp_path)) == 6
    assert all(f"  {step.command}" in text for step in steps(tmp_path))


def test_pods_of_the_tour_want_cores_for_themselves(tmp_path: Path) -> None:
    """One pod of the tour claims a core, and the other one all allocatable cores."""
    write_pods(tmp_path, cores=3)
    pods = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("web", "late")]
    assert [pod["spec"]["containers"][0]["resources"]["limits"]["cpu"] for pod in pods] == ["1", "3"]
    assert all(pod["metadata"]["annotations"] == {"smt-policy.corepin.io/pod": "isolate"} for pod in pods)


def test_emulated_machine_reaches_nothing() -> None:
    """The emulated machine's network reaches nothing, and only its API server's port is forwarded."""
    _, door, _, device = machine(1234).devices
    assert door == "user,id=door,restrict=on,hostfwd=tcp:127.0.0.1:1234-10.0.2.15:443"
    assert device == "virtio-net-pci,netdev=door"


def test_emulated_cluster_is_reached_by_its_kubeconfig_alone(tmp_path: Path) -> None:
    """The kubeconfig names no file of the emulated machine, and only its owner may read it."""
    path = write_kubeconfig(tmp_path, "https://127.0.0.1:1234", "the CA", "the token")
    found = json.loads(path.read_text())
    trusted = base64.b64encode(b"the CA").decode()
    assert found["clusters"][0]["cluster"] == {
        "server": "https://127.0.0.1:1234",
        "certificate-authority-data": trusted,
    }
    assert found["users"][0]["user"] == {"token": "the token"}
    assert path.stat().st_mode & 0o777 == 0o600


def test_each_step_is_printed_when_it_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step is printed with its time when it is reached; a step that never is fails at the timeout."""
    monkeypatch.setattr(progress, "POLL_SECONDS", 0)
    said: list[str] = []
    looks = iter([0, 0, 3])
    waited = progress.Steps(said.append)

    assert waited.until("the node offers cores", lambda: next(looks)) == 3
    assert [line.split(maxsplit=1)[1] for line in said] == ["the node offers cores"]
    monkeypatch.setattr(progress, "LONGEST_SECONDS", 0)
    with pytest.raises(progress.NeverReached, match="in vain until the node is there"):
        waited.until("the node is there", lambda: None)
