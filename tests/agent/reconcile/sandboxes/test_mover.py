"""Containers in virtual machines (Kata): moving a whole machine, proving where it is, and updating the runtime."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from agent.errors import Refused, Unavailable
from agent.node_state import NodeState
from agent.node_state import Path as By
from agent.reconcile.sandboxes import LOST_SECONDS, NOT_FOUND
from agent.reconcile.vms import AFFINITY_ALONE, STILL_SENT
from agent.report.pod_status import pod_status
from pinning.contract import VMThreadsPolicy
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import State
from tests.agent.fakes import FakeNode
from tests.agent.reconcile.scenes import PLAIN, TWO, container, in_machine, machine_state, run_later
from tests.pinning.world import Wish

if TYPE_CHECKING:
    from tests.agent.reconcile.sandboxes.kata import KataMachine


LATER = 60.0


def test_machine_with_two_owners_has_the_cpus_of_both(node: FakeNode) -> None:
    """All threads run on the CPUs of both owners, each vCPU on one, and the runtime gets the union for both containers."""
    node.add("a", TWO, TWO, PLAIN)
    machine = node.kata.boot("a", vcpus=4)
    for name in ("c0", "c1", "c2"):
        node.start("a", name)
    state = node.run()

    assert machine.shown() == {
        "vcpu0": "1",
        "vcpu1": "2",
        "vcpu2": "5",
        "vcpu3": "6",
        **dict.fromkeys(("emulator", "iothread", "vhost"), "1-2,5-6"),
    }
    assert {str(cpus) for cpus in machine.told.values()} == {"1-2,5-6"}
    assert len(machine.told) == 3
    assert node.cgroups.writes == []
    for name, own in (("c0", "1,5"), ("c1", "2,6")):
        shown = container(state, "a", name)
        assert (str(shown.cpus), str(shown.sandbox.cpus), shown.is_pinned) == (own, "1-2,5-6", True)
        assert shown.intruders == ()
        assert shown.proof.path is By.AFFINITY
    assert str(container(state, "a", "c2").cpus) == "1-2,5-6"


def status_of(state: NodeState, before: str | None = None) -> dict[str, Any]:
    """Return the status annotation of pod a."""
    text = pod_status(next(pod for pod in state.pods if pod.uid == "a"), before)
    assert text is not None
    read: dict[str, Any] = json.loads(text)
    return read


def test_status_maps_vcpus_to_cpus_while_pinned_one_to_one(node: FakeNode) -> None:
    """The status has CPU, guest id and container of each vCPU, and a reason if vCPUs are not pinned one to one."""
    in_machine(node, "a", TWO, TWO, vcpus=4)
    second = node.start("a", "c1")
    status = status_of(node.run())
    assert status["vm"]["vcpus"] == ["1", "2", "5", "6"]
    assert status["vm"]["guest"][1] == {"socket": 1, "core": 0, "thread": 0}
    assert [status["containers"][name]["vcpus"] for name in ("c0", "c1")] == [[0, 2], [1, 3]]

    node.stop(second)
    status = status_of(node.run())
    assert (status["vm"]["vcpus"], status["vm"]["oneToOne"]) == (["1,5"] * 4, False)
    assert "4 vCPUs" in status["vm"]["reason"]
    assert "guest" not in status["vm"]
    assert "vcpus" not in status["containers"]["c0"]


def test_annotation_stays_when_only_the_shared_set_changes(node: FakeNode) -> None:
    """With `vmThreads: shared` the status does not change if only the shared set changes."""
    node.settings = replace(node.settings, config=replace(node.config, vm_threads=VMThreadsPolicy.SHARED))
    node.new_agent()
    in_machine(node, "a", TWO)
    before = status_of(node.run())
    assert before["containers"]["c0"]["applied"]["cpus"] == "1,5"
    node.deploy("b", TWO)
    node.time.now += LATER

    assert status_of(node.run(), json.dumps(before)) == before


def test_machine_shrinks_when_a_holder_ends_and_grows_again(node: FakeNode) -> None:
    """Threads leave the CPUs of a container that ends, and use them again when it restarts."""
    machine = in_machine(node, "a", TWO, TWO)
    second = node.start("a", "c1")
    node.run()
    node.stop(second)
    node.run()
    assert str(machine.cpus()) == "1,5"
    assert str(machine.cpuset) == "1-2,5-6"

    node.remove(second)
    node.run()
    assert str(machine.cpuset) == "1,5"

    node.start("a", "c1")
    node.run()
    assert str(machine.cpus()) == "1-2,5-6"


def test_machine_without_holders_follows_the_shared_set(node: FakeNode) -> None:
    """A machine without exclusive CPUs leaves CPUs that a new owner gets, and returns when the owner ends."""
    machine = in_machine(node, "k", PLAIN)
    node.run()
    node.add("a", TWO)
    node.owners = {node.cgroup(node.start("a")): CPUSet.parse("1,5")}
    machine.wrote = lambda: None  # stays on its CPUs until it leaves them
    node.run()
    assert set(machine.shown().values()) == {"0,2-4,6-7"}

    node.owners = {}
    node.add("a", Wish("2", policy="none"))
    node.run()
    assert set(machine.shown().values()) == {"0-7"}


def test_machine_without_containers_has_its_pods_cpus(node: FakeNode) -> None:
    """A machine without containers runs on the CPUs of its pod, or on the shared set if the pod has no claim."""
    node.add("a", TWO)
    claiming, plain = node.kata.boot("a"), node.kata.boot("k")
    node.add("k", PLAIN)
    node.run()

    assert str(claiming.cpus()) == "1,5"
    assert str(plain.cpus()) == "0,2-4,6-7"
    assert node.runtime.calls == []


def test_poll_and_sweep_do_not_apply_a_waiting_grant(node: FakeNode) -> None:
    """While another container cannot leave the CPUs of a grant, polls and sweeps do not move the machine there."""
    other = node.deploy("b", PLAIN)
    node.cgroups.errors[node.cgroup(other)] = Unavailable("EBUSY")
    machine = in_machine(node, "a", TWO)
    assert not container(node.run(), "a").is_pinned
    keeper = node.agent.reconciler.vms
    node.runner.run(keeper.poll())
    node.runner.run(keeper.sweep())
    assert str(machine.cpus()) == "0-7"

    node.cgroups.errors.clear()
    node.time.now += LATER
    assert container(node.run(), "a").is_pinned


def test_grant_waits_for_threads_that_only_a_full_look_finds(node: FakeNode) -> None:
    """A full read finds a new thread of the shim, which leaves the CPUs before another container gets them."""
    machine = in_machine(node, "k", PLAIN)
    node.run()
    machine.unseen = {"shim": CPUSet.parse("0-7")}
    node.deploy("a", TWO)
    state = node.run()

    assert machine.shown()["shim"] == "0,2-4,6-7"
    assert container(state, "a").is_pinned


def test_sweep_moves_stray_threads_back(node: FakeNode) -> None:
    """A sweep moves back a thread that is outside the machine's CPUs."""
    machine = in_machine(node, "a", TWO)
    node.run()
    machine.masks["iothread"] = CPUSet.parse("3")
    node.time.now += LATER
    node.runner.run(node.agent.reconciler.vms.sweep())

    assert str(machine.cpus()) == "1,5"


