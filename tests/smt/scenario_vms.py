"""Inside the guest: virtual machines of KubeVirt and Kata, and the CPUs on which the agent runs each thread."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

from pinning.contract import SMT_POLICY
from pinning.machine.cpuset import CPUSet
from tests.environments.guest.inside import WORK, ask, report
from tests.environments.guest.polling import wait_until
from tests.environments.vm.guests import Guest
from tests.environments.vm.kata.sandbox import WITHOUT_CPUSET
from tests.environments.vm.nodes import PERIOD, ContainerdNode, Manifests
from tests.environments.vm.pods import EXCLUSIVE
from tests.environments.vm.published_vm import published_vm
from tests.environments.vm.seen import Seen, see

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.environments.guest.inside import Node
    from tests.environments.vm.threads import Truth

A, UNION = CPUSet.parse("2-3"), CPUSet.parse("2-3,6-7")  # CPUs of one container, and of both


class Asking:
    """A client of the agent in the guest that only reads its state."""

    @staticmethod
    def state() -> Any:
        """Return the agent's state."""
        return ask()


def vms(node: Node) -> None:
    """Start virtual machines and report the masks of their threads, beside a sandbox without claims."""
    subprocess.run(["modprobe", "vhost_vsock"], check=True)
    pods = ContainerdNode(node.containerd, Asking(), Manifests(WORK / "pods"))
    free = sandbox_without_claims(pods)
    launchers(pods, free)
    walk_of_a_sandbox(pods)
    pods.remove("free")


def sandbox_without_claims(pods: ContainerdNode) -> Truth:
    """Start a sandbox without claims, in a cgroup without a cpuset."""
    machine = pods.sandbox("free", Guest(16, vsock=101), {"app": 0}, words={WITHOUT_CPUSET: "true"})
    pods.start("free", "app")
    truth = machine.truth()
    tell(pods, "free", "alone", until_seen(truth, lambda seen: seen.is_all_on(shared())))
    return truth


def launchers(pods: ContainerdNode, free: Truth) -> None:
    """Give KubeVirt's machines their own CPUs; no guest runs, so each is pinned half a minute after its creation."""
    isolate, require = ({f"{SMT_POLICY}/pod": policy} for policy in ("isolate", "require"))
    pairs = Guest(4, cores=2, threads=2, iothreads=("iothread1",), host_nodes=(0,), vsock=102)
    few = {
        "pairs": (pairs, EXCLUSIVE),
        "isolate": (Guest(2, vsock=103), isolate),
        "require": (Guest(3, vsock=104), require),
    }
    many = {"many": (Guest(12, cores=6, threads=2, vsock=105), EXCLUSIVE)}
    for guests in (few, many):
        machines = {name: pods.launch(name, *guest) for name, guest in guests.items()}
        for name, machine in machines.items():
            seen = until_seen(machine.truth(), lambda seen: seen.one_each() is not None)
            tell(pods, name, "placed", seen, cpuset=str(pods.compute(name).cpus))
        tell(pods, "free", f"beside {name}", until_seen(free, lambda seen: seen.is_all_on(shared())))
        for name in guests:
            pods.remove(name)


def walk_of_a_sandbox(pods: ContainerdNode) -> None:
    """Change the CPUs of a sandbox: those of one container, of two, one CPU for each vCPU, and of one again."""
    containers = {"a": 2, "gap": 2, "b": 2}  # the second one is never started and holds the CPUs in between
    machine = pods.sandbox("walk", Guest(2, most=4, vsock=106, iothreads=("io0",)), containers, EXCLUSIVE)
    pods.start("walk", "a", quota=2 * PERIOD)
    tell(pods, "walk", "first", until_seen(machine.truth(), lambda seen: seen.all() == A))
    pods.start("walk", "b", quota=2 * PERIOD)
    tell(pods, "walk", "union", until_seen(machine.truth(), lambda seen: seen.is_all_on(UNION)))
    with machine.talk() as talker:
        talker.plug(2)
    tell(pods, "walk", "one each", until_seen(machine.truth(), lambda seen: seen.one_each() is not None))
    pods.stop("walk", "b")
    tell(pods, "walk", "shrunk", until_seen(machine.truth(), lambda seen: seen.is_all_on(A)))
    pods.remove("walk")


def shared() -> CPUSet:
    """Return the shared set in the agent's state."""
    return CPUSet.parse((ask() or {})["sets"]["shared"])


def until_seen(truth: Truth, is_so: Callable[[Seen], bool]) -> Seen:
    """Poll until a condition holds or a timeout ends; the following report shows which."""
    seen: list[Seen] = []

    def is_seen() -> bool:
        seen.append(see(truth))
        return is_so(seen[-1])

    wait_until(is_seen)
    return seen[-1]


def tell(pods: ContainerdNode, pod: str, step: str, seen: Seen, **more: object) -> None:
    """Report the masks of a machine's threads, and the agent's status of the machine."""
    report(
        "vm",
        pod=pod,
        step=step,
        seen=seen.to_dict(),
        told=published_vm(pods.agent, pod),
        shared=str(shared()),
        **more,
    )
