"""The page of a pod, with the reasons for its CPUs or its wait, and the list of pods."""

from __future__ import annotations

import pytest

from dashboard.model.cluster import Cluster
from dashboard.view import pods
from dashboard.view.filters import Filter
from dashboard.view.pods import NOTHING_SAID, pod_page
from dashboard.view.shapes import PodPage
from pinning.contract import STATUS_CPUS
from tests.dashboard.clusters import cluster
from tests.dashboard.documents import Document, container, event, grid, node, owner, pod, pools, refused

MACHINE = grid(1, 1, 1, 4)
WEB = {"default/web/main": owner("1,5", smt="require")}
HOME = node("n", MACHINE, pools(MACHINE, WEB))


def shown(known: Cluster, name: str = "web") -> PodPage:
    """Return the page of an existing pod."""
    page = pod_page(known, "default", name)
    assert page is not None
    return page


def why(said: Document) -> str:
    """Return the text of a pod's page about a container's CPUs or wait."""
    (card,) = shown(cluster(HOME, pod("web", {"main": said}))).containers
    return card.why


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            container("1,5", "require"),
            "CPUs of its own, cores of its own, on the fewest NUMA nodes. That gave it CPUs 1,5.",
        ),
        (
            container("1", "isolate", "5") | {"numaPolicy": "single"},
            "CPUs of its own, one thread of each core, the siblings idle, on one NUMA node. That gave it CPUs 1.",
        ),
        (
            container("1") | {"policy": "share", "numaPolicy": ""},
            "CPUs that other containers may use too, on the fewest NUMA nodes. That gave it CPUs 1.",
        ),
        (container("1") | {"policy": "newer", "numaPolicy": "newer"}, "Newer, newer. That gave it CPUs 1."),
        (
            refused("wanted 4 cores, found 3: free one"),
            "Waits (NotEnoughCPUs): Wanted 4 cores, found 3: free one.",
        ),
        (
            container("1") | refused("wanted 9 cores."),
            "Waits (NotEnoughCPUs): Wanted 9 cores. It keeps CPUs 1.",
        ),
        ({"pinned": False}, "Has no CPUs of its own."),
    ],
)
def test_pod_says_why(said: Document, words: str) -> None:
    """The text names each policy in the words of `corepin plan`, or the refusal with its remedy."""
    assert why(said) == words


@pytest.mark.parametrize(
    ("change", "proof", "health"),
    [
        ({}, "the kernel keeps it on 1,5; set when it was created (NRI), before its first instruction", "ok"),
        (
            {"applied": {"cpus": "1,5", "path": "cgroup", "windowSeconds": 0.25}},
            "the kernel keeps it on 1,5; written to its cgroup, at most 0.25 s after its start",
            "ok",
        ),
        (
            {"applied": {"cpus": "1,5", "path": "found"}},
            "the kernel keeps it on 1,5; already set when the agent found it",
            "ok",
        ),
        ({"applied": {"cpus": "1,5"}}, "the kernel keeps it on 1,5; path unknown", "ok"),
        (
            {"pinned": False, "applied": None},
            "not proven yet, the agent has not seen it on its CPUs",
            "pending",
        ),
        (
            {"pinned": False, "drift": True, "intruders": ["a/b/c"]},
            "some of its tasks may run outside of its CPUs; a/b/c may run on its CPUs",
            "trouble",
        ),
        ({"notProven": "too many cgroups"}, "not proven, too many cgroups", "pending"),
    ],
)
def test_pod_says_how_far_it_is_proven(change: Document, proof: str, health: str) -> None:
    """The page shows the CPUs read back from the kernel, how they were set, and what contradicts them."""
    (card,) = shown(cluster(HOME, pod("web", {"main": container("1,5", "require") | change}))).containers
    assert {fact.term: fact.text for fact in card.facts}["Proof"] == proof
    assert card.health == health


def test_claims_of_a_container_are_shown() -> None:
    """Claims are shown by name; a container whose CPUs come from no claim has none."""
    said = container("1,5", "require") | {"origin": "dra", "claims": ["web-cpu", "web-more"]}
    (card,) = shown(cluster(HOME, pod("web", {"main": said}))).containers
    assert {fact.term: fact.text for fact in card.facts}["Claims"] == "web-cpu, web-more"
    (card,) = shown(cluster(HOME, pod("web", {"main": container("1,5")}))).containers
    assert "Claims" not in {fact.term for fact in card.facts}


