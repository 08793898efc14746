"""Pods that join a claim whose CPUs others use already: the kubelet asks the driver no more, and starts them at once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from pinning.contract import CDI_KIND
from pinning.dra.claims import device_name
from pinning.machine.cpuset import CPUSet
from pinning.planning.claim_grants import DELETE_POD, NO_DRIVER
from pinning.planning.observed import Observed, Owner
from pinning.planning.pod_pools import part_of
from pinning.planning.refusal import Reason
from pinning.planning.start_table import CLAIMS_UNREAD, Start, start_table
from tests.pinning.budgets import budgeted, put
from tests.pinning.dra.claiming import ClaimWorld, claim, uid_of, with_claim
from tests.pinning.nodes import smt_machine
from tests.pinning.world import Wish, reasons

A, B = Owner("a", "c0"), Owner("b", "c0")
DEVICE = f"{CDI_KIND}={device_name(uid_of('x'), 'r0')}"
UNREADABLE = "403: forbidden"


@dataclass
class JoinedWorld(ClaimWorld):
    """A node whose driver may be unable to read claims."""

    problems: dict[tuple[str, str], str] = field(default_factory=dict)

    def observe(self) -> Observed:
        """Return the agent's observation."""
        observed = super().observe()
        seen = observed.claims and replace(observed.claims, problems=dict(self.problems))
        return replace(observed, claims=seen)


def world() -> JoinedWorld:
    """Return a node of cores N, N + 8, whose pod `a` runs on claim `x`."""
    node = JoinedWorld(smt_machine(8))
    node.claims(claim("x", 2))
    node.user("a", "x")
    node.start("a", "c0")
    node.run_all()
    assert node.held("x")
    return node


def without_driver(node: JoinedWorld) -> str:
    """Remove the component `dra`; return the reason."""
    node.drives = False
    return NO_DRIVER


def unreadable(node: JoinedWorld) -> str:
    """Let reads of the claim be refused; return the reason."""
    node.problems = {("test", "x"): UNREADABLE}
    return f"holds CPUs, and is not known to be reserved for this pod: {UNREADABLE}"


def unreserved(node: JoinedWorld) -> str:
    """Leave the claim to its first pod; return the reason."""
    assert node.problems == {}
    return f"holds CPUs, and is not reserved for this pod (status.reservedFor): {DELETE_POD}"


@pytest.mark.parametrize("cause", [without_driver, unreadable, unreserved])
@pytest.mark.parametrize("devices", [(), (DEVICE,)], ids=["runtime without CDI devices", "CDI device"])
def test_joined_container_is_held_back_with_the_reason(cause: object, devices: tuple[str, ...]) -> None:
    """A container that joins a claim is held back, with one reason in runtime and agent; the first keeps its CPUs."""
    node = world()
    assert callable(cause)
    text = f"ClaimNotReserved: claim test/x {cause(node)}"
    node.user("b", "x")
    planned = node.plan()
    table = start_table(planned, node.observe())
    assert table.start(B, claims=True, cdi_devices=devices) == text
    assert {refusal.owner: refusal.text for refusal in planned.refusals} == {B: text}
    assert isinstance(table.start(A, claims=True, cdi_devices=devices), Start)
    assert not planned.actions


def test_claim_that_is_read_again_is_no_refusal() -> None:
    """Reading the claim again takes a moment, so that the container only waits and is not refused."""
    node = world()
    node.user("b", "x")
    node.unread = True
    planned = node.plan()
    assert start_table(planned, node.observe()).start(B, claims=True) == CLAIMS_UNREAD
    assert reasons(planned) == {}


@pytest.mark.parametrize("cause", [without_driver, unreadable, unreserved])
def test_joined_container_gets_no_other_cpus_instead(cause: object) -> None:
    """The container's variable names the CPUs of the claim, so neither a policy nor the pool of its pod gives it other CPUs."""
    node = world()
    assert callable(cause)
    cause(node)
    node.user("b", "x", wish=Wish("2", policy="exclusive", smt="require"))
    put(node, with_claim(budgeted("c", 4, {"solver": None, "log": None}), "solver"))
    planned = node.plan()
    table, solver = start_table(planned, node.observe()), Owner("c", "solver")
    assert planned.ledger.of(B) is None
    assert part_of(planned.ledger, solver) is None
    for owner in (B, solver):
        assert str(table.start(owner, claims=True)).startswith("ClaimNotReserved: claim test/x ")
    assert isinstance(table.start(Owner("c", "log"), claims=True), Start)


def test_container_that_runs_elsewhere_is_refused_and_may_start_again_there() -> None:
    """A running container whose claim is not reserved for its pod is refused, and may restart on its present CPUs."""
    node = JoinedWorld(smt_machine(8))
    node.user("b", "x", wish=Wish("2", policy="exclusive", smt="require"))
    node.start("b", "c0")
    node.run_all()
    own = CPUSet([1, 9])
    node.claims(claim("x", 2, pods=("a",)))
    planned = node.plan()
    (refusal,) = planned.refusals
    assert (refusal.owner, refusal.reason, refusal.blocks_start) == (B, Reason.NOT_RESERVED, False)
    assert start_table(planned, node.observe()).start(B, claims=True) == Start(own, own)


def test_joined_container_starts_once_the_claim_is_reserved_for_it() -> None:
    """The container then runs on the same CPUs as the first pod of the claim, and nothing is refused."""
    node = world()
    unreadable(node)
    node.user("b", "x")
    node.run_all()
    node.problems = {}
    node.claims(claim("x", 2, pods=("a", "b")))
    planned = node.plan()
    own = CPUSet.parse(node.held("x"))
    assert start_table(planned, node.observe()).start(B, claims=True) == Start(own, own)
    assert reasons(planned) == {}


@pytest.mark.parametrize("devices", [(), (DEVICE,)], ids=["runtime without CDI devices", "CDI device"])
def test_joined_container_does_not_start_while_the_claims_cpus_are_offline(devices: tuple[str, ...]) -> None:
    """No container of a claim starts while the claim's CPUs are offline, with or without CDI device names."""
    node = world()
    held = CPUSet.parse(node.held("x"))
    node.topology = node.topology.with_online(node.topology.online - held)
    node.claims(claim("x", 2, pods=("a", "b")))
    node.user("b", "x")
    table = start_table(node.plan(), node.observe())
    for owner in (A, B):
        reason = table.start(owner, claims=True, cdi_devices=devices)
        assert f"CPUs {held} of its claim cannot be used now" in str(reason)


def test_joined_container_of_a_claim_whose_device_is_gone_runs_on_its_cpus() -> None:
    """A granted claim keeps its CPUs when its device is no longer published; an ungranted one is refused by name."""
    node = world()
    node.claims(claim("y", 2, device="cpudevnuma007", pods=("b",)))
    joined = claim("x", 2, pods=("a", "b"), device="cpudevnuma007")  # granted while there was such a device
    node.ledger = node.ledger.grant(replace(node.ledger.claims[joined.uid], claim=joined))
    node.claims(joined)
    node.user("b", "x", "y")
    (refusal,) = node.plan().refusals
    assert "request r0: this node has no device cpudevnuma007: delete the pod" in refusal.message
    node.user("b", "x")
    del node.known[uid_of("y")]
    own = CPUSet.parse(node.held("x"))
    assert start_table(node.plan(), node.observe()).start(B, claims=True) == Start(own, own)
