"""Time of a plan on 256 CPUs in 8 NUMA nodes with 250 containers: `python -m bench.plan`.

The baseline is one pass over the containers that compares each cpuset with the wanted one, the minimum work of
any level-triggered agent. CPU time is measured, as the best of some repeats; for the cases of one kind the worst
and the median are shown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from time import process_time
from typing import TYPE_CHECKING

from bench.allocate import machine
from pinning.contract import CPUPolicy
from pinning.planning.ledger import Ledger
from pinning.planning.node_config import DEFAULT
from pinning.planning.observed import Observed, Owner, SeenContainer, SeenPod, State
from pinning.planning.plan import plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pinning.machine.cpuset import CPUSet
    from pinning.machine.topology import Topology
    from pinning.planning.plan import Plan
    from pinning.pods.types import Pod

CONTAINERS = 250
POLICIES = ("exclusive", "share", "none", "exclusive", "none")
SMT = (None, "require", None, "isolate", None)
COUNTS = (1, 2, 2, 1, 3)
REPEATS = 9
MILLISECONDS = 1e3


@dataclass(frozen=True)
class Case:
    """One plan to time; `limit` is the longest acceptable time in milliseconds."""

    name: str
    limit: float
    observed: Observed
    ledger: Ledger


def pod(number: int, policy: str | None = None, *, cpus: int | None = None) -> SeenPod:
    """Return a pod with one container, of a mix of policies and sizes."""
    kind = number % len(POLICIES)
    smt = SMT[kind]
    annotations = {"cpu-manager.corepin.io/pod": policy or POLICIES[kind]}
    if smt and annotations["cpu-manager.corepin.io/pod"] == CPUPolicy.EXCLUSIVE:
        annotations["smt-policy.corepin.io/pod"] = smt
    document: Pod = {
        "metadata": {
            "name": f"pod-{number}",
            "namespace": "bench",
            "uid": f"uid-{number:04}",
            "creationTimestamp": f"2026-01-01T{number // 60:02}:{number % 60:02}:00Z",
            "annotations": annotations,
        },
        "spec": {"containers": [{"name": "main", "resources": {"limits": {"cpu": cpus or COUNTS[kind]}}}]},
    }
    return SeenPod.of(document)


def container(seen: SeenPod, cpus: CPUSet) -> SeenContainer:
    """Return the running container of a pod."""
    return SeenContainer(f"id-{seen.uid}", Owner(seen.uid, "main"), State.RUNNING, cpus)


def cold(topology: Topology) -> Observed:
    """Return a node on which every container runs on all CPUs."""
    pods = tuple(pod(number) for number in range(CONTAINERS))
    running = tuple(container(seen, topology.online) for seen in pods)
    return Observed(topology, topology.online, pods, running)


def done(observed: Observed, planned: Plan) -> Observed:
    """Return the node after all actions of a plan."""
    cpus = {action.container_id: action.cpus for action in planned.actions}
    return Observed(
        observed.topology,
        observed.universe,
        observed.pods,
        tuple(
            replace(container, cpus=cpus.get(container.id, container.cpus))
            for container in observed.containers
        ),
    )


def changes(settled: Observed) -> Iterator[tuple[str, Observed]]:
    """Yield a settled node after one change of every kind, for many containers."""
    yield "nothing changed", settled
    for number in range(0, CONTAINERS, 7):
        for policy in CPUPolicy:
            pods = list(settled.pods)
            pods[number] = pod(number, str(policy))
            yield f"pod {number} edited to {policy}", replaced(settled, tuple(pods))
        pods = list(settled.pods)
        pods[number] = pod(number, cpus=4)
        yield f"pod {number} resized to 4", replaced(settled, tuple(pods))
        yield f"pod {number} gone", without(settled, number)


def replaced(settled: Observed, pods: tuple[SeenPod, ...]) -> Observed:
    """Return a node with other pods."""
    return Observed(settled.topology, settled.universe, pods, settled.containers)


def without(settled: Observed, number: int) -> Observed:
    """Return a node without one of its pods."""
    uid = settled.pods[number].uid
    containers = tuple(item for item in settled.containers if item.owner.pod_uid != uid)
    pods = tuple(item for item in settled.pods if item.uid != uid)
    return Observed(settled.topology, settled.universe, pods, containers)


def best(act: Callable[[], object]) -> float:
    """Return the shortest of several runs, in milliseconds."""
    times = []
    for _ in range(REPEATS):
        start = process_time()
        act()
        times.append(process_time() - start)
    return min(times) * MILLISECONDS


def fresh(observed: Observed) -> Observed:
    """Return an equal node without cached values of earlier plans."""
    return Observed(observed.topology, observed.universe, observed.pods, observed.containers)


def cases(topology: Topology) -> Iterator[Case]:
    """Yield every case."""
    start = cold(topology)
    first = plan(start, Ledger(), DEFAULT)
    settled = done(start, first)
    yield Case("from nothing", 50, start, Ledger())
    offline = settled.topology.with_online(settled.universe - settled.topology.siblings(200))
    for name, observed in changes(settled):
        yield Case(f"one change: {name}", 5, observed, first.ledger)
    lost = Observed(offline, offline.online, settled.pods, settled.containers)
    plan(lost, first.ledger, DEFAULT)  # fills the cache for the machine with other online CPUs
    yield Case("one change: a core goes offline", 5, lost, first.ledger)


def baseline(observed: Observed) -> int:
    """Compare each container's cpuset with the wanted one."""
    wanted = {container.id: observed.universe for container in observed.containers}
    return sum(1 for container in observed.containers if wanted[container.id] != container.cpus)


def main() -> None:
    """Print the figures."""
    topology = machine()
    start = cold(topology)
    base = best(lambda: baseline(start))
    print(f"{'baseline: compare 250 sets':45}{base:9.3f} ms")
    timed: dict[str, list[tuple[float, Case]]] = {}
    for case in cases(topology):
        took = best(lambda case=case: plan(fresh(case.observed), case.ledger, DEFAULT))  # type: ignore[misc]
        timed.setdefault(case.name.partition(":")[0], []).append((took, case))
    for kind, results in timed.items():
        worst, case = max(results, key=lambda result: result[0])
        middle = median(took for took, _ in results)
        verdict = "ok" if worst <= case.limit else "TOO SLOW"
        print(
            f"{kind + ', median of ' + str(len(results)):45}{middle:9.3f} ms  {middle / base:8.0f} x baseline"
        )
        print(
            f"{'  worst: ' + case.name:45}{worst:9.3f} ms  {worst / base:8.0f} x baseline, limit {case.limit} ms: {verdict}"
        )


if __name__ == "__main__":
    main()
