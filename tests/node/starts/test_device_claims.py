"""Pods of a real kubelet whose CPUs are ResourceClaims: the scheduler counts them, the agent is their driver.

`COREPIN_CLAIM_RESTARTS=20` deletes so many pods by force and restarts the kubelet so often, and `COREPIN_CLAIM_KILLS=50` kills
the agent so often, instead of once. `COREPIN_CLAIM_BIRTHS=200` starts so many pods of claims.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pinning.contract import DRA_CPUSET_PREFIX
from pinning.machine.cpuset import CPUSet
from tests.environments.node.node import EXCLUSIVE, pod
from tests.environments.waiting import SECONDS, until, until_equal
from tests.node.restarting import restart_kubelet
from tests.node.starts.claims import (
    UPSTREAM,
    claim,
    claiming_pod,
    clear_claims,
    delete_claim,
    delete_now,
    held,
    prepare_failed,
    slices,
    uid_of_claim,
)
from tests.node.starts.over_nri import lines

if TYPE_CHECKING:
    from tests.environments.node.node import Container, Node


RESTARTS = int(os.environ.get("COREPIN_CLAIM_RESTARTS", "1"))
KILLS = int(os.environ.get("COREPIN_CLAIM_KILLS", "1"))
BIRTHS, AT_ONCE = int(os.environ.get("COREPIN_CLAIM_BIRTHS", "3")), 20
REGISTERED, GIVEN_BACK = "registered at the kubelet", "claim unprepared while in use"


def _held_names(node: Node) -> list[str]:
    """Return the names of the claims that the ledger holds."""
    return [it["name"] for it in held(node)]


def _assert_own(node: Node, container: Container, name: str, its: str) -> CPUSet:
    """Check first instruction, cpuset and variable of a container; return its CPUs."""
    own = CPUSet.parse(until("first line", lambda: lines(node, name))[0])
    node.settled({container: own})
    variable = f"{DRA_CPUSET_PREFIX}{uid_of_claim(node, its)}="
    until_equal("the variable", lambda: _values(container.folder.parent, variable), {str(own)})
    return own


def _container(node: Node, name: str, container: str) -> Container:
    """Return a running container of a pod by its name."""

    def found() -> Container | None:
        document = node.pod(name)
        statuses = [it for it in document["status"].get("containerStatuses", ()) if it["name"] == container]
        return node.container_of({"status": {"containerStatuses": statuses}})

    return until(f"container {container} of pod {name} runs", found)


def _logged(node: Node, message: str) -> int:
    """Return how often the agent has logged a message since it was started."""
    return node.agent.log.count(message)


def _end(node: Node, name: str) -> None:
    """Delete a pod and wait until the API server has it no more: the kubelet gives its claims back before."""
    node.remove(name)
    until(f"pod {name} has ended", lambda: not node.pod(name))


def _values(pod: Path, variable: str) -> set[str]:
    """Return the values of a variable in the processes of a pod; a shell passes none with dashes in its name on."""
    found = set()
    for file in (*pod.glob("cgroup.procs"), *pod.glob("*/cgroup.procs")):
        for pid in file.read_text().split():
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended, as runc's own do
                entries = Path(f"/proc/{pid}/environ").read_text().split("\0")
                found |= {entry.removeprefix(variable) for entry in entries if entry.startswith(variable)}
    return found


@pytest.mark.parametrize(
    ("document", "cpu"),
    [(claim("plain"), None), (UPSTREAM, "1")],
    ids=["plain", "VEP 152 with its mirrored request"],
)
def test_container_runs_on_its_claim_from_the_first_instruction_on(
    claim_node: Node, document: dict[str, Any], cpu: str | None
) -> None:
    """Variable, cpuset and the CPUs of the first instruction are those of the claim, and no other pod has them."""
    node, name = claim_node, document["metadata"]["name"]
    node.apply(document)
    [container] = node.run(claiming_pod("user", name, cpu))
    [beside] = node.run(pod("beside"))
    own = _assert_own(node, container, "user", name)
    assert len(own) == 1
    node.settled({beside: node.all - own})
    until("its status", lambda: (node.status("user") or {}).get("cpus") == str(own))


def test_pods_of_one_claim_that_come_at_once_begin_on_its_cpus(claim_node: Node) -> None:
    """Only the first of them causes a Prepare; the others may start in the same moment."""
    node = claim_node
    for first in range(0, BIRTHS, AT_ONCE):
        names = [f"pod-{number}" for number in range(first, min(first + AT_ONCE, BIRTHS))]
        node.apply(claim("shared"), *(claiming_pod(name, "shared") for name in names))
        found = {_assert_own(node, node.running(name), name, "shared") for name in names}
        assert found == {_held_cpus(node)}
        clear_claims(node)


def _forging(document: dict[str, Any], variable: str, value: CPUSet) -> dict[str, Any]:
    """Return a pod whose containers have a variable in their specification, and keep it: none runs a shell."""
    for container in document["spec"]["containers"]:
        container |= {"command": ["/bin/sleep", "1000000"], "env": [{"name": variable, "value": str(value)}]}
    return document


def test_forged_variable_gives_no_cpus(claim_node: Node) -> None:
    """A container with the claim has its CPUs and its value; its sidecar and another pod have the shared set."""
    node = claim_node
    node.apply(claim("own"))
    variable = f"{DRA_CPUSET_PREFIX}{uid_of_claim(node, 'own')}"
    user, other = claiming_pod("user", "own"), pod("other")
    user["spec"]["containers"][1]["resources"] = {}  # resources of the sidecar
    node.apply(_forging(user, variable, node.all), _forging(other, variable, node.all))
    main, sidecar = (_container(node, "user", name) for name in ("main", "again"))
    beside, own = node.running("other"), _held_cpus(node)
    assert len(own) == 1
    node.settled({main: own, sidecar: node.all - own, beside: node.all - own})
    for container, value in ((main, own), (sidecar, node.all), (beside, node.all)):
        seen = partial(_values, container.folder, f"{variable}=")
        until_equal("the variable", seen, {str(value)})


def test_claim_that_no_container_names_is_held(claim_node: Node) -> None:
    """A claim that no container names holds its CPUs, and no container runs on them, even with a forged variable."""
    node = claim_node
    node.apply(claim("unnamed"))
    variable = f"{DRA_CPUSET_PREFIX}{uid_of_claim(node, 'unnamed')}"
    user = _forging(claiming_pod("user", "unnamed"), variable, node.all)
    for container in user["spec"]["containers"]:
        container["resources"] = {}
    [main] = node.run(user)
    node.settled({main: node.all - _held_cpus(node)})
    node.remove("user")
    until_equal("it is given back", lambda: held(node), [])


def _held_cpus(node: Node) -> CPUSet:
    """Return the CPUs of the only claim that is held."""
    [grant] = held(node)
    [part] = grant["parts"]
    return CPUSet.parse(part["cpus"])


def test_claim_waits_in_prepare_until_a_classic_pod_has_gone(claim_node: Node) -> None:
    """A pod with a claim starts, without an event, as soon as the annotated pod that holds the last core has ended."""
    node = claim_node
    node.apply(claim("late"))
    holder = pod("holder", EXCLUSIVE, cpu=str(node.cores))
    user = claiming_pod("user", "late")
    node.apply({**user, "spec": {**user["spec"], "schedulingGates": [{"name": "test/wait"}]}})
    [classic] = node.run(holder)
    until_equal("it owns a core", lambda: len(classic.cpus), node.cores)
    node.kubectl(
        "patch", "pod", "user", "--type=json", "-p", '[{"op":"remove","path":"/spec/schedulingGates"}]'
    )
    node.remove("holder")
    _assert_own(node, node.running("user"), "user", "late")


def test_pod_that_came_while_the_agent_was_away_starts_when_it_is_back(claim_node: Node) -> None:
    """The agent reminds the kubelet, which found no driver and would try again after 60 to 90 s."""
    node = claim_node
    node.agent.kill()
    node.apply(claim("early"), claiming_pod("came-early", "early"))
    until("the kubelet finds no driver", lambda: prepare_failed(node, "came-early"))
    node.agent.start()
    _assert_own(node, node.running("came-early"), "came-early", "early")


def test_next_claim_gets_the_cpus_of_a_pod_that_is_deleted_by_force(claim_node: Node) -> None:
    """The kubelet prepares the next claim before it gives back the first: Prepare waits instead of failing."""
    node, old = claim_node, "pod-0"
    node.apply(claim(old))
    node.run(claiming_pod(old, old))
    for number in range(1, RESTARTS + 1):
        new = f"pod-{number}"
        node.apply(claim(new), claiming_pod(new, new))
        delete_now(node, old, old)
        _assert_own(node, node.running(new), new, new)
        assert not prepare_failed(node, new)
        until_equal("only the next is held", partial(_held_names, node), [new])
        old = new


def test_claim_of_two_pods_stays_while_one_of_them_is_deleted_by_force(claim_node: Node) -> None:
    """Two pods run on one claim's CPUs, and one keeps them when the other is deleted by force."""
    node = claim_node
    node.apply(claim("both"), claiming_pod("one", "both"), claiming_pod("two", "both"))
    one, two = node.running("one"), node.running("two")
    own = _assert_own(node, two, "two", "both")
    node.settled({one: own})
    delete_now(node, "one")
    until("it has ended", lambda: one.is_gone)
    node.settled({two: own})
    assert [it["name"] for it in held(node)] == ["both"]


