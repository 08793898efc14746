"""The page of a node, computed from its annotations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dashboard.model.cluster import Cluster
from dashboard.view.filters import Filter
from dashboard.view.node import MOST_WAITING, node_page
from dashboard.view.shapes import Cell, Fact, NodePage
from pinning.machine.topology import Topology
from tests.dashboard.clusters import cluster
from tests.dashboard.documents import container, event, grid, node, owner, pod, pools, refused
from tests.machines import captured

MACHINE = grid(2, 2, 2, 2)  # cores 0-15, siblings 16-31


def shown(known: Cluster, name: str = "n", wanted: Filter | None = None) -> NodePage:
    """Return the page of an existing node."""
    page = node_page(known, name, wanted or Filter())
    assert page is not None
    return page


def cells(page: NodePage) -> Iterator[Cell]:
    """Yield every cell."""
    for socket in page.sockets:
        for numa_node in socket.numa_nodes:
            for cache in numa_node.caches:
                for core in cache.cores:
                    yield from core


@pytest.mark.parametrize(
    "topology",
    [
        MACHINE,
        grid(2, 4, 4, 8),
        captured("core-i7-12700h"),
        captured("power9-ac922"),
        captured("xeon-d-1541-offline"),
    ],
    ids=["grid", "512", "hybrid", "smt4", "offline"],
)
def test_every_cpu_is_drawn_once(topology: Topology) -> None:
    """Every CPU of any machine is drawn once, in its socket, NUMA node, cache and core."""
    page = shown(cluster(node("n", topology)))
    drawn = [cell.cpu for cell in cells(page)]
    assert sorted(drawn) == list(topology.cpus)
    places = {
        (socket.title, numa_node.title): [
            cell.cpu for cache in numa_node.caches for core in cache.cores for cell in core
        ]
        for socket in page.sockets
        for numa_node in socket.numa_nodes
    }
    for (socket, numa_node), cpus in places.items():
        of_socket = topology.packages[int(socket.removeprefix("Socket "))]
        of_node = topology.numa_nodes[int(numa_node.removeprefix("NUMA node "))]
        assert sorted(cpus) == list(of_socket & of_node)
    cores = [
        core
        for socket in page.sockets
        for it in socket.numa_nodes
        for cache in it.caches
        for core in cache.cores
    ]
    assert sorted(tuple(cell.cpu for cell in core) for core in cores) == sorted(
        tuple(core.cpus) for core in topology.cores
    )


def test_cells_say_whose_they_are() -> None:
    """A cell has the sign of `corepin map`, and a label in words for screen readers."""
    owners = {
        "default/web/main": owner("1,17"),
        "team/db/main": owner("2", smt="isolate", idle="18"),
        "team/all/main": owner("3,19", policy="share"),
    }
    sets = pools(MACHINE, owners, setAside="15,31")
    by_cpu = {cell.cpu: cell for cell in cells(shown(cluster(node("n", MACHINE, sets))))}
    assert [(by_cpu[cpu].sign, by_cpu[cpu].use) for cpu in (0, 1, 2, 18, 3, 4, 15)] == [
        ("#", "reserved"),
        ("A", "exclusive"),
        ("C", "exclusive"),
        ("c", "idle"),
        ("B", "share"),
        (".", "shared"),
        ("=", "pool"),
    ]
    assert by_cpu[18].text == "CPU 18 (thread 1 of core 2): idle sibling of team/db/main"
    assert by_cpu[17].text == "CPU 17 (thread 1 of core 1): default/web/main, exclusive"
    assert by_cpu[19].text == "CPU 19 (thread 1 of core 3): team/all/main (share)"
    assert (by_cpu[1].owner, by_cpu[18].owner, by_cpu[4].owner) == (0, 2, -1)


def test_numa_nodes_bear_the_devices_of_their_owners() -> None:
    """Each owner says what its devices are and whether its CPUs are beside them."""
    gpu = {"resource": "nvidia.com/gpu", "count": 2, "nodes": [1], "near": True}
    sets = pools(MACHINE, {"default/web/main": owner("4-5"), "default/web/other": owner("6")})
    web = pod("web", {"main": container("4-5", devices=[gpu])})
    page = shown(cluster(node("n", MACHINE, sets), web))
    assert [it.title for it in page.sockets[0].numa_nodes] == [
        "NUMA node 0",
        "NUMA node 1, devices nvidia.com/gpu",
    ]
    assert [it.title for it in page.sockets[1].numa_nodes] == ["NUMA node 2", "NUMA node 3"]
    assert Fact("Devices", "beside 2 nvidia.com/gpu on NUMA node 1") in page.owners[0].facts
    assert not any(fact.term == "Devices" for fact in page.owners[1].facts)


def test_free_cpus_beside_devices_are_shown() -> None:
    """If the agent counts free CPUs near devices, they are shown with the number that schedulers use."""
    near = {"near.corepin.io/nvidia.com.gpu": {"free": 6, "published": 40}}
    sets = pools(MACHINE, nearCPUs=near, moreNearCPUs=2)
    wanted = (
        "Free beside the next device: 6 of 40 CPUs (near.corepin.io/nvidia.com.gpu) and of 2 more resources"
    )
    assert shown(cluster(node("n", MACHINE, sets))).near == wanted
    assert shown(cluster(node("n", MACHINE))).near == shown(cluster(node("n"))).near == ""


def test_noise_stands_beside_the_cpus() -> None:
    """The page shows which noise is above the operator's limit and since when, also a kind that only a later agent knows."""
    for kind, words in (("softirqs", "softirqs"), ("cosmicRays", "cosmicRays")):
        main = container("1,17", noise={"kind": kind, "since": "2026-11-22T10:00:00Z"})
        owners = {"default/web/main": owner("1,17")}
        page = shown(cluster(node("n", MACHINE, pools(MACHINE, owners)), pod("web", {"main": main})))
        (noise,) = (fact.text for fact in page.owners[0].facts if fact.term == "Noise")
        assert noise == f"{words} above the operator's limit since 2026-11-22T10:00:00Z"


