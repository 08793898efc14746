"""Masks of virtual machines' threads on an SMT machine. All virtual machines are paused."""

from __future__ import annotations

from typing import Any

import pytest

from pinning.machine.cpuset import CPUSet
from tests.environments.guest.facts import CORES, whole_cores
from tests.environments.guest.guest import Report
from tests.environments.vm.seen import Seen
from tests.smt.scenario_vms import UNION, A


def step(node: Report, pod: str, name: str = "placed") -> dict[str, Any]:
    """Return the report about a machine in one step."""
    (found,) = (fact for fact in node.all("vm") if (fact["pod"], fact["step"]) == (pod, name))
    return found


def seen(node: Report, pod: str, name: str = "placed") -> Seen:
    """Return the masks of a machine's threads in one step."""
    return Seen.of(step(node, pod, name)["seen"])


@pytest.mark.parametrize(("pod", "vcpus"), [("pairs", 4), ("isolate", 2), ("require", 3), ("many", 12)])
def test_each_vcpu_has_a_cpu_of_its_own(node: Report, pod: str, vcpus: int) -> None:
    """Each vCPU runs on its own CPU of the container, and no thread of the machine runs outside them."""
    cpuset = CPUSet.parse(step(node, pod)["cpuset"])
    cpus = seen(node, pod).one_each()

    assert cpus is not None
    assert len(cpus) == len(cpuset) == vcpus
    assert seen(node, pod).all() == cpuset


@pytest.mark.parametrize("pod", ["pairs", "many"])
def test_siblings_of_the_guest_are_siblings_of_the_host(node: Report, pod: str) -> None:
    """Each core of the guest is one core of the host."""
    cpus = seen(node, pod).one_each() or []

    assert [CPUSet(pair) in CORES for pair in zip(cpus[::2], cpus[1::2], strict=True)] == [True] * (
        len(cpus) // 2
    )


def test_isolated_machine_has_no_two_threads_on_a_core(node: Report) -> None:
    """Each vCPU under `isolate` has its own core, on which no other thread runs."""
    cpus = CPUSet(seen(node, "isolate").one_each() or [])

    assert len(whole_cores(cpus)) == 4
    assert not (whole_cores(cpus) - cpus) & seen(node, "isolate").all()


@pytest.mark.parametrize("pod", ["pairs", "isolate", "require", "many"])
def test_vhost_threads_stay_on_the_machine_s_cpus(node: Report, pod: str) -> None:
    """The kernel thread for a device of the machine is found, and runs on the machine's CPUs."""
    masks = [CPUSet.parse(text) for text in seen(node, pod).vhost]

    assert len(masks) == 1
    assert masks[0] <= CPUSet.parse(step(node, pod)["cpuset"])


def test_sandbox_walks_with_its_containers(node: Report) -> None:
    """A sandbox's threads follow the union of its containers' CPUs when one starts and ends."""
    assert seen(node, "walk", "first").all() == A
    assert seen(node, "walk", "union").is_all_on(UNION)
    assert seen(node, "walk", "shrunk").is_all_on(A)


def test_vcpus_of_a_sandbox_get_one_cpu_each_when_they_are_as_many(node: Report) -> None:
    """Two hot-plugged vCPUs and the first ones get one CPU each, by index; other threads run on all CPUs."""
    found = seen(node, "walk", "one each")

    assert found.one_each() == list(UNION)
    assert {*found.others, *found.vhost, *found.iothreads.values()} == {str(UNION)}


@pytest.mark.parametrize("name", ["alone", "beside require", "beside many"])
def test_sandbox_without_claims_follows_the_shared_set(node: Report, name: str) -> None:
    """A sandbox without claims runs on the shared CPUs, and leaves those that other pods claim."""
    assert len(seen(node, "free", name).vcpus) == 16
    assert seen(node, "free", name).is_all_on(CPUSet.parse(step(node, "free", name)["shared"]))


def test_claims_leave_little_to_share(node: Report) -> None:
    """The shared set that the sandbox follows shrinks with the machines that claim CPUs."""
    alone, few, many = (
        CPUSet.parse(step(node, "free", name)["shared"])
        for name in ("alone", "beside require", "beside many")
    )

    assert [len(alone), len(few), len(many)] == [16, 4, 4]


def test_machine_is_pinned_inside_the_kubelet_s_cpus(node: Report) -> None:
    """On two cores that the kubelet assigned, each vCPU has its own CPU, and no thread leaves the cores."""
    fact = node.one("static")
    found, cpuset = Seen.of(fact["seen"]), CPUSet.parse(fact["cpuset"])
    cpus = found.one_each() or []

    assert len(cpuset) == 4
    assert whole_cores(cpuset) == cpuset == CPUSet(cpus)
    assert [CPUSet(pair) in CORES for pair in (cpus[:2], cpus[2:])] == [True, True]
    assert found.all() == cpuset
    assert len(found.vhost) == 1


def test_status_has_the_kubelets_cpus(node: Report) -> None:
    """The status says that the agent observes, which CPUs the kubelet assigned, and where each vCPU runs."""
    fact = node.one("static")

    assert fact["told"]["cpus"] == fact["cpuset"]
    assert fact["told"]["vcpus"] == fact["seen"]["vcpus"]
    assert fact["told"]["oneToOne"] is True