def test_cores_that_the_scheduler_does_not_count_are_shown() -> None:
    """The pod's page shows why cores are not counted, even before the node names the owner."""
    said = container("1,5", "isolate") | {"uncounted": "it requests 0 corepin.io/isolated-cores"}
    for home in (HOME, node("n", MACHINE, pools(MACHINE))):
        (card,) = shown(cluster(home, pod("web", {"main": said}))).containers
        assert {fact.term: fact.text for fact in card.facts}["Not counted"] == said["uncounted"]
        assert card.health == "trouble"
    (card,) = shown(cluster(HOME, pod("web", {"main": container("1,5")}))).containers
    assert "Not counted" not in {fact.term for fact in card.facts}


def test_pod_that_waits_says_what_would_be_free() -> None:
    """A waiting pod shows the node that refused it, known from its event, and that node's free CPUs."""
    known = cluster(HOME, pod("big", {"main": refused()}), event("big", "Unpinnable", "text", on="n"))
    page = shown(known, "big")
    assert (page.node, page.drawing) == ("n", None)
    assert page.notes == ("Node n has 4 CPUs that can still be assigned: 2-3,6-7.",)
    assert page.containers[0].health == "waiting"
    full = node("n", MACHINE, pools(MACHINE) | {"free": ""})
    known = cluster(full, pod("big", {"main": refused()}), event("big", "Unpinnable", "text", on="n"))
    assert shown(known, "big").notes == ("Node n has 0 CPUs that can still be assigned.",)


def test_pod_whose_words_cannot_be_read_says_so() -> None:
    """The page shows the refusal of a whole pod, or that its annotations cannot be read, above the containers."""
    text = '{"containers": {}, "refusal": {"reason": "BadPolicy", "message": "no such word"}}'
    assert shown(cluster(pod("web", annotations={STATUS_CPUS: text}))).notes == (
        "Waits (BadPolicy): no such word",
    )
    assert shown(cluster(pod("web", annotations={STATUS_CPUS: "{"}))).notes == (
        "The annotations are damaged, or were written by another version of corepin.",
    )


def test_pod_of_which_nothing_is_said_yet() -> None:
    """A pod without a status is shown as waiting for the agent, or with its CPUs from the node's annotation."""
    asking = shown(cluster(pod("web", annotations={"qos.gocrane.io/cpu-manager": "exclusive"})))
    assert (asking.notes, asking.node) == ((NOTHING_SAID,), "")
    assert [(fact.term, fact.text) for fact in asking.asks] == [("qos.gocrane.io/cpu-manager", "exclusive")]
    held = shown(cluster(HOME))
    assert held.notes == ("The pod has no status annotation yet.",)
    (card,) = held.containers
    assert (card.health, card.why) == (
        "pending",
        "Holds CPUs; the status of its pod does not show yet which policies chose them.",
    )
    assert {fact.term: fact.text for fact in card.facts}["Proof"] == "not proven yet, its pod has no status"
    assert pod_page(cluster(HOME), "default", "other") is None


def test_container_that_the_node_does_not_name_yet() -> None:
    """A container that only its pod's annotation names is shown, because the node is written separately."""
    (card,) = shown(cluster(node("n", MACHINE), pod("web", {"main": container("1,5")}))).containers
    assert (card.facts[0].term, card.facts[0].text) == ("CPUs", "1,5")


def test_page_shows_the_pods_cpus_in_their_machine() -> None:
    """The pod's page shows its node's CPUs with all others dimmed, also those of pods whose names contain its name."""
    owners = WEB | {"default/web-2/main": owner("2")}
    known = cluster(node("n", MACHINE, pools(MACHINE, owners)), pod("web", {"main": container("1,5")}))
    drawing = shown(known).drawing
    assert drawing is not None
    assert {it.name: it.dim for it in drawing.owners} == {
        "default/web/main": False,
        "default/web-2/main": True,
    }