def test_restarts_of_kubelet_and_agent_prepare_nothing_again(claim_node: Node) -> None:
    """After restarts of kubelet and agent the claim is still prepared, and the container keeps its CPUs."""
    node = claim_node
    node.apply(claim("kept"))
    [container] = node.run(claiming_pod("user", "kept"))
    own = _assert_own(node, container, "user", "kept")
    for number in range(max(RESTARTS, KILLS)):
        if number < KILLS:
            node.agent.kill()
        if number < RESTARTS:
            restart_kubelet(node)
        if number < KILLS:
            node.agent.start()
        until("the slice is there", lambda: slices(node))
        node.settled({container: own})
        assert [(it["name"], it["prepared"]) for it in held(node)] == [("kept", True)]
        assert "claim prepared" not in node.agent.log
    node.remove("user")
    until_equal("it is given back", lambda: held(node), [])


@pytest.mark.parametrize("first", ["user", "next"])
def test_kubelet_that_lost_its_state_moves_no_container_of_a_claim(claim_node: Node, first: str) -> None:
    """A kubelet without its state prepares a used claim again for the next pod, and no container moves."""
    node = claim_node
    node.apply(claim("kept"))
    [container] = node.run(claiming_pod("user", "kept"))
    own = _assert_own(node, container, "user", "kept")
    registered, given_back = _logged(node, REGISTERED), _logged(node, GIVEN_BACK)
    restart_kubelet(node, (node.kubelet.directory / "root" / "dra_manager_state").unlink)
    until("the kubelet knows the driver", lambda: _logged(node, REGISTERED) > registered)
    node.apply(claiming_pod("next", "kept"))
    containers = {"user": container, "next": node.running("next")}
    assert _assert_own(node, containers["next"], "next", "kept") == own
    assert not prepare_failed(node, "next")
    [beside] = node.run(pod("beside", EXCLUSIVE, cpu=str(node.cores)))
    _end(node, first)
    assert _logged(node, GIVEN_BACK) - given_back == (first == "next")
    del containers[first]
    node.settled({**dict.fromkeys(containers.values(), own), beside: node.all - own})
    assert _held_names(node) == ["kept"]
    _end(node, *containers)
    until_equal("it is given back", lambda: held(node), [])
    until_equal("the other pod has them", lambda: len(beside.cpus), node.cores)


