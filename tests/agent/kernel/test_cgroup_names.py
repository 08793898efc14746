"""Names of cgroups that systemd and the kubelet derive from others."""

from __future__ import annotations

import pytest

from agent.kernel.cgroup_names import pod_roots


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
    """Both drivers put them below `cgroupRoot`; that of systemd makes one name of the parts."""
    assert pod_roots(cgroup_root) == (systemd, cgroupfs)