def test_memory_shared_cpus_and_threads_are_shown() -> None:
    """The page shows memory, shared CPUs and threads of a machine where there are any."""
    said = container("1,5", memory="free", memoryNote="restart it", sharedCpus="2-3")
    vm = {
        "kind": "kubevirt",
        "vcpus": ["1", "5-6"],
        "oneToOne": False,
        "reason": "too few CPUs",
        "emulator": "5",
        "iothreads": ["5"],
        "vhost": "5",
        "note": "a note",
        "refused": ["vhost-1"],
        "time": "2026-11-22T10:00:00Z",
    }
    page = shown(cluster(HOME, pod("web", {"main": said}, vm=vm)))
    facts = {fact.term: fact.text for fact in page.containers[0].facts}
    assert (facts["Memory"], facts["Also runs on"]) == ("free: restart it", "shared CPUs 2-3")
    assert [(fact.term, fact.text) for fact in page.machine] == [
        ("Kind", "kubevirt"),
        ("vCPU 0", "CPU 1"),
        ("vCPU 1", "CPUs 5-6"),
        ("Not one to one", "too few CPUs"),
        ("Emulator", "CPU 5"),
        ("I/O thread 0", "CPU 5"),
        ("vhost", "CPU 5"),
        ("Not moved", "the kernel keeps vhost-1 on other CPUs"),
        ("Note", "a note"),
        ("Since", "2026-11-22T10:00:00Z"),
    ]
    small = shown(cluster(HOME, pod("web", {"main": container("1,5", memory="bind")}, vm={"kind": "kata"})))
    assert [(fact.term, fact.text) for fact in small.machine] == [
        ("Kind", "kata"),
        ("Emulator", "shared set"),
    ]


@pytest.fixture(scope="module")
def known() -> Cluster:
    """Return two containers that hold CPUs and two pods that wait."""
    owners = WEB | {"team/db/main": owner("2", smt="isolate", idle="6")}
    return cluster(
        node("n", MACHINE, pools(MACHINE, owners)),
        node("silent"),
        pod("web", {"main": container("1,5")}),
        pod("big", {"main": refused()}),
        pod("lost", {"main": refused()}, "team"),
        event("big", "Unpinnable", "text", on="n"),
    )


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Filter(), ["default/big/main waits", "team/lost/main waits", "team/db/main", "default/web/main"]),
        (Filter(namespace="team"), ["team/lost/main waits", "team/db/main"]),
        (Filter(policy="isolate"), ["team/db/main"]),
        (Filter(node="n"), ["default/big/main waits", "team/db/main", "default/web/main"]),
        (Filter(node="silent"), []),
        (Filter(pod="w"), ["default/web/main"]),
    ],
)
def test_list_has_who_holds_and_who_waits(known: Cluster, wanted: Filter, found: list[str]) -> None:
    """Problems are listed first, and only containers that match the filter."""
    assert [row.key for row in pods.pods(known, wanted).rows] == found


def test_list_has_an_end(known: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of pods has a limit, with the number of the others."""
    monkeypatch.setattr(pods, "MOST", 1)
    page = pods.pods(known, Filter())
    assert (len(page.rows), page.more, page.namespaces) == (1, 3, ("default", "team"))


def test_a_pool_of_a_pod_is_a_holder_of_its_own() -> None:
    """A pool's proof is that of its containers, and the list of pods has a row for the pod with its pool."""
    held = {"default/web/(pool)": owner("2,6") | {"policy": "pod"}}
    known = cluster(
        node("n", MACHINE, pools(MACHINE, held)), pod("web", {"log": container("2,6") | {"policy": "pod"}})
    )
    whole, log = shown(known).containers
    words = "the rest of the pod's budget, where its containers without slices run"
    assert (whole.why, whole.health) == (f"The pool of the pod: {words}.", "ok")
    assert [fact.text for fact in whole.facts if fact.term == "Proof"] == [words]
    assert log.why == (
        "CPUs of its pod, with other containers of the pod, on the fewest NUMA nodes. That gave it CPUs 2,6."
    )
    assert known.unproven == {"n": 0}
    (row,) = pods.pods(known, Filter()).rows
    assert (row.container, row.policy, row.health, row.text) == ("(pool)", "pod prefer", "ok", words)
