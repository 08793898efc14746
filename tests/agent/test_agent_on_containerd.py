"""The real agent with a real containerd: starts, moves, restarts, foreign writes and killed daemons.

`COREPIN_BIRTHS` sets how many pods start under churn (200 by default), `COREPIN_KILLS_HERE` how often the
agent, and the runtime, are killed on each runtime (10).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import pytest

from agent.kernel.inotify import Inotify
from agent.serve.metrics_page import FRESH_SECONDS
from pinning.machine.cpuset import CPUSet
from tests.environments.node.churn import planned
from tests.environments.node.containerd_fixture import EVERY_RUNTIME
from tests.environments.node.containerd_node import (
    NEAR,
    Churn,
    ContainerdNode,
    Windows,
    check_rules,
    start_node,
)
from tests.environments.node.node import TELLING
from tests.environments.waiting import until, until_equal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.environments.node.containerd import Containerd
    from tests.environments.node.node import Container

BIRTHS = int(os.environ.get("COREPIN_BIRTHS", "200"))
KILLS = int(os.environ.get("COREPIN_KILLS_HERE", "10"))
AT_ONCE = 8  # pods that start concurrently
LONGEST_WAIT = 0.2  # seconds from a change to the kill: a pass starts and ends within
WINDOW = "corepin_agent_unpinned_window_seconds_count"
REWRITES = "corepin_agent_foreign_rewrites_total"
pytestmark = [
    pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="moving a container takes two CPUs"),
    pytest.mark.parametrize("containerd_session", EVERY_RUNTIME, indirect=True),
]


@pytest.fixture
def node(containerd: Containerd, tmp_path: Path) -> Iterator[ContainerdNode]:
    """Return a node without pods, with an agent."""
    with start_node(containerd, tmp_path) as node_with_agent:
        yield node_with_agent


def telling(wanted: CPUSet) -> tuple[str, ...]:
    """Return a command that writes its CPUs at its first instruction, and again until they are `wanted`."""
    return ("/bin/sh", "-c", f"WANTED={wanted}\n{TELLING}")


def pinned_and_bystander(node: ContainerdNode) -> tuple[Container, Container, CPUSet]:
    """Return an exclusive and a plain container, and the CPUs of the first."""
    pinned, bystander = node.add("pinned", "exclusive"), node.add("bystander")
    until("own CPU", lambda: node.state_of("pinned").get("pinned"))
    own = pinned.cpus
    assert len(own) == 1
    node.settled({pinned: own, bystander: node.all - own})
    # A pass must list it first, because an agent without its runtime does not know new containers.
    until("a pass has seen it", lambda: node.state_of("bystander").get("applied"))
    return pinned, bystander, own


def test_all_changes_of_policy(node: ContainerdNode) -> None:
    """Each change of policy moves the pod, and the other container leaves exclusive CPUs only."""
    pinned, bystander, own = pinned_and_bystander(node)
    for policy in ("share", "none", "exclusive", "none", "share", "exclusive"):
        node.write("pinned", policy)
        until_equal("told", lambda: node.state_of("pinned").get("policy", "none"), policy)
        mine = node.all if policy == "none" else own
        node.settled({pinned: mine, bystander: node.all - own if policy == "exclusive" else node.all})


def test_restart_keeps_cpus_and_end_frees_them(node: ContainerdNode) -> None:
    """A restarted container has the same CPU; a removed pod returns it to the shared set."""
    _, bystander, own = pinned_and_bystander(node)
    node.stop("pinned")
    again = node.start("pinned", telling(own))
    node.settled({again: own, bystander: node.all - own})
    node.remove("pinned")
    node.settled({bystander: node.all})


def test_memory_is_bound_before_the_start(node: ContainerdNode) -> None:
    """Without NRI the runtime is sent the memory node with the CPUs while the container is created."""
    node.write("bound", annotations=NEAR)
    node.run_pod("bound")
    created = node.create("bound")
    assert created is not None
    until("told", lambda: node.cpuset_of(created)[1])
    own, mems = node.cpuset_of(created)
    node.sandboxes["bound"].start(created)
    (numa_node,) = until("assigned", lambda: node.reported().get("bound", {}).get("numaNodes"))
    assert (len(own), mems) == (1, CPUSet([numa_node]))
    until_equal("memory", lambda: node.state_of("bound").get("memory"), "bind")


def is_seen(node: ContainerdNode, rewritten: Container, right: CPUSet, number: float) -> bool:
    """Rewrite a cpuset that is right; return whether the agent has counted this rewrite.

    A write of a pass in progress may come between the rewrite and the agent's look. Then the cpuset is right and the
    rewrite is not counted, in metrics that are younger than the repair: they are rendered once a second.
    """
    if rewritten.cpus == right:
        time.sleep(FRESH_SECONDS)
        if node.agent.metric(REWRITES) < number:
            node.update(rewritten, node.all)
    return node.agent.metric(REWRITES) == number


def test_third_foreign_update_is_a_conflict(node: ContainerdNode) -> None:
    """Two foreign updates are repaired; the third is a conflict, which is reported and not repaired."""
    _, bystander, own = pinned_and_bystander(node)
    for number in (1.0, 2.0):
        until("seen", partial(is_seen, node, bystander, node.all - own, number))
        node.settled({bystander: node.all - own})
    until("seen", partial(is_seen, node, bystander, node.all - own, 3.0))
    until("told", lambda: node.agent.state()["conflicts"])
    assert [conflict["container"] for conflict in node.agent.state()["conflicts"]] == [
        "default/bystander/main"
    ]
    until_equal("told", lambda: node.state_of("pinned").get("intruders"), ["default/bystander/main"])
    assert bystander.cpus == node.all


def test_policies_are_applied_while_containerd_is_killed(node: ContainerdNode) -> None:
    """Without containerd CPUs stay and policy changes are applied; containers started later are pinned."""
    pinned, bystander, own = pinned_and_bystander(node)
    node.containerd.kill()
    assert (pinned.cpus, bystander.cpus) == (own, node.all - own)
    node.write("pinned", "none")
    node.settled({pinned: node.all, bystander: node.all})
    node.containerd.start()
    node.write("pinned", "exclusive")
    later = node.add("later")
    node.settled({pinned: own, bystander: node.all - own, later: node.all - own})


# Starts


def live(node: ContainerdNode, windows: Windows, name: str, wanted: CPUSet) -> list[str]:
    """Start a pod, wait for its CPUs and its unpinned time, remove it; return its log lines."""
    container = node.add(name, command=telling(wanted))
    until_equal(f"log of {name}", lambda: node.log(name)[-1:], [str(wanted)])
    until(f"window of {name}", lambda: name in windows.seconds)
    assert container.cpus == wanted
    lines = node.log(name)
    node.remove(name)
    return lines


def test_containers_start_on_their_cpus_under_churn(
    node: ContainerdNode, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each pod has its CPUs at its first instruction, or a reported unpinned time."""
    _, bystander, own = pinned_and_bystander(node)
    shared = node.all - own
    births = BIRTHS if node.containerd.programs.version == "2.4" else BIRTHS // 5
    names = [f"churn-{number}" for number in range(births)]
    with Windows(node) as windows, ThreadPoolExecutor(AT_ONCE) as pool:
        seen = dict(zip(names, pool.map(lambda name: live(node, windows, name, shared), names), strict=True))
    late = {name: windows.seconds[name] for name, lines in seen.items() if len(lines) > 1}
    zero = sum(windows.seconds[name] == 0 for name in names)
    with capsys.disabled():
        sys.stdout.write(
            f"\n{births} pods: {births - len(late)} right at their first instruction ({zero} told so), the others"
            f" after {sorted(late.values())} s\n"
        )
    assert all(late.values()), late
    node.settled({bystander: shared})


