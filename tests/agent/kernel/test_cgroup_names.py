"""Cgroup names that systemd and the kubelet derive."""

from __future__ import annotations

import pytest

from agent.kernel.cgroup_names import pod_roots, pod_uid


@pytest.mark.parametrize(
    ("cgroup_root", "systemd", "cgroupfs"),
    [
        pytest.param("/", "/kubepods.slice", "/kubepods", id="default"),
        pytest.param("", "/kubepods.slice", "/kubepods", id="empty"),
        pytest.param("/k8s", "/k8s.slice/k8s-kubepods.slice", "/k8s/kubepods", id="one"),
        pytest.param("k8s/", "/k8s.slice/k8s-kubepods.slice", "/k8s/kubepods", id="slashes"),
        pytest.param(
            "/a-b/c",
            "/a_b.slice/a_b-c.slice/a_b-c-kubepods.slice",
            "/a-b/c/kubepods",
            id="nested, with a dash",
        ),
    ],
)
def test_pods_are_below_the_kubelets_cgroup_root(cgroup_root: str, systemd: str, cgroupfs: str) -> None:
    """Both drivers put pods below `cgroupRoot`; systemd's joins the names."""
    assert pod_roots(cgroup_root) == (systemd, cgroupfs)


UID = "0e5b0b3c-1d2a-4c51-9b7f-6f8d1c2b3a40"


@pytest.mark.parametrize(
    ("folder", "uid"),
    [
        pytest.param(f"pod{UID}", UID, id="cgroupfs"),
        pytest.param(f"kubepods-burstable-pod{UID.replace('-', '_')}.slice", UID, id="systemd"),
        pytest.param(f"kubepods-pod{UID.replace('-', '_')}.slice", UID, id="systemd, guaranteed"),
        pytest.param("kubepods-pod3f1c9a.slice", "3f1c9a", id="static pod"),
        pytest.param("pods-kubepods-burstable-pod1234_5678.slice", "1234-5678", id="cgroupRoot like a pod's"),
        pytest.param("pods-kubepods.slice", None, id="root of the pods below such a cgroupRoot"),
        pytest.param("kubepods-burstable.slice", None, id="QoS class"),
        pytest.param("kubepods", None, id="root of the pods"),
        pytest.param("burstable", None, id="QoS class of cgroupfs"),
    ],
)
def test_pod_uid_is_read_from_the_cgroup_name(folder: str, uid: str | None) -> None:
    """The uid is in the cgroup's name, with "_" for "-" under systemd."""
    assert pod_uid(folder) == uid