def test_vcpus_apart_from_the_other_threads(node: FakeNode) -> None:
    """With `vmThreads: shared` vCPUs run on the owned CPUs, and the other threads on the shared set."""
    node.settings = replace(node.settings, config=replace(node.config, vm_threads=VMThreadsPolicy.SHARED))
    node.new_agent()
    machine = in_machine(node, "a", TWO)
    state = node.run()
    assert machine.shown() == {
        "vcpu0": "1",
        "vcpu1": "5",
        **dict.fromkeys(("emulator", "iothread", "vhost"), "0,2-4,6-7"),
    }
    assert str(machine.cpuset) == "0-7"
    assert container(state, "a").is_pinned

    node.deploy("b", TWO)
    node.run()
    assert machine.shown()["emulator"] == "0,3-4,7"
    node.add("a", Wish("2", policy="none"))
    node.run()
    assert set(machine.shown().values()) == {"0-1,3-5,7"}


def test_unidentified_vcpus_stay_on_the_owned_cpus(node: FakeNode) -> None:
    """If vCPU threads cannot be identified, all threads stay on the owned CPUs."""
    node.settings = replace(node.settings, config=replace(node.config, vm_threads=VMThreadsPolicy.SHARED))
    node.new_agent()
    machine = in_machine(node, "a", TWO, has_known_vcpus=False)
    node.run()

    assert set(machine.shown().values()) == {"1,5"}


