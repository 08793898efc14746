"""Pods of a real kubelet on the reserved CPUs and off them, over NRI: in the kernel, from the first instruction on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinning.machine.cpuset import CPUSet
from tests.environments.node.node import pod, until_nri
from tests.environments.waiting import until_equal
from tests.node.starts.over_nri import agent_over_nri, lines, restart

if TYPE_CHECKING:
    from tests.environments.node.node import Node

PODS = 8


def test_system_pods_have_the_reserved_cpus_and_others_the_rest(node: Node) -> None:
    """System pods run on the reserved CPUs; under a strict reserve other pods never do."""
    file = node.agent.directory / "reserved.yaml"
    file.write_text("strictReserved: true\nsystemNamespaces: [def*]\n")
    with agent_over_nri(node, "--config", str(file)):
        reserved = CPUSet.parse(node.agent.state()["sets"]["reserved"])
        names = [f"system-{number}" for number in range(PODS)]
        containers = node.run(*(pod(name, wanted=str(reserved)) for name in names))
        for name in names:
            until_equal(f"log of {name}", lambda name=name: lines(node, name), [str(reserved)])  # type: ignore[misc]
        node.settled(dict.fromkeys(containers, reserved))

        file.write_text("strictReserved: true\n")
        restart(node, node.agent.flags)
        until_nri(node.agent)
        others = node.all - reserved
        node.settled(dict.fromkeys(containers, others))
        names = [f"plain-{number}" for number in range(PODS)]
        containers += node.run(*(pod(name, wanted=str(others)) for name in names))
        for name in names:
            until_equal(f"log of {name}", lambda name=name: lines(node, name), [str(others)])  # type: ignore[misc]
        node.settled(dict.fromkeys(containers, others))
