"""CPUs of containers: those of a start at which only the pod is known, and the pools that a container uses."""

from __future__ import annotations

from pinning.contract import PoolUse, SharedPool
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.ledger import Ledger
from pinning.planning.node_config import NodeConfig, StaticPools
from pinning.planning.node_sets import node_sets
from pinning.planning.observed import Owner, SeenPod
from pinning.planning.run_sets import RunSet, RunSets
from tests.pinning.entries import entry
from tests.pinning.nodes import smt_machine
from tests.pinning.world import Wish, World, world
from tests.tables import table


def planned(*wishes: Wish) -> World:
    """Return a node of 4 cores with a planned pod and an owner of CPUs 3 and 7."""
    node = world(4)
    node.add("a", list(wishes))
    node.plan()
    return node


def starts(node: World) -> set[str]:
    """Return the CPU sets on which the pod's containers may start, as text."""
    pod = next(pod for pod in node.observe().pods if pod.uid == "a")
    return {str(cpus) for cpus in node.plan().run_sets.starts_in(pod)}


def test_one_container_has_one_set() -> None:
    """The only container of a pod has one start set: its own CPUs or the shared set."""
    assert starts(planned(Wish("2", policy="exclusive"))) == {"1,5"}
    assert starts(planned(Wish())) == {"0-7"}


def test_containers_of_one_set_need_no_names() -> None:
    """If all containers of a pod start in the shared set, the pod has one start set, so that names are not needed."""
    assert starts(planned(Wish(), Wish())) == {"0-7"}


def test_sets_of_a_pod_are_its_own_and_the_shared_one() -> None:
    """The start sets of a pod are its containers' own CPUs and the shared set, without CPUs of other pods."""
    node = planned(Wish("2", policy="exclusive"), Wish())
    node.add("b", [Wish("2", policy="exclusive")])
    node.plan()
    assert starts(node) == {"1,5", "0,3-4,7"}


def test_pod_whose_containers_are_too_many_may_start_on_all_of_its_sets() -> None:
    """A pod with too many containers gets no new assignments, and its containers may start on any of its sets."""
    node = planned(Wish("2", policy="exclusive"))
    run_sets = node.plan().run_sets
    crowd = SeenPod("a", "test", "a", "", (), ())
    assert {str(cpus) for cpus in run_sets.starts_in(crowd)} == {"1,5", "0,2-4,6-7"}


OWN, POOL = CPUSet.parse("1,5"), CPUSet.parse("2-3")


@table(
    "run_set, cpus, at_start",
    {
        "an owner": (RunSet(OWN, EMPTY), "1,5", RunSet(OWN, EMPTY)),
        "an owner that uses a pool": (RunSet(OWN, POOL, OWN), "1-3,5", RunSet(OWN, EMPTY)),
        "in the shared set": (RunSet(EMPTY, POOL), "2-3", RunSet(EMPTY, POOL)),
        "in two pools": (RunSet(EMPTY, POOL, CPUSet([3])), "2-3", RunSet(EMPTY, CPUSet([3]))),
    },
)
def test_first_process_starts_on_the_home_alone(run_set: RunSet, cpus: str, at_start: RunSet) -> None:
    """If its first process cannot be moved later, a container starts on its own CPUs without the pools."""
    assert (str(run_set.cpus), run_set.at_start) == (cpus, at_start)


def test_users_of_pools_run_on_these_too() -> None:
    """A container that uses CMK's shared pool gets the pool of that socket, or the shared set if there is no pool."""
    machine = smt_machine(4)
    config = NodeConfig(CPUSet.parse("0,4"), pools=StaticPools(exclusive_cores=1, shared_cores=1))
    owner, guest = Owner("a", "c"), Owner("b", "c")
    uses = {it: frozenset({PoolUse(SharedPool.SHARED, 0)}) for it in (owner, guest)}
    ledger = Ledger().assign(entry("a", "1,5"))
    run_sets = RunSets(ledger, node_sets(machine, machine.online, config), uses)

    assert run_sets.of(owner) == RunSet(OWN, CPUSet.parse("2,6"), OWN)
    assert run_sets.of(guest) == RunSet(EMPTY, CPUSet.parse("0,2-4,6-7"), CPUSet.parse("0,3-4,7"))
    assert run_sets.pool(PoolUse(SharedPool.SHARED, 1)) == run_sets.shared
