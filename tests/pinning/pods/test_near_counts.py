"""The names of resources that count CPUs near devices."""

from __future__ import annotations

import pytest

from pinning.pods.near_counts import (
    LONGEST_NAME,
    MOST_NEAR,
    device_resources,
    near_counts,
    near_resource,
)
from pinning.pods.resources import members
from tests.pods import container, pod

LONG_DOMAIN = f"{'d' * 60}.example.com"
OURS = "near.corepin.io"


@pytest.mark.parametrize(
    ("resource", "name"),
    [
        pytest.param("nvidia.com/gpu", f"{OURS}/nvidia.com.gpu", id="usual"),
        pytest.param("amd.com/Gpu_1.x-Y", f"{OURS}/amd.com.Gpu_1.x-Y", id="every sign that a name may have"),
        pytest.param(f"a.bc/{'n' * 58}", f"{OURS}/a.bc.{'n' * 58}", id="as long as a name may be"),
        pytest.param(f"a.bc/{'n' * 59}", f"{OURS}/a.bc.{'n' * 47}.efd1864085", id="a sign longer"),
        pytest.param("x/y", f"{OURS}/x.y", id="short"),
    ],
)
def test_names(resource: str, name: str) -> None:
    """Domain and name of the devices' resource, cut with a digest of the whole where that is too long."""
    assert near_resource(resource) == name
    assert len(name.partition("/")[2]) <= LONGEST_NAME


@pytest.mark.parametrize(
    "resource",
    [
        *(
            "cpu",
            "memory",
            "hugepages-2Mi",
            "",
            "/",
            "x/",
            "/y",
            "a/b/c",
            "-a/b",
            "a-/b",
            "a..b/c",
            "A.com/b",
        ),
        *("a.b/-c", "a.b/c-", "a.b/c d", "a.b/c\n", "a.b/\N{LATIN SMALL LETTER O WITH DIAERESIS}"),
        *(f"a.b/{'c' * 64}", f"{'a' * 254}/b", f"{'a.' * 200}b/c"),
        *("kubernetes.io/x", "x.kubernetes.io/y", "corepin.io/numa-cpus", f"{OURS}/nvidia.com.gpu"),
        "cmk.intel.com/exclusive-cores",
    ],
)
def test_what_no_device_plugin_can_offer_has_no_name(resource: str) -> None:
    """Names that the API server or the kubelet refuses, native resources, and our own."""
    assert near_resource(resource) == ""


def test_long_names_stay_apart() -> None:
    """Long resource names that differ only at their end get different names."""
    names = {near_resource(f"{LONG_DOMAIN}/{end}") for end in ("gpu", "nic", "x" * 63, "x" * 62 + "y")}
    assert len(names) == 4
    assert all(len(name.partition("/")[2]) == LONGEST_NAME for name in names)


def test_two_resources_may_share_a_name() -> None:
    """Two resources whose names are equal with dots for slashes are counted together."""
    assert near_resource("a.b/c.d") == near_resource("a.b.c/d") == f"{OURS}/a.b.c.d"


def test_the_devices_of_a_container() -> None:
    """The devices of containers are those that their limits name with an amount."""
    gpu = container("main", {"cpu": 2, "nvidia.com/gpu": 1, "none.example/x": 0, "bad.example/x": "many"})
    document = pod(gpu, container("other", {"cpu": 1, "a.example/nic": 2}))
    listed = members(document)
    assert [device_resources([member]) for member in listed] == [("nvidia.com/gpu",), ("a.example/nic",)]
    assert device_resources(listed) == ("a.example/nic", "nvidia.com/gpu")


def test_resources_of_one_name_share_the_least_number() -> None:
    """Resources whose published names are equal have the smaller number; other resources have none."""
    rooms = {"a.b/c.d": 6, "a.b.c/d": 4, "cpu": 9}
    assert near_counts(rooms) == {f"{OURS}/a.b.c.d": 4}
    assert near_counts({}) == {}


def test_counted_resources_are_bounded() -> None:
    """The first ones by name are counted, however many a kubelet lists."""
    rooms = {f"a.b/{number:03}": number for number in reversed(range(MOST_NEAR + 3))}
    assert near_counts(rooms) == {f"{OURS}/a.b.{number:03}": number for number in range(MOST_NEAR)}
