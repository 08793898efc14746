"""Where the containers of a pod start, when it is not known which of them one is."""

from __future__ import annotations

from pinning.planning.observed import SeenPod
from tests.pinning.world import Wish, World, world


def planned(*wishes: Wish) -> World:
    """Return a node of 4 cores with a planned pod, beside an owner whose CPUs are 3 and 7."""
    node = world(4)
    node.add("a", list(wishes))
    node.plan()
    return node


def starts(node: World) -> set[str]:
    """Return the sets of the pod's containers as text."""
    pod = next(pod for pod in node.observe().pods if pod.uid == "a")
    return {str(cpus) for cpus in node.plan().run_sets.starts_in(pod)}


def test_one_container_has_one_set() -> None:
    """The only container of a pod starts on its own CPUs, or on the shared set."""
    assert starts(planned(Wish("2", policy="exclusive"))) == {"1,5"}
    assert starts(planned(Wish())) == {"0-7"}


def test_containers_of_one_set_need_no_names() -> None:
    """If all containers of a pod start in the shared set, names are not needed."""
    assert starts(planned(Wish(), Wish())) == {"0-7"}


def test_sets_of_a_pod_are_its_own_and_the_shared_one() -> None:
    """CPUs of other pods are in none of them."""
    node = planned(Wish("2", policy="exclusive"), Wish())
    node.add("b", [Wish("2", policy="exclusive")])
    node.plan()
    assert starts(node) == {"1,5", "0,3-4,7"}


def test_pod_whose_containers_are_too_many_may_start_on_all_of_its_sets() -> None:
    """The containers of a pod above the limit are not distinguished; assignments from before stay in force."""
    node = planned(Wish("2", policy="exclusive"))
    run_sets = node.plan().run_sets
    crowd = SeenPod("a", "test", "a", "", (), ())
    assert {str(cpus) for cpus in run_sets.starts_in(crowd)} == {"1,5", "0,2-4,6-7"}