@pytest.mark.parametrize("forgets", [False, True])
def test_masks_hold_on_every_kernel(node: FakeNode, forgets: bool) -> None:
    """After a pass the affinities are right also on kernels that reset them at a cpuset write."""
    machine = in_machine(node, "a", TWO, TWO, vcpus=4, forgets=forgets)
    second = node.start("a", "c1")
    node.run()
    node.stop(second)
    node.run()
    node.remove(second)
    node.run()

    assert set(machine.shown().values()) == {"1,5"}


def test_new_container_is_sent_the_machines_cpus(node: FakeNode) -> None:
    """When a sidecar starts later, the agent moves no thread, and sends the runtime the machine's CPUs for it."""
    machine = in_machine(node, "a", TWO, PLAIN)
    node.run()
    late = node.start("a", "c1", State.CREATED)
    node.run(passes=2)

    assert str(machine.told[late]) == "1,5"
    assert len([call for call in node.runtime.calls if call[0] == late]) == 1


def test_too_narrow_machine_cgroup_is_a_failure(node: FakeNode) -> None:
    """If the cgroup of a machine is too narrow, the machine counts as failed and is retried after the backoff."""
    node.add("a", TWO)
    machine = node.kata.boot("a")
    number = node.start("a")
    node.runtime.lost = 1
    machine.cpuset = CPUSet.parse("1")
    assert node.run().failures == ("test/pod-a",)
    assert machine.shown()["vcpu1"] == "1"

    node.runtime.lost = 0
    node.run()
    assert machine.shown()["vcpu1"] == "1"
    state = run_later(node, LATER)
    assert container(state, "a").is_pinned
    assert state.failures == ()
    assert machine.shown()["vcpu1"] == "5"
    assert str(machine.told[number]) == "1,5"


def test_container_that_the_runtime_refuses_keeps_no_thread_back(node: FakeNode) -> None:
    """If the runtime refuses an update, the agent still moves the threads, and retries the update."""
    node.add("k", PLAIN)
    machine = node.kata.boot("k")
    number = node.start("k")
    node.runtime.errors[number] = Refused("no")
    node.deploy("a", TWO)
    state = node.run()
    assert container(state, "a").is_pinned
    assert str(machine.cpus()) == "0,2-4,6-7"
    assert "test/pod-k" in state.failures

    node.runtime.errors.clear()
    node.time.now += LATER
    assert node.run().failures == ()
    assert str(machine.told[number]) == "0,2-4,6-7"


def test_machine_that_is_not_found_is_not_reported_as_pinned(node: FakeNode) -> None:
    """A machine that the agent does not find is updated through the runtime, and not reported as pinned."""
    node.add("a", TWO)
    node.kata.boot("a")
    number = node.start("a")
    node.kata.lost = frozenset({"s-a"})
    state = node.run(passes=3)

    assert node.runtime.calls == [(number, "1,5")]
    assert not container(state, "a").is_pinned
    assert machine_state(state).reason == NOT_FOUND


def test_machine_that_cannot_be_moved_delays_others_for_a_limited_time(node: FakeNode) -> None:
    """If neither affinities nor the runtime move a machine, other containers get their CPUs after LOST_SECONDS."""
    in_machine(node, "k", PLAIN, has_quota=False)
    node.kata.lost = frozenset({"s-k"})
    node.run()
    node.time.now += LOST_SECONDS
    node.deploy("a", TWO)

    assert container(node.run(), "a").is_pinned
    assert [number for number, _ in node.runtime.calls if number.startswith("k")] == []


