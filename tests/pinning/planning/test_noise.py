"""Containers under `quiet` on the shared set, and interrupts that stay on quiet CPUs by globs or by devices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.interrupts import Stay
from pinning.machine.near import Device
from pinning.planning import noise
from pinning.planning.ledger_json import ledger_from_dict, ledger_to_dict
from pinning.planning.noise import Keep, keeps_of, match_globs, note_of, quiet_sharers, stays_of
from pinning.planning.observed import Owner
from pinning.pods.irq_policy import IrqPolicy, irq_flaw
from tests.agent.states import EXCLUSIVE, bound, owner, state_of
from tests.pinning.budgets import EXCLUSIVE as BUDGET
from tests.pinning.budgets import budgeted, updated
from tests.pinning.nodes import SNC
from tests.pinning.world import Wish, World
from tests.pods import container
from tests.tables import table

NAMES = {
    "24": "eth1",
    "25": "eth1-rx-0",
    "26": "eth1-rx-1",
    "27": "eth0-rx-0",
    "28": "",
    "29": "acpi PCIe PME",
}
ADDRESSES = {"0000:41:00.0": ("25", "26"), "0000:42:00.0": ()}
NIC = Device("vendor/nic", CPUSet([0]), "0000:41:00.0")
SILENT = Device("vendor/gpu", EMPTY, "0000:42:00.0")
NOWHERE = Device("vendor/fpga", EMPTY)
A, B = Owner("a", "c0"), Owner("b", "c0")


def keep(
    cpus: str, *globs: str, owner: Owner = A, devices: tuple[Device, ...] = (), without: str = ""
) -> Keep:
    """Return the interrupts that stay on these CPUs."""
    return Keep(owner, CPUSet.parse(cpus), globs, devices, without)


def may(cpus: str, home: str = "") -> Stay:
    """Return the CPUs on which an interrupt may fire."""
    return Stay(CPUSet.parse(cpus), CPUSet.parse(home))


@table(
    "keeps, stays",
    {
        "nothing": ([], {}),
        "no globs": ([keep("4-5")], {}),
        "a name": ([keep("4-5", "eth1")], {"24": may("4-5")}),
        "a glob": ([keep("4-5", "eth1-*")], {"25": may("4-5"), "26": may("4-5")}),
        "one of several names": ([keep("4-5", "PME")], {"29": may("4-5")}),
        "all names of one": ([keep("4-5", "acpi PCIe*")], {"29": may("4-5")}),
        "no name is none": ([keep("4-5", "*x", "?")], {}),
        "its devices": (
            [keep("4-5", devices=(NIC, SILENT, NOWHERE))],
            {"25": may("4-5", "4-5"), "26": may("4-5", "4-5")},
        ),
        "a glob does not undo that": (
            [keep("4-5", "eth1*", devices=(NIC,))],
            {"24": may("4-5"), "25": may("4-5", "4-5"), "26": may("4-5", "4-5")},
        ),
        "two containers": (
            [keep("4-5", "eth1-rx-0"), keep("6", "eth1-rx-[01]", owner=B)],
            {"25": may("4-6"), "26": may("6")},
        ),
        "a shared device": (
            [keep("4-5", devices=(NIC,)), keep("6", devices=(NIC,), owner=B)],
            {"25": may("4-6", "4-6"), "26": may("4-6", "4-6")},
        ),
    },
)
def test_interrupts_stay_on_the_cpus_of_containers_that_name_them(
    keeps: list[Keep], stays: dict[str, Stay]
) -> None:
    """An interrupt that a container's glob matches stays on its CPUs, and interrupts of its devices are moved there."""
    assert stays_of(keeps, match_globs(keeps, NAMES), ADDRESSES) == stays


@table(
    "held, note",
    {
        "all stay": (keep("4", "eth1*", devices=(NIC,)), ""),
        "no address": (
            keep("4", devices=(NOWHERE, NIC)),
            "interrupts of devices of vendor/fpga do not stay on its CPUs: their PCI addresses are not known",
        ),
        "no interrupts": (
            keep("4", devices=(SILENT,)),
            "interrupts of devices of vendor/gpu do not stay on its CPUs: the kernel shows no MSI interrupts of them",
        ),
        "not known": (
            keep("4", without="it has none"),
            "no interrupt of its devices stays on its CPUs: it has none",
        ),
        "no such name": (keep("4", "eth1", "eth7", "eth8-*"), "no interrupt has a name like eth7, eth8-*"),
        "both": (
            keep("4", "eth7", devices=(NOWHERE,)),
            "interrupts of devices of vendor/fpga do not stay on its CPUs: their PCI addresses are not known;"
            " no interrupt has a name like eth7",
        ),
    },
)
def test_what_has_no_interrupt_is_said(held: Keep, note: str) -> None:
    """The note about missing interrupts contains no PCI address and no interrupt of another container."""
    assert note_of(held, match_globs([held], NAMES), ADDRESSES) == note


def test_a_glob_of_many_containers_is_compared_once() -> None:
    """A glob that several containers have is compared once, which with 110 containers saves 1 ms for 4,000 interrupts."""
    keeps = [keep(str(cpu), "*-rx-*", "eth7*", owner=Owner(str(cpu), "c0")) for cpu in range(110)]
    before = noise._pattern.cache_info()
    matches = match_globs(keeps, NAMES)
    after = noise._pattern.cache_info()

    assert (after.hits + after.misses) - (before.hits + before.misses) == 2
    assert matches.of(["*-rx-*", "eth7*"]) == {"25", "26", "27"}
    assert matches.of(["eth7*"]) == matches.of([]) == set()


