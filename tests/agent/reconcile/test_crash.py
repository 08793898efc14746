"""An agent that is killed at random moments and restarted loses no CPU, and moves no container without need.

The tests also check that no CPU gets two owners. `COREPIN_KILLS` sets the number of kills (default 60,
divided over machines of three sizes).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from pinning.machine.cpuset import CPUSet
from pinning.planning.invariants import problems
from pinning.planning.ledger import Ledger
from pinning.planning.node_config import DEFAULT
from pinning.planning.node_sets import node_sets
from pinning.planning.observed import Observed, Owner
from pinning.planning.plan import plan
from tests.environments.node.churn import AgentProcess, Churn, held_on_disk, settled
from tests.environments.process.client import running_machine

KILLS = int(os.environ.get("COREPIN_KILLS", "60"))
LONGEST_WAIT = 0.04  # seconds from a change to the kill; within this time a pass starts and ends
STARTING = 0.06  # seconds from the agent's start to the end of its first pass
WRITING = 0.004  # seconds that the writes of one pass take


@contextmanager
def node(root: Path, cpus: int, seed: int) -> Iterator[tuple[AgentProcess, Churn]]:
    """Run a simulated machine with pods and an agent on it."""
    with running_machine(root, cpus) as machine:
        churn = Churn(machine, Random(seed), most_pods=max(6, cpus // 4))  # noqa: S311  chance is what is wanted
        agent = AgentProcess(root)
        agent.start()
        try:
            settled(agent, churn)
            yield agent, churn
        finally:
            agent.kill()


def check_rules(churn: Churn, ledger: Ledger) -> None:
    """Check that no CPU is owned twice or by a deleted pod, and that containers run on their CPUs."""
    observed = churn.observe()
    sets = node_sets(observed.topology, observed.universe, DEFAULT)
    assert problems(ledger, sets) == ()
    assert {held.owner.pod_uid for held in ledger} <= churn.pods.keys()
    shared = sets.shared(ledger)
    for container in observed.live:
        assert container.cpus == ledger.cpus_of(container.owner, shared)


def moved(churn: Churn, before: Observed, since: int) -> list[str]:
    """Return the containers that were moved although their CPUs before and after the event are the same."""
    started = {container.id: container.cpus for container in before.live}
    ended = {container.id: container.cpus for container in churn.observe().live}
    stayed = {key for key in started if started[key] == ended.get(key)}
    events = churn.machine.call("events", since=since)
    return [
        one["id"] for one in events if one["id"] in stayed and CPUSet.parse(one["cpus"]) != started[one["id"]]
    ]


def wait_somewhere(agent: AgentProcess, last: int, random: Random) -> None:
    """Wait until a random moment of a pass, or until shortly after the save of the checkpoint, while the pass writes."""
    if random.random() < 0.5:
        time.sleep(random.uniform(0, LONGEST_WAIT))
        return
    deadline = time.monotonic() + 2 * LONGEST_WAIT
    while agent.checkpoint.stat().st_mtime_ns == last and time.monotonic() < deadline:
        time.sleep(0)
    time.sleep(random.uniform(0, WRITING))


@pytest.mark.parametrize(
    ("cpus", "share"),
    [pytest.param(16, 2, id="16"), pytest.param(64, 2, id="64"), pytest.param(256, 1, id="256")],
)
def test_killed_at_any_moment_it_goes_on_from_the_checkpoint(tmp_path: Path, cpus: int, share: int) -> None:
    """After a kill the new agent uses the plan in the checkpoint, and moves no container without need."""
    random = Random(cpus)  # noqa: S311
    with node(tmp_path, cpus, seed=cpus) as (agent, churn):
        for _ in range(KILLS * share // 5):
            last = agent.checkpoint.stat().st_mtime_ns
            for _ in range(random.randint(1, 4)):
                churn.step()
            wait_somewhere(agent, last, random)
            agent.kill()
            on_disk, before = held_on_disk(agent), churn.observe()
            since = len(churn.machine.call("events"))
            agent.start()
            if random.random() < 0.3:
                time.sleep(random.uniform(0, STARTING))  # the agent is killed while it starts
                agent.kill()
                agent.start()
            ledger = settled(agent, churn)
            assert ledger == plan(before, on_disk, DEFAULT).ledger
            assert moved(churn, before, since) == []
            check_rules(churn, ledger)


def footprints(ledger: Ledger) -> dict[Owner, CPUSet]:
    """Return the CPUs that are charged to each container."""
    return {held.owner: held.footprint for held in ledger}


def truncate(path: Path) -> None:
    """Truncate a file to half its size."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    """Truncate a file to zero bytes."""
    path.write_bytes(b"")


def flip_bit(path: Path) -> None:
    """Flip one bit of the last CPU list in the ledger, or of the checksum if the ledger is empty."""
    content, mark = bytearray(path.read_bytes()), b'"cpus":"'
    mark = mark if mark in content else b'"checksum":"'
    content[content.rindex(mark) + len(mark)] ^= 1
    path.write_bytes(content)


def make_older(path: Path) -> None:
    """Set the file's version to an older one."""
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 0}))


