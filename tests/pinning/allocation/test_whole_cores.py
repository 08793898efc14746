"""CMK's cores: the order in which they are taken, and which stay: cases worked out by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pinning.allocation import take_cores
from pinning.errors import NotEnoughCPUs
from pinning.machine.cpuset import CPUSet
from pinning.machine.topology import CPUFacts, Topology, assemble
from tests.pinning.machines import FLAT

if TYPE_CHECKING:
    from pinning.allocation import Sort

cpus = CPUSet.parse
case = pytest.param
ALL = "0-63"
ADJACENT = assemble(
    [CPUFacts(cpu, cpu // 2, cpu // 8, 0) for cpu in range(16)], cpus("0-15"), cpus("0-3,8-11")
)  # CMK's test machine: two sockets of four cores, pairs 0-1 2-3 ...


@pytest.mark.parametrize(
    ("mode", "prefer_isolated", "free", "count", "taken"),
    [
        case("packed", False, ALL, 4, "0-7", id="cmk-packed"),
        case("spread", False, ALL, 4, "0-3,8-11", id="cmk-spread"),
        case("packed", True, ALL, 3, "0-3,8-9", id="cmk-packed-isolated"),
        case("spread", True, ALL, 3, "0-3,8-9", id="cmk-spread-isolated"),
        case("spread", True, ALL, 2, "0-1,8-9", id="cmk-spread-two"),
        case("packed", True, ALL, 6, "0-7,8-11", id="others-after-isolated-packed"),
        case("spread", True, ALL, 6, "0-5,8-13", id="others-after-isolated-spread"),
        case("packed", False, "1-15", 1, "2-3", id="a-used-core-is-no-whole-core"),
        case("spread", False, "4-7", 2, "4-7", id="spread-over-what-is-left"),
        case("packed", True, ALL, 0, "", id="none"),
    ],
)
def test_cores_as_cmk_orders_them(
    mode: Sort, prefer_isolated: bool, free: str, count: int, taken: str
) -> None:
    """Packed takes cores by socket and number, spread from the sockets in turns, both with isolated cores first."""
    free_cpus = cpus(free) & ADJACENT.cpus
    found = take_cores(ADJACENT, free_cpus, count, mode=mode, prefer_isolated=prefer_isolated)
    assert found == cpus(taken)


@pytest.mark.parametrize(
    ("online", "free", "count", "taken"),
    [
        case(ALL, "4-15", 1, "0-1", id="nothing-changed"),
        case("1-15", "4-15", 1, "1", id="kept-while-a-sibling-is-online"),
        case("2-15", "4-15", 1, "4-5", id="lost-core-replaced-on-its-socket"),
        case("2-15", "12-15", 1, "12-13", id="lost-core-replaced-anywhere"),
        case(ALL, "4-15", 2, "0-1,8-9", id="one-more-from-the-socket-whose-turn-it-is"),
    ],
)
def test_cores_of_a_claim_stay(online: str, free: str, count: int, taken: str) -> None:
    """A claim keeps its cores, replaces lost ones nearby, and grows in the order of its mode."""
    plain = Topology(ADJACENT.cores, cpus(online) & ADJACENT.cpus)
    assert take_cores(plain, cpus(free), count, mode="spread", keep=cpus("0-1")) == cpus(taken)


def test_a_lost_core_is_replaced_near_itself() -> None:
    """Of a claim on two sockets the core of the second socket is replaced on the second socket."""
    plain = Topology(ADJACENT.cores, ADJACENT.cpus - cpus("8-9"))
    assert take_cores(plain, cpus("2-7,10-15"), 2, keep=cpus("0-1,8-9")) == cpus("0-1,10-11")


def test_too_few_cores_say_why() -> None:
    """The refusal has the number of whole cores, and of those that miss a sibling."""
    with pytest.raises(NotEnoughCPUs) as refused:
        take_cores(FLAT, cpus("0-4"), 2)
    assert str(refused.value) == (
        "wanted 2 whole cores, 1 are wholly free (3 more have a free CPU, but also a busy one):"
        " ask for at most 1"
    )
    with pytest.raises(NotEnoughCPUs, match=r"0 are wholly free$"):
        take_cores(FLAT, cpus(""), 1)