def test_reset_serves_the_kubelet_until_the_pod_of_a_claim_has_ended(claim_node: Node) -> None:
    """A reset withdraws the slice and unpins the container, and ends only after the pod with the claim has ended."""
    node = claim_node
    node.apply(claim("left"))
    [container] = node.run(claiming_pod("user", "left"))
    _assert_own(node, container, "user", "left")
    node.agent.kill()
    with subprocess.Popen([*node.agent.command, "--reset"], stderr=subprocess.DEVNULL) as reset:
        try:
            until_equal("its slice is removed", lambda: slices(node), [])
            until_equal("it runs on all CPUs", lambda: container.cpus, node.all)
            assert reset.poll() is None
            _end(node, "user")
            assert reset.wait(SECONDS) == 0
        finally:
            reset.kill()
            node.agent.start()
    until("the slice is there", lambda: slices(node))


def test_template_claim_that_is_deleted_while_it_is_prepared_keeps_its_cpus(claim_node: Node) -> None:
    """A deleted claim keeps its CPUs until the kubelet releases it, even without its finalizer."""
    node = claim_node
    node.apply(claim("made"))
    [container] = node.run(claiming_pod("user", "made"))
    own = _assert_own(node, container, "user", "made")
    delete_claim(node, "made")
    node.run(pod("beside"))
    node.settled({container: own, node.running("beside"): node.all - own})
    node.remove("user")
    until_equal("it is given back", lambda: held(node), [])
