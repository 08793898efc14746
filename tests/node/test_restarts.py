"""Restarts, failures and overload around the agent: no change is missed, no pod moves, and the agent backs off."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.environments.node.node import CORES, EXCLUSIVE, pod
from tests.environments.waiting import until, until_equal
from tests.node.proxy import CUT, Request, tally
from tests.node.restarting import restart_kubelet
from tests.node.sharing import identity, shared_pair

if TYPE_CHECKING:
    from tests.environments.node.node import Node

FAULT_SECONDS = float(os.environ.get("COREPIN_FAULT_SECONDS", "8"))  # 30 for the long form


def alive(node: Node) -> dict[str, tuple[str, str, int]]:
    """Return phase, container and restarts of every pod."""
    return {
        pod["metadata"]["name"]: (pod["status"]["phase"], *identity(node, pod["metadata"]["name"]))
        for pod in node.pods()
    }


def patient(requests: list[Request], limit: int) -> None:
    """Check that an agent in trouble asked seldom: at most so often in ten seconds, then at most once a second."""
    counted, seconds = tally(requests), requests[-1].when - requests[0].when
    assert sum(counted.values()) <= limit + max(0.0, seconds - 10), (seconds, counted)


@pytest.mark.parametrize("agent", ["alive", "dead", "killed while the kubelet starts"])
def test_restarted_kubelet_rejects_no_running_pod(node: Node, agent: str) -> None:
    """A restarted kubelet admits running pods with the resource again, with or without the agent."""
    cores = node.cores
    until_equal("published", node.published, (str(cores), str(cores)))
    [claimed] = node.run(pod("claimed", cores=cores))
    [plain] = node.run(pod("plain", cpu="100m"))
    until("apart", lambda: not claimed.cpus & plain.cpus)
    before, cpus = alive(node), (claimed.cpus, plain.cpus)
    if agent == "dead":
        node.agent.kill()
    restart_kubelet(node, node.agent.kill if agent.startswith("killed") else lambda: None)
    # While the kubelet admits its pods again, the published number is at least that of running claims; later pods
    # are new.
    assert alive(node) == before
    assert (claimed.cpus, plain.cpus) == cpus
    if agent != "alive":
        node.agent.start()
    [later] = node.run(pod("later"))
    until_equal("shared CPUs", lambda: later.cpus, plain.cpus)
    until_equal("published", node.published, (str(cores), str(cores)))
    assert {name: alive(node)[name] for name in before} == before
    assert (claimed.cpus, plain.cpus) == cpus
    assert not [pod for pod in node.pods() if "OutOf" in str(pod["status"].get("reason"))]


def test_restarted_api_server_is_followed_again(node: Node) -> None:
    """During a restart of the API server no pod moves and few requests are made; a later change is followed."""
    pinned, bystander = shared_pair(node)
    cpus = (pinned.cpus, bystander.cpus)
    with node.proxy.counting() as requests:
        node.plane.kill()
        node.plane.start()
        assert (pinned.cpus, bystander.cpus) == cpus
        node.annotate("pinned", "none")
        node.settled({pinned: node.all, bystander: node.all})
    patient(requests, 60)
    node.annotate("pinned", "exclusive")
    until_equal("own CPU", lambda: len(pinned.cpus), 1)


def test_expired_watch_means_a_new_list(node: Node) -> None:
    """After an expired watch the agent lists again, and knows all pods that came, went and changed."""
    pinned, bystander = shared_pair(node)
    with node.proxy.counting() as requests:
        with node.proxy.failing(CUT):
            node.remove("pinned")
            until("pinned is gone", lambda: pinned.is_gone and not node.pod("pinned"))
            [late] = node.run(pod("late", EXCLUSIVE, cpu="1"))
            node.plane.compact()
            node.plane.kill()
            node.plane.start()
            assert bystander.cpus != node.all  # no pod is removed while the API server is unreachable
        until("own CPU", lambda: not late.cpus & bystander.cpus)
        node.settled({late: late.cpus, bystander: node.all - late.cpus})
    lists = [
        request
        for request in requests
        if request.path.startswith("/api/v1/pods?") and "watch=1" not in request.path
    ]
    assert any(request.failed_with is None for request in lists)
    patient(requests, 60)


@pytest.mark.parametrize("status", [500, 429])
def test_agent_backs_off_from_a_failing_api_server(node: Node, status: int) -> None:
    """While every request fails no pod moves and the agent backs off; then it catches up."""
    pinned, bystander = shared_pair(node)
    cpus = (pinned.cpus, bystander.cpus)
    # Counted from the first failure to the last: a request before or after that one is answered.
    with node.proxy.failing(status), node.proxy.counting() as requests:
        ends = time.monotonic() + FAULT_SECONDS
        node.annotate("pinned", "none")
        node.apply(pod("late"))
        late = node.running("late")
        until_equal("a stranger joins the others", lambda: late.cpus, bystander.cpus)
        until("time is over", lambda: time.monotonic() > ends)
        assert (pinned.cpus, bystander.cpus) == cpus
    assert {request.failed_with for request in requests} == {status}
    patient(requests, 30 + min(int(FAULT_SECONDS), 10))
    node.settled({pinned: node.all, bystander: node.all, late: node.all})


def test_slow_api_server_holds_up_reports_and_no_container(node: Node) -> None:
    """With slow answers of the API server changes still reach the kernel at once, and requests do not pile up."""
    pinned, bystander = shared_pair(node)
    with node.proxy.counting() as requests, node.proxy.slow(3.0):
        node.annotate("pinned", "none")
        node.settled({pinned: node.all, bystander: node.all})
        until_equal("told", lambda: node.status("pinned"), None)
        node.annotate("pinned", "exclusive")
        until_equal("own CPU", lambda: len(pinned.cpus), 1)
    patient(requests, 40)


def test_agent_backs_off_until_its_token_is_valid(node: Node) -> None:
    """While the API server rejects the agent's token it backs off and no pod moves; then changes are followed."""
    pinned, bystander = shared_pair(node)
    cpus = (pinned.cpus, bystander.cpus)
    token = node.agent.directory / "token"
    good, before = token.read_text(), node.agent.metric("corepin_agent_api_errors_total", code="401")
    try:
        with node.proxy.counting() as requests:
            token.write_text("expired")
            node.proxy.break_all()
            node.annotate("pinned", "none")
            until(
                "refused",
                lambda: node.agent.metric("corepin_agent_api_errors_total", code="401") > before + 3,
            )
            assert (pinned.cpus, bystander.cpus) == cpus
    finally:
        token.write_text(good)
    patient(requests, 30)
    node.settled({pinned: node.all, bystander: node.all})