# Kills


class Recorder(threading.Thread):
    """Records every cpuset of containers, as far as inotify reports writes."""

    def __init__(self, containers: dict[str, Container]) -> None:
        super().__init__()
        self._queue = Inotify()
        self._of = {
            self._queue.add(container.folder / "cpuset.cpus"): name for name, container in containers.items()
        }
        self._containers = dict(containers)
        self.seen: dict[str, set[CPUSet]] = {name: {container.cpus} for name, container in containers.items()}
        self._over = threading.Event()

    def run(self) -> None:
        """Read the cpusets after each write."""
        while not self._over.wait(0.001):
            for event in self._queue.news():
                name = self._of[event.watch]
                self.seen[name].add(self._containers[name].cpus)

    def stop(self) -> dict[str, set[CPUSet]]:
        """Stop and return the recorded cpusets of each container."""
        self._over.set()
        self.join()
        self._queue.close()
        return self.seen


def test_killed_agent_loses_no_cpus(node: ContainerdNode) -> None:
    """After each SIGKILL every CPU has one owner, and correctly placed containers were not moved."""
    churn = Churn(node, seed=len(node.containerd.programs.version))
    for _ in range(KILLS):
        for _ in range(churn.random.randint(1, 3)):
            churn.step()
        time.sleep(churn.random.uniform(0, LONGEST_WAIT))
        node.agent.kill()
        before = {name: container.cpus for name, container in node.containers.items()}
        recorder = Recorder(node.containers)
        recorder.start()
        try:
            node.agent.start()
            ledger = planned(node.agent.state, node.observe, lambda: node.agent.log)
        finally:
            seen = recorder.stop()
        after = {name: container.cpus for name, container in node.containers.items()}
        stayed = {name: cpus for name, cpus in before.items() if after[name] == cpus}
        assert {name: seen[name] for name in stayed} == {name: {cpus} for name, cpus in stayed.items()}
        check_rules(node, ledger)


def test_killed_runtime_loses_no_cpus(node: ContainerdNode) -> None:
    """After each SIGKILL of the runtime, and edits while it is away, every CPU has one owner and every container its CPUs."""
    churn = Churn(node, seed=len(node.containerd.programs.version))
    for _ in range(KILLS):
        for _ in range(churn.random.randint(1, 3)):
            churn.step()
        time.sleep(churn.random.uniform(0, LONGEST_WAIT))
        node.containerd.kill()
        for name in sorted(node.documents)[:2]:
            node.write(name, churn.random.choice(("none", "exclusive")))
        node.containerd.start()
        ledger = planned(node.agent.state, node.observe, lambda: node.agent.log)
        check_rules(node, ledger)
    assert "crashed" not in node.agent.log
