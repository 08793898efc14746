"""Containers in virtual machines: the CPUs and the order of moves of a machine. Core N has CPUs N and N + 8."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pinning.contract import VMThreadsPolicy
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.actions import Action
from pinning.planning.observed import SeenSandbox, State
from pinning.planning.run_sets import SandboxSet
from tests.pinning.world import EXCLUSIVE, Wish, World, edit, world

PLAIN = Wish()
SHARE = Wish("2", policy="share")


def of_machine(node: World, uid: str = "k") -> str:
    """Return the planned CPUs of a pod's virtual machine."""
    return str(node.sandboxes[f"s-{uid}"].cpus)


def kata(node: World, *wishes: Wish, has_known_vcpus: bool = False) -> World:
    """Run all containers of pod k in one machine."""
    node.add("k", list(wishes))
    node.boot("k", has_known_vcpus=has_known_vcpus)
    for number in range(len(wishes)):
        node.start("k", f"c{number}")
    node.run_all()
    return node


def shown(actions: tuple[Action, ...]) -> list[str]:
    """Return actions as "kind id cpus < ids for which it waits"."""
    return [
        f"{action.kind} {action.container_id} {action.cpus}"
        + "".join(f" < {actions[at].container_id}" for at in action.waits_for)
        for action in actions
    ]


@pytest.mark.parametrize(
    ("wishes", "cpus"),
    [
        pytest.param((EXCLUSIVE, EXCLUSIVE), "1-2,9-10", id="two holders: the union"),
        pytest.param((EXCLUSIVE, PLAIN), "1,9", id="a sidecar adds nothing"),
        pytest.param((SHARE, PLAIN), "1,9", id="shared CPUs are held too"),
        pytest.param((PLAIN, PLAIN), "0-15", id="no holder: the shared set"),
        pytest.param(
            (Wish("1", policy="exclusive", smt="isolate"),), "1", id="idle siblings are run by nobody"
        ),
    ],
)
def test_a_machine_runs_on_what_its_containers_hold(wishes: tuple[Wish, ...], cpus: str) -> None:
    """A machine runs on the union of its running containers' CPUs, or on the shared set if there are none."""
    assert of_machine(kata(world(), *wishes)) == cpus


def test_it_shrinks_and_grows_with_its_containers() -> None:
    """When a container ends the machine leaves its CPUs, and returns to them when the container starts again."""
    node = kata(world(), EXCLUSIVE, EXCLUSIVE)
    second = next(key for key, seen in node.containers.items() if seen.owner.container == "c1")
    node.stop(second)
    planned = node.run_all()
    assert shown(planned.actions) == ["shrink s-k 1,9"]
    assert node.holds("k", "c1") == "2,10"

    node.start("k", "c1", State.CREATED)
    assert shown(node.run_all().actions) == ["grant s-k 1-2,9-10"]


def test_without_live_containers_it_is_on_what_its_pod_keeps() -> None:
    """A machine without running containers keeps its pod's CPUs, on which it boots and restarts."""
    node = world()
    node.add("k", [EXCLUSIVE, EXCLUSIVE])
    node.boot("k")
    node.run_all()
    assert of_machine(node) == "1-2,9-10"

    node.start("k", "c0")
    node.run_all()
    assert of_machine(node) == "1,9"


def test_all_its_threads_leave_before_a_grant() -> None:
    """All threads of a machine leave CPUs before another container is granted them."""
    node = kata(world(), PLAIN, PLAIN)
    node.add("a", [EXCLUSIVE])
    number = node.start("a", "c0")
    planned = node.plan()

    assert shown(planned.actions) == ["shrink s-k 0,2-8,10-15", f"grant {number} 1,9 < s-k"]


def test_its_own_grant_waits_for_others() -> None:
    """A machine gets CPUs after all other containers and machines have left them."""
    node = kata(world(), PLAIN)
    node.add("a", [EXCLUSIVE])
    node.boot("a")
    node.start("a", "c0", State.CREATED)
    planned = node.plan()

    assert shown(planned.actions) == ["shrink s-k 0,2-8,10-15", "grant s-a 1,9 < s-k"]
    assert planned.sandboxes["s-a"] == SandboxSet(CPUSet.parse("1,9"), CPUSet.parse("1,9"))


