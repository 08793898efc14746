"""`corepin plan --devices`: a file says which devices pods get."""

from __future__ import annotations

import pytest

from tests.corepin.plans import GPU_POD, Planning, pod


def test_a_file_says_which_devices_a_pod_gets(plan: Planning) -> None:
    """A pod gets the devices that the file names; impossible devices are a warning, and unknown pods are noted."""
    given = plan.file(
        "{default/a: {main: {nvidia.com/gpu: [1]}}, default/b: {main: {nvidia.com/gpu: [-1]}},"
        " default/c: {main: {nvidia.com/gpu: [0+1]}}, default/d: {main: {nvidia.com/gpu: [0, 0]}}, x/y: {}}"
    )
    pods = [GPU_POD.format(name=name, gpus=1) for name in "abcd"]
    flags = ("--device", "nvidia.com/gpu=0,0,0,1", "--devices", given)
    *_, last = plan.lines(*pods, flags=flags)
    found = last["assignments"]["default/a/main"]
    assert (found["numaNodes"], found["devices"][0]["nodes"]) == ([1], [1])

    shown = plan.run(*pods, flags=flags)
    assert "--devices names pods that no document defines: x/y" in shown.err
    assert "--devices gives container main 2 nvidia.com/gpu, and it asks for 1" in " ".join(shown.out.split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "has 0 documents instead of one", id="empty"),
        pytest.param("- a", "\"['a']\" is not a mapping of names: write for example", id="a list"),
        pytest.param("a/b: {c: {d/e: 1}}", "a/b: c: d/e: '1' is not a list", id="a number"),
        pytest.param("a/b: {c: {d/e: [x]}}", "a/b: c: d/e: 'x' is not a NUMA node", id="a word"),
        pytest.param("a/b: {c: }", "a/b: c: 'None' is not a mapping of names", id="nothing"),
    ],
)
def test_a_wrong_file_of_devices_is_refused(plan: Planning, text: str, message: str) -> None:
    """A wrong file of devices is refused with file, place and error."""
    assert message in plan.failure(pod("name: a"), flags=("--devices", plan.file(text)))


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        pytest.param("0+1", "a nvidia.com/gpu on NUMA node 0-1, and none is free", id="another place"),
        pytest.param("-1", "a nvidia.com/gpu without a NUMA node, and none is free", id="no place"),
    ],
)
def test_a_device_that_the_machine_lacks_is_a_warning(plan: Planning, nodes: str, text: str) -> None:
    """A pod with a device that the machine lacks is planned without devices."""
    given = plan.file(f"default/a: {{main: {{nvidia.com/gpu: [{nodes}]}}}}")
    flags = ("--device", "nvidia.com/gpu=0,1", "--devices", given)
    assert text in plan.words(GPU_POD.format(name="a", gpus=1), flags=flags)
