"""A planned node with the agent's NRI plugin."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent.nri.plugin import Plugin
from agent.nri.wire import Event
from pinning.planning.start_table import StartTable, start_table
from tests.agent.nri.fake_runtime import container, known, known_pod, pod
from tests.pinning.world import Wish, World, world

if TYPE_CHECKING:
    from agent.nri.wire import nri_pb2 as pb
    from pinning.machine.cpuset import CPUSet

A, B = pod("a"), pod("b")


@dataclass
class Node:
    """A planned node with its plugin; pod `a` has the uid `uid-a` in the API and in the runtime."""

    world: World
    now: float = 0.0
    put: list[tuple[int, str]] = field(default_factory=list)  # pid, and CPUs to which its threads were moved
    is_settled: bool = True  # whether all threads could be moved
    is_on_host: bool = True  # whether the host has the containers' cgroups
    plugin: Plugin = field(init=False)

    def __post_init__(self) -> None:
        self.plugin = Plugin(
            lambda handler: "kata" in handler, lambda: self.now, self.move, lambda _: self.is_on_host
        )
        self.publish()

    def move(self, pid: int, cpus: CPUSet) -> bool:
        """Record to which CPUs a process is moved."""
        self.put.append((pid, str(cpus)))
        return self.is_settled

    def publish(self) -> StartTable:
        """Plan and publish the table, as after all writes of the plan."""
        self.world.run_all()
        planned = self.world.plan()
        table = start_table(planned, self.world.observe())
        self.plugin.table = table
        return table

    def begin(self, of: pb.PodSandbox, *, pid: int) -> None:
        """Report the start of a pod's container with its first process."""
        started = container("c0", of.name)
        started.pid = pid
        self.plugin.event(Event.START_CONTAINER, known_pod(of), known(started))

    def cpus(self, of: pb.PodSandbox, name: str = "c0") -> str:
        """Create a container and return its cpuset."""
        answer = self.plugin.create_container(of, container(name, of.name))
        return answer.adjust.linux.resources.cpu.cpus


def node_with(wish: Wish) -> Node:
    """Return a node of 4 cores on which pod `a` holds the core 1,5."""
    node = world(4)
    node.add("uid-a", [wish])
    return Node(node)
