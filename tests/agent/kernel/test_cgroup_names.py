"""Cgroup names that systemd and the kubelet derive."""

from __future__ import annotations

from agent.kernel.cgroup_names import is_within, pod_of, pod_roots, pod_uid
from tests.tables import table


@table(
    "cgroup_root, systemd, cgroupfs",
    {
        "default": ("/", "/kubepods.slice", "/kubepods"),
        "empty": ("", "/kubepods.slice", "/kubepods"),
        "one": ("/k8s", "/k8s.slice/k8s-kubepods.slice", "/k8s/kubepods"),
        "slashes": ("k8s/", "/k8s.slice/k8s-kubepods.slice", "/k8s/kubepods"),
        "nested, with a dash": ("/a-b/c", "/a_b.slice/a_b-c.slice/a_b-c-kubepods.slice", "/a-b/c/kubepods"),
    },
)
def test_pods_are_below_the_kubelets_cgroup_root(cgroup_root: str, systemd: str, cgroupfs: str) -> None:
    """Both drivers put pods below `cgroupRoot`; systemd's joins the names."""
    assert pod_roots(cgroup_root) == (systemd, cgroupfs)


UID = "0e5b0b3c-1d2a-4c51-9b7f-6f8d1c2b3a40"


@table(
    "folder, uid",
    {
        "cgroupfs": (f"pod{UID}", UID),
        "systemd": (f"kubepods-burstable-pod{UID.replace('-', '_')}.slice", UID),
        "systemd, guaranteed": (f"kubepods-pod{UID.replace('-', '_')}.slice", UID),
        "static pod": ("kubepods-pod3f1c9a.slice", "3f1c9a"),
        "cgroupRoot like a pod's": ("pods-kubepods-burstable-pod1234_5678.slice", "1234-5678"),
        "root of the pods below such a cgroupRoot": ("pods-kubepods.slice", None),
        "QoS class": ("kubepods-burstable.slice", None),
        "root of the pods": ("kubepods", None),
        "QoS class of cgroupfs": ("burstable", None),
    },
)
def test_pod_uid_is_read_from_the_cgroup_name(folder: str, uid: str | None) -> None:
    """The uid is in the cgroup's name, with "_" for "-" under systemd."""
    assert pod_uid(folder) == uid


POD = f"/kubepods/burstable/pod{UID}"


@table(
    "seen, is_one",
    {
        "its own": (f"{POD}/one", True),
        "below it": (f"{POD}/one/init", True),
        "from a pod of another class": (f"/burstable/pod{UID}/one", True),
        "from a pod of its class": (f"/pod{UID}/one/init", True),
        "from a container of its pod": ("/one", True),
        "another container": (f"{POD}/two", False),
        "a longer name": (f"{POD}/one-more", False),
        "another pod": ("/kubepods/burstable/podother/one", False),
        "another pod, from a pod": ("/podother/one", False),
        "that name below another one": (f"/podother/two{POD}/one", False),
        "part of a name": (f"/d{UID}/one", False),
        "above it": (POD, False),
        "the root": ("/", False),
    },
)
def test_cgroup_is_found_from_any_namespace(seen: str, is_one: bool) -> None:
    """A namespace hides the part that a path shares with the reader's own cgroup, never the end."""
    assert is_within(seen, f"{POD}/one") is is_one


OTHER = "ffffffff-ffff-4fff-9fff-ffffffffffff"


@table(
    "path, pod",
    {
        "cgroupfs": (f"/kubepods/burstable/pod{UID}/a", UID),
        "systemd": (f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-a.scope", UID),
        "namespace of the reader": (f"/../../pod{UID}/a", UID),
        "static pod": ("/kubepods/pod3f1c9a/a", ""),
        "outside": ("/system.slice/kubelet.service", None),
        "child named like another pod": (f"/kubepods/pod{UID}/a/pod{OTHER}", UID),
        "child named like another slice": (
            f"/kubepods/pod{UID}/a/kubepods-pod{OTHER.replace('-', '_')}.slice",
            UID,
        ),
    },
)
def test_pod_is_the_outermost_in_the_path(path: str, pod: str | None) -> None:
    """The kubelet makes the first folders; a container names those below its own as it likes."""
    assert pod_of(path) == pod