def test_legend_has_every_owner_and_every_sign() -> None:
    """The legend has each owner's CPUs, policy, and time and state of its proof, and each sign."""
    owners = {"default/web/main": owner("1,17", smt="require")}
    page = shown(
        cluster(
            node("n", MACHINE, pools(MACHINE, owners)), pod("web", {"main": container("1,17", "require")})
        )
    )
    (web,) = page.owners
    facts = {fact.term: fact.text for fact in web.facts}
    assert (web.label, web.cpus, web.health) == ("A", "1,17", "ok")
    assert facts["Policy"] == "exclusive, smt require, numa packed"
    assert facts["Since"] == "2026-11-22T10:00:00Z"
    assert (
        facts["Proof"]
        == "the kernel keeps it on 1,17; set when it was created (NRI), before its first instruction"
    )
    assert [(sign.use, sign.count, sign.cpus) for sign in page.signs] == [
        ("reserved", 2, "0,16"),
        ("shared", 30, "0,2-16,18-31"),
    ]


def test_threads_of_machines_are_where_they_run() -> None:
    """Numbers of vCPUs, emulator, I/O threads and vhost are shown on the CPUs on which they run."""
    vm = {
        "kind": "kubevirt",
        "vcpus": ["1", "17", "2"],
        "oneToOne": True,
        "emulator": "18",
        "iothreads": ["18"],
        "vhost": "18,5",
    }
    owners = {"vms/a/compute": owner("1-2,17-18")}
    documents = (
        node("n", MACHINE, pools(MACHINE, owners)),
        pod("a", {"compute": container("1-2,17-18")}, "vms", vm=vm),
    )
    roles = {cell.cpu: (cell.role, cell.text) for cell in cells(shown(cluster(*documents))) if cell.role}
    assert {cpu: sign for cpu, (sign, _) in roles.items()} == {1: "v0", 17: "v1", 2: "v2", 18: "em"}
    assert roles[18][1].endswith("exclusive, emulator, I/O thread 0, vhost")
    assert roles[17][1].endswith("exclusive, vCPU 1")


def test_many_vcpus_on_few_cpus_are_counted() -> None:
    """If several vCPUs share a CPU, its cell shows `v` without a number, and its text names three of them and counts the others."""
    vm = {"kind": "kata", "vcpus": ["1-2"] * 6, "oneToOne": False, "emulator": "nonsense"}
    owners = {"vms/a/main": owner("1-2")}
    known = cluster(
        node("n", MACHINE, pools(MACHINE, owners)), pod("a", {"main": container("1-2")}, "vms", vm=vm)
    )
    (first, *_) = [cell for cell in cells(shown(known)) if cell.role]
    assert first.role == "v"
    assert first.text.endswith("vCPU 0, vCPU 1, vCPU 2, 3 more")


def test_filter_dims_everything_else() -> None:
    """A filter dims other cells and other owners in the legend, and hides other waiting containers."""
    owners = {"default/web/main": owner("1"), "team/db/main": owner("2")}
    known = cluster(
        node("n", MACHINE, pools(MACHINE, owners)),
        pod("big", {"main": refused()}),
        event("big", "Unpinnable", "text", on="n"),
    )
    page = shown(known, wanted=Filter(namespace="team"))
    assert [(it.name, it.dim) for it in page.owners] == [("default/web/main", True), ("team/db/main", False)]
    assert [cell.cpu for cell in cells(page) if not cell.dim] == [2]
    assert page.waiting == ()
    everything = shown(known)
    assert not any(cell.dim for cell in cells(everything))
    assert [(it.pod, it.container, it.reason) for it in everything.waiting] == [
        ("big", "main", "NotEnoughCPUs")
    ]


def test_waiting_claims_are_listed_up_to_a_limit() -> None:
    """The list of waiting claims has a limit, so that the page stays small."""
    names = [f"big{number}" for number in range(MOST_WAITING // 10 + 1)]
    many = [pod(name, {f"c{number}": refused("text") for number in range(10)}) for name in names]
    told = [event(name, "Unpinnable", "text", on="n") for name in names]
    page = shown(cluster(node("n", MACHINE), *many, *told))
    assert len(page.waiting) == MOST_WAITING
    assert page.notes == (f"{len(names)} pods waiting for CPUs",)


def test_node_without_an_agent_has_no_machine() -> None:
    """A node without an agent is shown without a machine, and an unknown node has no page."""
    known = cluster(node("n"))
    page = shown(known)
    assert (page.sockets, page.owners, page.machine, page.health) == ((), (), "", "silent")
    assert node_page(known, "other", Filter()) is None


def test_node_has_its_own_history() -> None:
    """The history of a node has its agent's events, newest first."""
    known = cluster(
        node("n"),
        event("a", "Pinned", "one", on="n"),
        event("b", "Pinned", "two", on="n"),
        event("c", "Pinned", "x"),
    )
    assert [entry.text for entry in shown(known).history] == ["two", "one"]