@given(
    st.text(alphabet=st.sampled_from([*"ab*?[]!-"]), min_size=1, max_size=96),
    st.text(alphabet="ab-", max_size=90),
)
def test_any_admitted_glob_can_be_compared(glob: str, name: str) -> None:
    """The agent can compare any glob that the webhook admits."""
    assert irq_flaw(glob) == ""
    held = keep("4", *IrqPolicy(glob).names)
    found = stays_of([held], match_globs([held], {"25": name}), {})
    assert found in ({}, {"25": may("4")})


def node_with(**wish: Any) -> World:
    """Return a node with one exclusive container."""
    node = World(SNC)
    node.create("a", [Wish("2", policy="exclusive", **wish)])
    return node


@table(
    "irq, known, found",
    {
        "no policy": (None, (NIC,), None),
        "away": ("away", (NIC,), None),
        "globs": ("eth0,eth1", (NIC,), (("eth0", "eth1"), (), "")),
        "devices": ("devices,eth1", (NIC,), (("eth1",), (NIC,), "")),
        "no devices": ("devices", (), ((), (), "it has none")),
        "devices that are not known": (
            "devices",
            None,
            ((), (), "they are not known: the kubelet has not named its devices yet"),
        ),
    },
)
def test_policies_are_read_from_the_ledger(
    irq: str | None, known: tuple[Device, ...] | None, found: Any
) -> None:
    """The plan takes interrupt policies from the ledger, and a container's devices from the agent's list."""
    node = node_with(noise="quiet", irq=irq)
    (held,) = node.ledger
    observed = node.observe()
    named = replace(observed.pods[0], device_kinds={"c0": 1})
    observed = replace(observed, pods=(named,), devices={} if known is None else {held.owner: known})
    keeps = keeps_of(node.ledger, observed)
    wanted = None if found is None else Keep(held.owner, held.cpus, *found)
    assert keeps.get(held.owner) == wanted
    assert len(keeps) == (found is not None)


def test_a_pool_keeps_the_interrupts_of_its_own_containers_alone() -> None:
    """Interrupts stay on a pool for devices of its own containers, and not for devices of a container with a slice."""
    node, words = World(SNC), {"noise-policy.corepin.io/pod": "quiet", "irq-policy.corepin.io/pod": "devices"}
    pod = budgeted("a", 4, {"main": 2, "log": None}, annotations={**BUDGET, **words})
    for member in pod["spec"]["containers"]:
        member.setdefault("resources", {}).setdefault("limits", {})["vendor/nic"] = "1"
    updated(node, pod)
    observed = node.observe()
    main, log = Owner("a", "main"), Owner("a", "log")
    pool = node.ledger.pools["a"]
    keeps = keeps_of(node.ledger.parts, replace(observed, devices={main: (NIC,), log: (SILENT,)}))
    assert {owner: its.devices for owner, its in keeps.items()} == {main: (NIC,), pool.owner: (SILENT,)}
    keeps = keeps_of(node.ledger.parts, replace(observed, devices={main: (NIC,)}))
    assert keeps[pool.owner].without == "they are not known: the kubelet has not named its devices yet"


def test_a_pool_keeps_the_interrupts_of_the_devices_of_those_that_ask_for_it() -> None:
    """Interrupts stay on a pool only for devices of containers that request it, also after the checkpoint was loaded."""
    words = {"noise-policy.corepin.io/pod": "quiet", "irq-policy.corepin.io/container.log": "devices"}
    node = World(SNC)
    pod = budgeted("a", 4, {"main": 2, "log": None, "web": None}, annotations={**BUDGET, **words})
    for member in pod["spec"]["containers"]:
        member.setdefault("resources", {}).setdefault("limits", {})["vendor/nic"] = "1"
    updated(node, pod)
    log, web = Owner("a", "log"), Owner("a", "web")
    observed = replace(node.observe(), devices={log: (SILENT,), web: (NIC,)})
    for ledger in (node.ledger, ledger_from_dict(ledger_to_dict(node.ledger))):
        (keep,) = keeps_of(ledger.parts, observed).values()
        assert (keep.owner.container, keep.devices, keep.without) == ("", (SILENT,), "")
    (keep,) = keeps_of(node.ledger.parts, replace(observed, devices={log: (SILENT,)})).values()
    assert keep.devices == (SILENT,)  # the devices of other containers need not be known


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ({"noise-policy.corepin.io/pod": "quiet", "shared-cpus.corepin.io/pod": "true"}, True),
        ({"noise-policy.corepin.io/pod": "none", "shared-cpus.corepin.io/pod": "true"}, False),
        ({"noise-policy.corepin.io/pod": "quiet"}, False),
        ({"irq-load-balancing.crio.io": "disable", "shared-cpus.corepin.io/pod": "true"}, False),
    ],
)
def test_both_annotations_are_needed(words: dict[str, str], found: bool) -> None:
    """A container is quiet on the shared set only with both annotations; CRI-O's annotation affects only interrupts."""
    pod = bound("web", container("main", 2), annotations={**EXCLUSIVE, **words})
    assert quiet_sharers(state_of(pod).ledger.parts) == ({owner(pod)} if found else frozenset())
