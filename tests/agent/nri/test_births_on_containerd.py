"""The real agent as an NRI plugin of real containerd: no container runs a single instruction on CPUs of others.

`COREPIN_NRI_BIRTHS` says how many pods are started under churn (40 by default), `COREPIN_NRI_RESTARTS` how often
containerd is killed (3).
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from pinning.machine.cpuset import EMPTY, CPUSet
from tests.agent.churn import planned
from tests.agent.containerd_fixture import WITH_NRI
from tests.agent.containerd_node import ISOLATE, NEAR, Churn, ContainerdNode, Windows, check_rules, start_node
from tests.agent.nri.births import TELLING, Birth, Tenure, birth, born, environment, now, trespassers
from tests.node.waiting import until, until_equal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.agent.containerd import Containerd

BIRTHS = int(os.environ.get("COREPIN_NRI_BIRTHS", "40"))
RESTARTS = int(os.environ.get("COREPIN_NRI_RESTARTS", "3"))
AT_ONCE = 7  # unclaimed pods that are started at the same time, beside one that claims
WINDOW = "corepin_agent_unpinned_window_seconds"
pytestmark = [
    pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="one CPU can be owned or shared, not both"),
    pytest.mark.parametrize("containerd_session", WITH_NRI[:2], indirect=True),
]


@pytest.fixture
def node(containerd: Containerd, tmp_path: Path) -> Iterator[ContainerdNode]:
    """Return a node without pods, with an agent that is a plugin of its runtime."""
    with start_node(containerd, tmp_path, nri=str(containerd.nri_socket)) as node_with_agent:
        until_holds(node_with_agent)
        yield node_with_agent


def until_holds(node: ContainerdNode) -> None:
    """Wait until every new container gets its CPUs by NRI."""
    until_equal("path of starts", lambda: node.agent.state()["startPath"], "nri")


def until_broken(node: ContainerdNode) -> None:
    """Wait until the agent says that NRI does not hold."""
    until("NRI is gone", lambda: node.agent.state()["startPath"] != "nri")


# Births.


def claimed(node: ContainerdNode, windows: Windows, name: str) -> tuple[Birth, Tenure]:
    """Start a pod whose claim must fit, check that it was born on its own CPU, and remove it."""
    found = born(node, windows, name, **ISOLATE)
    own = CPUSet.parse(node.reported()[name]["cpus"])
    assert (len(own), found.cpus) == (1, own)
    assert found.environment == environment(own, node.all - own)
    assert node.containers[name].cpus == own
    tenure = Tenure(own, found.after, now())
    node.remove(name)
    until("its CPU is free", lambda: name not in node.reported())
    return found, tenure


def unclaimed(node: ContainerdNode, windows: Windows, name: str) -> Birth:
    """Start a pod that asks for nothing, and remove it."""
    found = born(node, windows, name)
    assert found.environment == ()
    node.remove(name)
    return found


def tell(capsys: pytest.CaptureFixture[str], text: str) -> None:
    """Show a line of what was measured."""
    with capsys.disabled():
        sys.stdout.write(f"\n{text}\n")


def test_births_beside_an_owner(node: ContainerdNode, capsys: pytest.CaptureFixture[str]) -> None:
    """While pods come and go each has the shared CPUs at its first instruction, and nobody is made to wait."""
    pinned = node.add("pinned", annotations=ISOLATE)
    shared = node.all - pinned.cpus
    with Windows(node) as windows, ThreadPoolExecutor(AT_ONCE) as pool:
        births = list(pool.map(lambda n: unclaimed(node, windows, f"plain-{n}"), range(BIRTHS)))
    assert {born.cpus for born in births} == {shared}
    assert {windows.seconds[born.name] for born in births} == {0.0}
    assert node.agent.metric(f"{WINDOW}_sum") == 0.0
    assert node.agent.metric(f"{WINDOW}_count", path="nri") == node.agent.metric(f"{WINDOW}_count")
    assert node.refused == {}
    tell(capsys, f"{BIRTHS} pods beside an owner: all right at their first instruction")


def test_births_while_owners_come_and_go(node: ContainerdNode, capsys: pytest.CaptureFixture[str]) -> None:
    """Each owner is born on its own CPU and nobody else on it; an owner whose CPU is still in use waits for it."""
    bystander = node.add("bystander")
    with Windows(node) as windows, ThreadPoolExecutor(AT_ONCE) as pool:
        others = [pool.submit(unclaimed, node, windows, f"plain-{number}") for number in range(BIRTHS)]
        owners = [claimed(node, windows, f"claimed-{number}") for number in range(BIRTHS // 4)]
        births = [other.result() for other in others]
    assert trespassers(births, [tenure for _, tenure in owners]) == []
    assert {windows.seconds[born.name] for born, _ in owners} == {0.0}
    assert node.refused.keys() <= {born.name for born, _ in owners}, node.refused
    node.settled({bystander: node.all})
    waited = sum(map(len, node.refused.values()))
    moved = sum(
        windows.seconds[born.name] > 0 for born in births
    )  # twice before a pass saw them: told too much
    tell(
        capsys,
        f"{BIRTHS} pods and {len(owners)} owners: all right at their first instruction;"
        f" {waited} creations tried again, {moved} told with a window",
    )


def test_claim_that_does_not_fit_holds_its_container_back(node: ContainerdNode) -> None:
    """It is not created, with the text of the refusal; when the CPU comes free it starts, on that CPU."""
    node.add("first", annotations=ISOLATE)
    node.write("second", annotations=ISOLATE, cpu=str(len(node.all) - 1))
    node.run_pod("second")
    refusal = until("refused", lambda: node.reported().get("second", {}).get("refusal"))
    assert node.create("second", TELLING) is None
    assert refusal["message"] in node.refused["second"][-1]
    bystander = node.add("bystander", command=TELLING)
    assert birth(node, "bystander").cpus == bystander.cpus
    node.remove("first")
    second = node.start("second", TELLING)
    own = birth(node, "second").cpus
    assert len(own) == len(node.all) - 1
    node.settled({second: own, bystander: node.all - own})


def test_bound_memory_is_part_of_a_container(node: ContainerdNode) -> None:
    """The NUMA node of the CPUs is in what the runtime makes, the kernel has it, and no later update takes it away."""
    bound = node.add("bound", annotations=NEAR)
    (numa_node,) = node.reported()["bound"]["numaNodes"]
    assert node.cpuset_of(bound.id) == (bound.cpus, CPUSet([numa_node]))
    until_equal("told", lambda: node.reported()["bound"].get("memory"), "bind")
    node.update(bound, node.all)
    assert node.cpuset_of(bound.id) == (bound.cpus, CPUSet([numa_node]))
    assert node.cpuset_of(node.add("bystander").id)[1] == EMPTY


def test_update_of_others_does_not_move_a_container(node: ContainerdNode) -> None:
    """The runtime asks at each update of a container, and the CPUs stay those of the agent."""
    pinned, bystander = node.add("pinned", annotations=ISOLATE), node.add("bystander")
    own = pinned.cpus
    assert len(own) == 1
    for container, cpus in ((pinned, own), (bystander, node.all - own)):
        node.update(container, node.all)
        assert (container.cpus, node.recorded(container)) == (cpus, cpus)


# Whoever is away.


@contextmanager
def killed(containerd: Containerd) -> Iterator[None]:
    """Do without the runtime until the block ends."""
    containerd.kill()
    try:
        yield
    finally:
        containerd.start()


def birth_of(node: ContainerdNode, name: str) -> CPUSet:
    """Start a pod that asks for nothing and return the CPUs of its first instruction."""
    node.add(name, command=TELLING)
    return birth(node, name).cpus


def test_killed_containerd_has_its_plugin_again(
    node: ContainerdNode, capsys: pytest.CaptureFixture[str]
) -> None:
    """After each kill under churn the plugin is back: no CPU is lost or owned twice, nobody runs outside its set."""
    churn = Churn(node, seed=1)
    for number in range(RESTARTS):
        for _ in range(churn.random.randint(1, 4)):
            churn.step()
        with killed(node.containerd):
            until_broken(node)
            for name in sorted(node.documents):
                node.write(name, churn.random.choice((None, "share", "exclusive")))
        until_holds(node)
        node.add(f"after-{number}", command=TELLING)
        ledger = planned(node.agent.state, node.observe, lambda: node.agent.log)
        check_rules(node, ledger)
        assert birth(node, f"after-{number}").cpus & ledger.exclusive == EMPTY
        node.remove(f"after-{number}")
    tell(capsys, f"{RESTARTS} kills of containerd under churn: the plugin was back each time")


def test_killed_agent_lets_containers_start(node: ContainerdNode) -> None:
    """While it is away nobody is pinned and nobody waits; when it is back all are where they belong."""
    pinned = node.add("pinned", annotations=ISOLATE)
    own = pinned.cpus
    node.agent.kill()
    bystander = node.add("bystander")
    assert (pinned.cpus, bystander.cpus) == (own, node.all)
    node.agent.start()
    node.settled({pinned: own, bystander: node.all - own})
    until_holds(node)
    assert birth_of(node, "later") == node.all - own


def test_stopped_agent_costs_a_start_at_most_one_retry(node: ContainerdNode) -> None:
    """A plugin that does not answer is dropped; going on, it comes back and puts everybody where he belongs."""
    pinned = node.add("pinned", annotations=ISOLATE)
    own = pinned.cpus
    node.write("bystander")
    node.run_pod("bystander")
    assert node.agent.daemon
    with node.agent.daemon.hung():
        bystander = node.start("bystander")
        assert len(node.refused.get("bystander", ())) <= 1
        later = node.add("later")
        assert "later" not in node.refused
    node.settled({pinned: own, bystander: node.all - own, later: node.all - own})
    until_holds(node)
    assert birth_of(node, "last") == node.all - own
