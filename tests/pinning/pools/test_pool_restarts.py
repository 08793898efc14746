"""Ended init containers of a pod with a pool, while containers or the whole pod restart."""

from __future__ import annotations

from dataclasses import replace

from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import Owner
from pinning.planning.start_table import Start, start_table
from tests.pinning.budgets import SIDECAR, budgeted, pool, put, runs, started, updated
from tests.pinning.world import World, world


def end(node: World, *names: str) -> None:
    """End containers; the runtime goes on listing them."""
    for seen in node.live():
        if seen.owner.container in names:
            node.stop(seen.id)


def test_a_sidecar_keeps_the_pool_while_the_main_container_is_between_two_starts() -> None:
    """A sidecar keeps the whole pool while the main container restarts: the init container does not run again."""
    inits = {"log": (None, SIDECAR), "init": (3, "")}
    node = started(budgeted("a", 4, {"m": 2, "p": None}, inits), "log", "init")
    end(node, "init")
    node.start("a", "m")
    node.run_all()
    end(node, "m")
    node.run_all()
    assert runs(node, "log") == pool(node)


def at_start(node: World, name: str) -> CPUSet:
    """Return the CPUs on which a container of pod a would start now."""
    planned = node.plan()
    assert not planned.actions
    answer = start_table(planned, node.observe()).start(Owner("a", name), claims=True)
    assert isinstance(answer, Start)
    return answer.cpus


def test_an_init_container_in_a_new_sandbox_starts_on_cpus_that_a_sidecar_has_left() -> None:
    """After a reboot the runtime still lists the later containers that ran before; no init container has ended."""
    inits = {"log": (None, SIDECAR), "init": (3, "")}
    node = started(budgeted("a", 4, {"m": 2, "p": None}, inits), "log", "init")
    end(node, "init")
    updated(node, node.documents["a"], "m", "p")
    assert runs(node, "log") == pool(node)
    node.renew("a")
    narrow = at_start(node, "log")
    assert narrow <= pool(node)
    assert narrow != pool(node)
    node.start("a", "log")
    node.run_all()
    assert runs(node, "log") == narrow
    assert at_start(node, "init").isdisjoint(narrow)


def test_a_main_container_starts_again_in_the_whole_pool() -> None:
    """All init containers have ended before the first main one starts, also if nothing of the pod lives now."""
    node = started(budgeted("a", 4, {"m": 2, "p": None}, {"init": (3, "")}), "init")
    end(node, "init")
    updated(node, node.documents["a"], "m", "p")
    end(node, "m", "p")
    assert at_start(node, "p") == pool(node)


def test_an_unknown_sandbox_ends_no_init_container() -> None:
    """If sandboxes are unknown a sidecar keeps off the CPUs of an init container that may run again."""
    inits = {"log": (None, SIDECAR), "init": (3, "")}
    node = started(budgeted("a", 4, {"m": 2, "p": None}, inits), "log", "init", "m")
    end(node, "init", "m")
    node.containers = {key: replace(seen, pod_sandbox="") for key, seen in node.containers.items()}
    node.run_all()
    assert runs(node, "log").isdisjoint(at_start(node, "init"))


def test_an_init_container_that_runs_again_has_not_ended() -> None:
    """A sidecar leaves the CPUs of an init container that runs again in the same sandbox."""
    inits = {"log": (None, SIDECAR), "init": (3, "")}
    node = started(budgeted("a", 4, {"m": 2, "p": None}, inits), "log", "init", "m")
    end(node, "init", "m")
    node.run_all()
    node.start("a", "init")
    node.run_all()
    own = node.ledger.of(Owner("a", "init"))
    assert own
    assert runs(node, "log") == pool(node) - own.cpus


def test_init_containers_of_other_pods_start_in_no_pool() -> None:
    """An init container that owns CPUs in a pod without a budget takes nothing of another pod's pool."""
    node = started(budgeted("a", 4, {"m": 2, "p": None}), "m", "p")
    planned = updated(node, budgeted("b", None, {"m": 1}, {"init": (1, "")}, created=1), "init")
    assert node.ledger.of(Owner("b", "init"))
    assert planned.starting == {}
    assert runs(node, "p") == pool(node)


def test_a_plan_after_a_lost_cpu_is_stable() -> None:
    """Slices that ask for more than the budget share it by the CPUs that they have left."""
    node = world(4)
    put(node, budgeted("a", 5, {"m": 2, "n": 2, "o": 1}), "m", "n", "o")
    updated(node, budgeted("b", None, {"m": 1}, created=1), "m")
    lost = node.ledger.of(Owner("a", "o"))
    assert lost
    updated(node, budgeted("a", 5, {"m": 2, "n": 3, "o": 1}))
    planned = node.hotplug(node.topology.online - lost.cpus)
    again = node.run_all()
    assert (again.ledger, again.refusals) == (planned.ledger, planned.refusals)