def test_other_machine_on_its_cpus_is_an_intruder(node: FakeNode) -> None:
    """Another machine with a thread on the owner's CPUs is reported as an intruder."""
    node.add("a", TWO)
    node.add("k", PLAIN)
    node.start("a")
    machine = node.kata.boot("k")
    node.start("k")
    node.run()
    machine.masks = dict.fromkeys(machine.masks, CPUSet.parse("1"))
    node.kata.is_stuck = True
    node.runtime.lost = 9

    assert container(node.run(), "a").intruders == ("test/pod-k/c0",)


def test_uninstall_gives_machines_every_cpu(node: FakeNode) -> None:
    """After a reset every thread may use every CPU."""
    machine = in_machine(node, "a", TWO)
    node.run()

    async def reset() -> None:
        sync = asyncio.create_task(node.agent.reconciler.runtime_sync.run())
        await node.agent.reconciler.reset()
        sync.cancel()

    node.runner.run(reset())
    assert set(machine.shown().values()) == {"0-7"}


def test_restarted_agent_updates_the_runtime_once(node: FakeNode) -> None:
    """A restarted agent sends each cpuset to the runtime once, and moves no thread."""
    machine = in_machine(node, "a", TWO)
    node.run()
    before = machine.shown()
    node.new_agent()
    node.runtime.calls.clear()
    node.run(passes=3)

    assert machine.shown() == before
    assert len(node.runtime.calls) == 1


def test_io_thread_that_a_pass_finds_elsewhere_is_put_back_by_that_pass(node: FakeNode) -> None:
    """A pass that finds an I/O thread on wrong CPUs moves it back, because polls compare only with what a pass read."""
    machine = in_machine(node, "a", TWO)
    before = machine_state(node.run(passes=2))
    assert list(map(str, before.vcpus)) == ["1", "5"]

    machine.masks["iothread"] = CPUSet.parse("1")
    state = node.run()

    assert machine_state(state) == before
    assert str(machine.allowed("iothread")) == "1,5"


def test_without_a_quota_the_runtime_is_sent_no_cpuset(node: FakeNode) -> None:
    """Without a quota the agent sends the runtime no cpuset, and the state notes that only affinities confine the machine."""
    machine = in_machine(node, "a", TWO, has_quota=False)
    state = node.run()

    assert node.runtime.calls == []
    assert str(machine.cpus()) == "1,5"
    assert container(state, "a").is_pinned
    assert machine_state(state).note == AFFINITY_ALONE


def without_its_limit(node: FakeNode) -> tuple[KataMachine, str]:
    """Run a machine whose only container with a quota has ended; return the machine and the remaining container."""
    node.add("a", TWO, PLAIN)
    machine = node.kata.boot("a")
    ended, left = node.start("a", "c0"), node.start("a", "c1")
    node.run()
    assert set(map(str, machine.told.values())) == {"1,5"}
    node.stop(ended)
    node.remove(ended)
    machine.has_quota = False
    assert str(machine.cpus()) == "1,5"  # the union of the cpusets sent for containers that still exist
    return machine, left


def test_runtime_that_took_cpusets_is_still_updated(node: FakeNode) -> None:
    """If the runtime got cpusets before the container with a quota ended, the agent still sends them, with a note."""
    machine, left = without_its_limit(node)
    state = node.run(passes=2)

    assert str(machine.told[left]) == str(machine.cpus()) == "0,2-4,6-7"
    assert machine_state(state).note == STILL_SENT
    assert state.failures == ()


def test_accepted_cpuset_is_recognized_after_a_restart(node: FakeNode) -> None:
    """A restarted agent detects that the runtime accepted a cpuset, because threads cannot leave it."""
    machine, left = without_its_limit(node)
    node.agent = node.new_agent()
    state = node.run(passes=2)

    assert str(machine.told[left]) == str(machine.cpus()) == "0,2-4,6-7"
    assert state.failures == ()


def test_fixed_machine_is_sent_no_quota(node: FakeNode) -> None:
    """If a machine has a fixed number of vCPUs, the agent sends its cpusets even without a quota."""
    machine = in_machine(node, "a", TWO, has_quota=False, is_fixed=True)
    node.run()

    assert str(machine.cpuset) == "1,5"