def test_killed_agent_leaves_every_container_where_it_is(node: Node) -> None:
    """After `kill -9` CPUs stay as they are; the next agent follows changes that it missed."""
    pinned, bystander = shared_pair(node)
    same, cpus = alive(node), (pinned.cpus, bystander.cpus)
    node.agent.kill()
    [late] = node.run(pod("late"))
    node.agent.start()
    until_equal("the newcomer", lambda: late.cpus, bystander.cpus)
    assert (pinned.cpus, bystander.cpus) == cpus
    assert {name: container for name, container in alive(node).items() if name in same} == same
    assert node.agent.metric("corepin_agent_cpuset_writes_total", result="done") <= 1  # the newcomer's
    assert node.agent.metric("corepin_agent_rebuilds_total") == 0


def test_lost_checkpoint_is_rebuilt_from_running_pods(node: Node) -> None:
    """Without its checkpoint the agent rebuilds the ledger from kernel and pods, and no pod moves."""
    pinned, bystander = shared_pair(node)
    cpus = (pinned.cpus, bystander.cpus)
    node.agent.kill()
    for file in checkpoints(node):
        file.unlink()
    node.agent.start()
    until("the new account", lambda: ours(node))
    assert (pinned.cpus, bystander.cpus) == cpus
    assert node.agent.metric("corepin_agent_rebuilds_total") == 1
    assert node.agent.metric("corepin_agent_cpuset_writes_total", result="done") == 0


def checkpoints(node: Node) -> list[Any]:
    """Return the files in which the agent remembers."""
    return [file for file in (node.agent.directory / "state").iterdir() if file.is_file()]


def ours(node: Node) -> list[Any]:
    """Return the agent's state of containers that hold CPUs."""
    return [
        container
        for pod in node.agent.state()["pods"]
        for container in pod["containers"].values()
        if "policy" in container
    ]


def test_resource_of_running_pods_is_never_published_too_small(node: Node) -> None:
    """The published resource is never below what running pods hold."""
    cores = node.cores
    until_equal("published", node.published, (str(cores), str(cores)))
    with node.proxy.counting() as requests:
        node.run(pod("claimed", cores=cores))
        until("pinned", lambda: (node.status("claimed") or {}).get("pinned"))
        node.agent.kill()
        node.agent.start()
        until("the new agent tells the node", lambda: node.agent.state()["podsComplete"])
        restart_kubelet(node)
        until_equal("published", node.published, (str(cores), str(cores)))
    numbers = [number for request in requests for number in published_by(request)]
    assert all(number == str(cores) for number in numbers), numbers


def published_by(request: Request) -> list[str]:
    """Return the amounts of the resource that a request writes."""
    if request.method != "PATCH" or not request.path.endswith("/status"):
        return []
    status = json.loads(request.body).get("status", {})
    return [status[part][CORES] for part in ("capacity", "allocatable") if CORES in status.get(part, {})]
