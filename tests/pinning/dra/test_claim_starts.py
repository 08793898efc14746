"""Containers of claims that are created now: their CPUs and variables, or why they may not start."""

from __future__ import annotations

import pytest

from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import Owner
from pinning.planning.start_table import Start, StartTable, start_table
from tests.pinning.dra.claiming import ClaimWorld, claim, uid_of
from tests.pinning.nodes import smt_machine

A, B = Owner("a", "c0"), Owner("b", "c0")


def world() -> ClaimWorld:
    """Return a node of cores N, N + 4; the first is reserved."""
    return ClaimWorld(smt_machine(4))


def table_of(node: ClaimWorld) -> StartTable:
    """Return the start table once everything is written."""
    node.run_all()
    return start_table(node.plan(), node.observe())


def test_container_of_a_claim_starts_on_it_with_the_variable() -> None:
    """A container of a claim starts on the claim's CPUs, with the variable that lists them."""
    node = world()
    node.claims(claim("x", 2, 2))
    node.user("a", "x", request="r1")
    table = table_of(node)
    start = table.start(A, claims=False)
    assert start == Start(CPUSet([2, 6]), CPUSet([2, 6]))
    assert isinstance(start, Start)
    assert table.environment(start)[f"DRA_CPUSET_{uid_of('x')}"] == "2,6"


def test_container_of_a_pod_that_is_not_shown_is_known_by_its_cdi_device() -> None:
    """A container whose pod the watch has not shown yet is identified by its CDI device."""
    node = world()
    node.claims(claim("x", 2, 2))
    table = table_of(node)
    device = f"corepin.io/cpu=claim-{uid_of('x')}-r0"
    start = table.start(A, claims=False, cdi_devices=["nvidia.com/gpu=0", device])
    assert start == Start(CPUSet([1, 5]), CPUSet([1, 5]))
    busy = table.start(A, claims=False, cdi_devices=[device], busy=CPUSet([5]))
    assert isinstance(busy, str)
    assert "other containers still run on its CPUs 5" in busy


@pytest.mark.parametrize(
    ("owner", "name", "text"),
    [
        (B, "x", "claim test/x is not known to be reserved for this pod; the kubelet tries again"),
        (A, "y", "holds no CPUs of this node: delete the pod"),
        (A, "planned", "holds no CPUs of this node"),
    ],
)
def test_cdi_device_alone_proves_nothing(owner: Owner, name: str, text: str) -> None:
    """A CDI device counts only if its claim is prepared and reserved for the pod."""
    node = world()
    node.claims(claim("x", 2))
    node.claims(claim("planned", 2), prepared=False)
    reason = table_of(node).start(
        owner, claims=False, cdi_devices=[f"corepin.io/cpu=claim-{uid_of(name)}-r0"]
    )
    assert isinstance(reason, str)
    assert text in reason
