"""Lines of the history, computed from two states."""

from __future__ import annotations

from dashboard.model.history import node_changes, pod_changes
from dashboard.model.records import Node, Pod
from pinning.contract import STATUS_POOLS
from pinning.machine.cpuset import CPUSet
from tests.dashboard.clusters import a_node, a_pod
from tests.dashboard.documents import Document, container, grid, node, owner, pod, pools, refused
from tests.tables import table

MACHINE = grid(1, 1, 1, 8)
HOLDER = "default/web/main"


def with_owner(*owners: Document, observes: bool = False) -> Node:
    """Return node n with or without an owner, beside an unchanged node."""
    held = {"default/other/main": owner("7")}
    for it in owners:
        held[HOLDER] = it
    sets = pools(MACHINE, held, observes=observes)
    return a_node(node("n", MACHINE, sets))


def nodes_said(old: Node | None, new: Node | None) -> list[str]:
    """Return the texts about a node."""
    before, after = ({it.name: it} if it else {} for it in (old, new))
    return [change.text for change in node_changes("now", before, after)]


def pods_said(old: Document | None, new: Document) -> list[str]:
    """Return the texts about a pod."""
    before = {"default/web": a_pod(old)} if old else {}
    return [change.text for change in pod_changes("now", before, {"default/web": a_pod(new)}, {})]


@table(
    "old, new, said",
    {
        "got": ([], [owner("1,9")], "got CPUs 1,9 (exclusive)"),
        "idle": ([], [owner("1", smt="isolate", idle="9")], "got CPUs 1, siblings 9 idle (exclusive)"),
        "moved": ([owner("1,9")], [owner("2,10")], "moved from CPUs 1,9 to 2,10"),
        "gave back": ([owner("1,9")], [], "gave back CPUs 1,9"),
        "policy": ([owner("1,9")], [owner("1,9", smt="require")], "keeps CPUs 1,9, now exclusive require"),
    },
)
def test_owners_come_move_and_go(old: list[Document], new: list[Document], said: str) -> None:
    """A change of an owner's CPUs is one line."""
    assert nodes_said(with_owner(*old), with_owner(*new)) == [f"{HOLDER} {said}"]


def test_nodes_come_and_go() -> None:
    """A node, or the agent that reports from it, is one line when it appears and when it disappears."""
    silent, reporting = a_node(node("n")), with_owner()
    damaged = a_node(node("n", MACHINE, {"x": 1}))
    assert nodes_said(None, silent) == ["the node is new"]
    assert nodes_said(silent, None) == ["the node was deleted"]
    assert nodes_said(silent, reporting) == ["an agent reports"]
    assert nodes_said(reporting, silent) == ["no agent reports from this node any more"]
    assert nodes_said(reporting, damaged) == [damaged.problem]
    assert nodes_said(silent, damaged) == [damaged.problem]
    assert nodes_said(damaged, a_node(node("n", MACHINE, {"y": 1}))) == []
    assert nodes_said(silent, a_node(node("n"))) == []
    assert nodes_said(reporting, reporting) == []


def test_machines_and_modes_change() -> None:
    """CPUs that go offline are one line, and so is an agent that begins to observe only."""
    smaller = MACHINE.with_online(MACHINE.online - CPUSet([6]))
    document = node("n", smaller, pools(MACHINE, {"default/other/main": owner("7")}))
    assert nodes_said(with_owner(), a_node(document)) == ["CPUs 0-5,7-15 are online"]
    assert nodes_said(with_owner(), with_owner(observes=True)) == ["the agent only observes now"]
    assert nodes_said(with_owner(observes=True), with_owner()) == ["the agent allocates CPUs again"]
    assert STATUS_POOLS in document["metadata"]["annotations"]


def test_claims_wait_and_wait_no_more() -> None:
    """A refusal adds a line when it begins and when it ends, and none in between."""
    waiting, pinned = pod("web", {"main": refused()}), pod("web", {"main": container("1")})
    assert pods_said(None, waiting) == [f"{HOLDER} waits: NotEnoughCPUs"]
    assert pods_said(waiting, pinned) == [f"{HOLDER} no longer waits: NotEnoughCPUs"]
    assert pods_said(waiting, pod("web", {"main": refused("other words")})) == []


def test_containers_drift_and_come_back() -> None:
    """Drift is one line when it begins and when it ends, also for a pod that was drifting when first seen."""
    calm, drifting = pod("web", {"main": container("1")}), pod("web", {"main": container("1", drift=True)})
    assert pods_said(calm, drifting) == [f"{HOLDER} runs outside of its CPUs"]
    assert pods_said(drifting, calm) == [f"{HOLDER} is back on its CPUs"]
    assert pods_said(None, drifting) == [f"{HOLDER} runs outside of its CPUs"]
    assert pods_said(calm, pod("web", annotations={"qos.gocrane.io/cpu-manager": "none"})) == []


def test_a_pod_that_did_not_change_says_nothing() -> None:
    """An unchanged pod adds no line, also one that is refused as a whole."""
    same = a_pod(pod("web", {"main": refused()}))
    assert list(pod_changes("now", {"default/web": same}, {"default/web": same}, {})) == []


def test_refusal_of_a_whole_pod_names_the_pod() -> None:
    """If the annotations of a pod cannot be read, the refusal is about the pod and names no container."""
    document = pod("web", {"main": container("1")})
    status = '{"containers": {}, "refusal": {"reason": "BadPolicy", "message": "no such word"}}'
    document["metadata"]["annotations"]["status.corepin.io/cpus"] = status
    found: Pod = a_pod(document)
    (change,) = pod_changes("now", {}, {"default/web": found}, {"default/web": "n"})
    assert (change.text, change.node, change.is_warning) == ("default/web waits: BadPolicy", "n", True)