def move_machine(path: Path) -> None:
    """Change the machine id, as on a cloned disk."""
    machine_id = path.parent.parent / "machine-id"
    machine_id.write_text(f"{machine_id.read_text()}0")


def remove(path: Path) -> None:
    """Delete the file."""
    path.unlink()


DAMAGES = (truncate, empty, flip_bit, make_older, move_machine, remove)


def test_killed_agent_without_checkpoint_rebuilds_from_containers(tmp_path: Path) -> None:
    """After a kill that lost the checkpoint, no CPU gets two owners and no container is moved without need."""
    random = Random(5)  # noqa: S311
    with node(tmp_path, 32, seed=5) as (agent, churn):
        for number in range(max(KILLS // 5, len(DAMAGES))):
            last = agent.checkpoint.stat().st_mtime_ns
            for _ in range(random.randint(1, 4)):
                churn.step()
            wait_somewhere(agent, last, random)
            agent.kill()
            DAMAGES[number % len(DAMAGES)](agent.checkpoint)
            before, since = churn.observe(), len(churn.machine.call("events"))
            agent.start()
            ledger = settled(agent, churn)
            assert moved(churn, before, since) == []
            check_rules(churn, ledger)


@pytest.mark.parametrize("damage", DAMAGES)
def test_spoiled_checkpoint_is_rebuilt_from_what_runs(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """If the checkpoint is damaged, the agent keeps the file, rebuilds the ledger from running containers, and moves none."""
    with node(tmp_path, 32, seed=7) as (agent, churn):
        for _ in range(40):
            churn.step()
        held = settled(agent, churn)
        assert len(held) > 2
        agent.kill()
        damage(agent.checkpoint)
        before, since = churn.observe(), len(churn.machine.call("events"))
        agent.start()
        ledger = settled(agent, churn)
        assert footprints(ledger) == footprints(held)
        assert moved(churn, before, since) == []
        check_rules(churn, ledger)
        assert agent.checkpoint.with_suffix(".json.damaged").exists() == (damage is not remove)


def test_termination_leaves_containers_as_they_are(tmp_path: Path) -> None:
    """At SIGTERM the agent exits with code 0 and changes no container, and the next agent writes nothing."""
    with node(tmp_path, 16, seed=3) as (agent, churn):
        for _ in range(8):
            churn.step()
        settled(agent, churn)
        before = churn.observe()
        assert agent.stop() == 0
        assert churn.observe().containers == before.containers
        agent.start()
        settled(agent, churn)
        assert churn.observe().containers == before.containers


def test_second_agent_is_refused(tmp_path: Path) -> None:
    """A second agent on a node exits with the reason, and the first one continues."""
    with node(tmp_path, 16, seed=3) as (agent, churn):
        second = AgentProcess(tmp_path)
        second.start()
        assert second.wait() != 0
        assert "another corepin agent (pid" in agent.log()
        settled(agent, churn)
