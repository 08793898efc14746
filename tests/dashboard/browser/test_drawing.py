"""The drawn machine equals the node's annotations, also after changes."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect

from pinning.contract import STATUS_POOLS
from pinning.machine.cpuset import CPUSet
from pinning.machine.topology import Topology
from tests.dashboard.browser.seen import Seen
from tests.dashboard.documents import Document, container, grid, node, owner, pod, pools
from tests.machines import captured

pytestmark = pytest.mark.server

SMALL = grid(2, 1, 1, 4)  # cores 0-7, siblings 8-15


def expected(document: Document) -> dict[int, tuple[str, str]]:
    """Return use and owner of every CPU, read from the annotation without the page's code."""
    sets = json.loads(document["metadata"]["annotations"][STATUS_POOLS])
    found: dict[int, tuple[str, str]] = dict.fromkeys(CPUSet.parse(sets["shared"]), ("shared", ""))
    found |= dict.fromkeys(CPUSet.parse(sets["setAside"]), ("pool", ""))
    found |= dict.fromkeys(CPUSet.parse(sets["reserved"]), ("reserved", ""))
    for name, it in sets["owners"].items():
        found |= dict.fromkeys(CPUSet.parse(it.get("idle", "")), ("idle", name))
        found |= dict.fromkeys(CPUSet.parse(it["cpus"]), (it["policy"], name))
    return found


def busy(name: str, topology: Topology, cores: int) -> dict[str, Document]:
    """Return owners of all kinds on a machine's cores, and leave some cores free."""
    owners = {}
    for number, core in enumerate(topology.cores[1:cores:2]):
        first, *others = core.cpus
        kind = number % 3
        if kind == 0:
            owners[f"team/{name}-job-{number}/main"] = owner(str(core.cpus), smt="require")
        elif kind == 1:
            owners[f"team/{name}-job-{number}/main"] = owner(
                str(first), smt="isolate", idle=str(CPUSet(others))
            )
        else:
            owners[f"vms/{name}-all-{number}/main"] = owner(str(core.cpus), policy="share")
    return owners


def pods_of(document: Document) -> list[Document]:
    """Return the pods of a node's owners, each with a status without problems."""
    owners = json.loads(document["metadata"]["annotations"][STATUS_POOLS])["owners"]
    found = []
    for name, it in owners.items():
        namespace, about, main = name.split("/")
        said = container(it["cpus"], it["smtPolicy"], it.get("idle", "")) | {"policy": it["policy"]}
        found.append(pod(about, {main: said}, namespace))
    return found


@pytest.mark.parametrize(
    ("name", "topology"),
    [
        ("small", SMALL),
        ("hybrid", captured("core-i7-12700h")),
        ("smt4", captured("power9-ac922")),
        ("cpus-512", grid(2, 4, 4, 8)),
    ],
)
def test_every_cpu_is_drawn_as_its_annotation_says(seen: Seen, name: str, topology: Topology) -> None:
    """Each CPU of machines of many shapes, up to 512 CPUs, is drawn once with the annotation's use and owner."""
    last = topology.cores[-1].cpus
    document = node(f"drawn-{name}", topology, pools(topology, busy(name, topology, 120), setAside=str(last)))
    seen.dashboard.apply(document, *pods_of(document))
    seen.open(f"/nodes/drawn-{name}")
    seen.page.wait_for_selector(".cpu")
    assert {cpu: (use, owner) for cpu, (use, owner, _) in seen.cells().items()} == expected(document)
    signs = {sign for use, _, sign in seen.cells().values() if use == "reserved"}
    assert all(set(sign) == {"#"} for sign in signs)
    seen.picture(f"node-{name}-light")
    seen.page.emulate_media(color_scheme="dark")
    seen.picture(f"node-{name}-dark")


def test_a_change_appears_by_itself(seen: Seen) -> None:
    """CPUs that change their owner are redrawn while the page is open, and the change is in the history."""
    before, after = (
        node("live", SMALL, pools(SMALL, {f"team/{name}/main": owner("1,9")})) for name in ("old", "new")
    )
    seen.dashboard.apply(before)
    seen.open("/nodes/live")
    seen.wait_for_cell(1, "team/old/main")
    seen.dashboard.apply(after)
    seen.wait_for_cell(1, "team/new/main")
    expect(seen.page.locator(".history")).to_contain_text("team/new/main got CPUs 1,9 (exclusive)")
    expect(seen.page.locator(".history")).to_contain_text("team/old/main gave back CPUs 1,9")


def test_a_new_node_appears_by_itself(seen: Seen) -> None:
    """A new node appears in the list without a reload, and disappears when it is deleted."""
    document = node("comes", SMALL)
    seen.open("/")
    seen.dashboard.apply(document)
    row = seen.page.locator('tr[data-node="comes"]')
    expect(row).to_contain_text("as promised")
    seen.dashboard.remove(document)
    expect(row).to_have_count(0)


def test_details_follow_the_pointer(seen: Seen) -> None:
    """The details show pod, container, policy, time and proof of the CPU under the pointer; its owner stands out."""
    seen.dashboard.apply(
        node("hovered", SMALL, pools(SMALL, {"team/web/main": owner("1,9", smt="require")})),
        pod("web", {"main": container("1,9", "require")}, "team"),
    )
    seen.dashboard.until_shown("team/web")
    seen.open("/nodes/hovered")
    seen.cell(9).hover()
    facts = seen.facts()
    assert facts.pop("Since").startswith("2026-11-22 10:00:00 UTC")
    assert facts == {
        "Pod": "team/web",
        "Container": "main",
        "Policy": "exclusive, smt require, numa packed",
        "CPUs": "1,9",
        "NUMA nodes": "0",
        "Proof": "the kernel keeps it on 1,9; set when it was created (NRI), before its first instruction",
    }
    assert seen.page.locator(".cpu.same").evaluate_all("all => all.map(it => it.dataset.cpu)") == ["1", "9"]
    seen.picture("node-details")


def test_threads_of_a_machine_are_drawn(seen: Seen) -> None:
    """The cells and the pod's page show which vCPU, emulator or I/O thread runs on each CPU."""
    vm = {
        "kind": "kubevirt",
        "vcpus": ["1", "9", "2"],
        "oneToOne": True,
        "emulator": "10",
        "iothreads": ["10"],
    }
    seen.dashboard.apply(
        node("with-vm", SMALL, pools(SMALL, {"vms/launcher/compute": owner("1-2,9-10")})),
        pod("launcher", {"compute": container("1-2,9-10")}, "vms", vm=vm),
    )
    seen.open("/pods/vms/launcher")
    seen.page.wait_for_selector('.cpu[data-role="v0"]')
    roles = seen.page.locator(".cpu[data-role]").evaluate_all(
        "all => Object.fromEntries(all.filter(it => it.dataset.role).map(it => [it.dataset.cpu, it.dataset.role]))"
    )
    assert roles == {"1": "v0", "9": "v1", "2": "v2", "10": "em"}
    expect(seen.page.locator("main")).to_contain_text("I/O thread 0")
    seen.picture("pod-vm")