def test_an_edit_moves_the_whole_machine() -> None:
    """An edited policy widens and shrinks the machine in the same pass."""
    node = kata(world(), EXCLUSIVE, EXCLUSIVE)
    edit(node, "k", EXCLUSIVE, Wish("2", policy="none"))
    assert of_machine(node) == "1,9"
    edit(node, "k", Wish("2", policy="none"), Wish("2", policy="none"))
    assert of_machine(node) == "0-15"


def test_vcpus_and_other_threads_apart() -> None:
    """Under `vmThreads: shared` vCPUs run on the pod's CPUs, and the other threads on the shared set."""
    node = kata(world(vm_threads=VMThreadsPolicy.SHARED), EXCLUSIVE, has_known_vcpus=True)
    assert node.sandboxes["s-k"] == SeenSandbox("s-k", "k", CPUSet.parse("0-15"), CPUSet.parse("1,9"))
    node.add("a", [EXCLUSIVE])
    number = node.start("a", "c0")
    planned = node.plan()
    assert shown(planned.actions) == [
        f"shrink {number} 0,2-8,10-15",
        "shrink s-k 0-1,3-9,11-15",
        f"grant {number} 2,10 < {number} < s-k",
    ]
    assert planned.sandboxes["s-k"] == SandboxSet(CPUSet.parse("1,9"), CPUSet.parse("0,3-8,11-15"))

    for action in planned.actions:
        node.write(action)
    edit(node, "k", Wish("2", policy="none"))
    assert node.sandboxes["s-k"].vcpus == node.sandboxes["s-k"].cpus == CPUSet.parse("0-1,3-9,11-15")


def test_others_wait_until_the_vcpus_have_left() -> None:
    """CPUs that a machine releases are in use until its vCPUs have left; its other threads may stay there."""
    node = kata(world(vm_threads=VMThreadsPolicy.SHARED), Wish("4", policy="exclusive"), has_known_vcpus=True)
    node.add("a", [PLAIN])
    number = node.start("a", "c0")
    node.run_all()
    planned = edit(node, "k", EXCLUSIVE)
    assert shown(planned.actions) == ["shrink s-k 0-15", f"widen {number} 0,2-8,10-15 < s-k"]
    assert planned.actions[0].vacates == CPUSet.parse("2,10")


def test_unidentified_vcpus_are_not_in_the_shared_set() -> None:
    """If vCPUs cannot be identified no thread runs in the shared set while a container holds CPUs."""
    node = kata(world(vm_threads=VMThreadsPolicy.SHARED), EXCLUSIVE)
    assert of_machine(node) == "1,9"


def test_the_runtime_gets_every_containers_cpuset() -> None:
    """If the runtime was not sent the cpuset of a container there is an action, even if the threads are right."""
    node = kata(world(), EXCLUSIVE)
    machine = node.sandboxes["s-k"]
    node.sandboxes["s-k"] = replace(machine, sent=(machine.cpus, EMPTY))
    assert shown(node.plan().actions) == ["shrink s-k 1,9"]

    node.sandboxes["s-k"] = replace(machine, sent=(machine.cpus, machine.cpus))
    assert node.plan().actions == ()


@pytest.mark.parametrize(
    ("facts", "moves", "waits"),
    [
        pytest.param({}, True, " < s-k", id="it may be anywhere, and is moved first"),
        pytest.param({"is_movable": False}, False, "", id="it cannot be moved"),
        pytest.param({"is_awaited": False}, True, "", id="it was waited for long enough"),
    ],
)
def test_an_unread_machine_blocks_a_grant_while_it_can_be_moved(
    facts: dict[str, bool], moves: bool, waits: str
) -> None:
    """A grant waits for a machine whose threads have not been read, unless it cannot be moved or the time is over."""
    node = kata(world(), PLAIN)
    node.sandboxes["s-k"] = replace(node.sandboxes["s-k"], cpus=EMPTY, **facts)  # type: ignore[arg-type]
    node.add("a", [EXCLUSIVE])
    number = node.start("a", "c0")
    planned = node.plan()

    shrinks = ["shrink s-k 0,2-8,10-15"] if moves else []
    assert shown(planned.actions) == [*shrinks, f"grant {number} 1,9{waits}"]
    assert any(action.vacates for action in planned.actions) is bool(waits)
