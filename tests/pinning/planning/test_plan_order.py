"""The plan as a function: its result in observe mode, and that it depends on nothing but its input."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

from pinning.contract import CPUPolicy, NUMAPolicy, SMTPolicy
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.topology import CPUFacts, Topology, assemble
from pinning.planning.invariants import problems
from pinning.planning.ledger import Ledger
from pinning.planning.ledger_json import ledger_to_dict
from pinning.planning.node_config import StaticPools
from pinning.planning.observed import Observed, Owner, SeenContainer, State
from pinning.planning.plan import plan
from tests.pinning.world import EXCLUSIVE, Wish, World, one_pod, reasons, world

# Observe mode, order of the input, hash seeds.


def test_observing_allocates_nothing() -> None:
    """In observe mode the plan assigns no CPUs, ignores the claim of a launcher, and delays no pod."""
    node = one_pod(EXCLUSIVE, observe=True)
    node.add("b", [Wish(cores=1)])
    node.add("v", [Wish("2")], vm=True)
    planned = node.plan()
    assert (len(planned.ledger), planned.actions) == (0, ())
    assert reasons(planned) == {"test/pod-a/c0": "ObserveMode", "test/pod-b/c0": "ObserveMode"}
    assert [refusal.blocks_start for refusal in planned.refusals] == [False, False]
    assert "cpuManagerPolicy to none" in planned.refusals[0].message


def test_others_join_a_former_owner_once_its_tasks_are_home() -> None:
    """Containers may use CPUs that an owner released only after the owner's tasks have moved off them."""
    owner = replace(EXCLUSIVE, shared="true")
    node = world(4)
    for uid, wish in (("a", replace(owner, cpu="3")), ("n", Wish())):
        node.add(uid, [wish])
        node.start(uid, "c0")
    node.run_all()
    node.add("a", [replace(owner, cpu="1")])
    leave, join = node.plan().actions
    assert (str(leave.cpus), str(leave.home), str(leave.vacates)) == ("0-7", "2", "1,5")
    assert (leave.owner.pod_uid, join.owner.pod_uid, join.waits_for) == ("a", "n", (0,))
    assert str(join.cpus) == "0-1,3-7"


def test_the_order_of_the_input_does_not_matter() -> None:
    """Pods and containers in any order give the same plan."""
    node = world()
    for uid in "abc":
        node.add(uid, [EXCLUSIVE, Wish("1", policy="share")])
        node.start(uid, "c0")
    seen = node.observe()
    turned = Observed(seen.topology, seen.universe, seen.pods[::-1], seen.containers[::-1])
    assert plan(seen, Ledger(), node.config) == plan(turned, Ledger(), node.config)


def hashed() -> str:
    """Return the text of a plan whose computation iterates over all kinds of sets and mappings."""
    node = world(16, sockets=2, numa_policy=NUMAPolicy.DISTRIBUTED, pools=StaticPools(12, 1))
    for number, policy in enumerate([*CPUPolicy, *SMTPolicy] * 2):
        smt = str(policy) if isinstance(policy, SMTPolicy) else None
        word = None if smt else str(policy)
        node.add(f"u{number}", [Wish("2", policy=word, smt=smt), Wish(cores=1)])
        node.start(f"u{number}", "c0")
    first = node.run_all()
    node.set_online(node.topology.online - CPUSet([5, 6, 22]))
    return f"{first}{node.plan()}{ledger_to_dict(node.ledger)}"


def test_every_hash_seed_gives_the_same_plan() -> None:
    """Interpreters with different hash seeds produce the same plan."""
    code = "from tests.pinning.planning.test_plan_order import hashed; print(hashed())"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "4711")
    }
    assert len(outputs) == 1
    assert "KeepsFewer" in next(iter(outputs)) or "NotEnough" in next(iter(outputs))


def test_cores_of_uneven_width() -> None:
    """A core with one thread counts as a whole core, and under `isolate` all siblings of a wider core stay idle."""
    widths = [[0], [1], [2, 3, 4, 5]]
    facts = [
        CPUFacts(cpu, core=core, package=0, numa_node=0) for core, cpus in enumerate(widths) for cpu in cpus
    ]
    topology: Topology = assemble(facts, CPUSet(range(6)))
    node = World(topology)
    node.create("a", [Wish("2", smt="isolate")])
    assert node.holds("a") == "1-2 idle 3-5"
    assert problems(node.ledger, node.sets) == ()


def test_a_container_of_the_runtime_without_a_pod_uid() -> None:
    """A container without a pod uid is treated like one without a claim."""
    node = world()
    node.containers["x"] = SeenContainer("x", Owner("", ""), State.RUNNING, EMPTY)
    assert not node.run_all().actions
