"""The names that scripts may rely on: where they are, and what they do together."""

from __future__ import annotations

import pytest

from pinning.allocation import place, take_cpus
from pinning.errors import NotEnoughCPUs
from pinning.machine.cpuset import CPUSet
from pinning.machine.topology import Topology
from pinning.planning.ledger import Ledger
from pinning.planning.node_config import DEFAULT
from pinning.planning.observed import Observed, SeenPod
from pinning.planning.plan import plan
from pinning.pods.claims import read_pod
from tests.machines import captured
from tests.pods import CPU_MANAGER, container, pod


def test_scripts_find_the_names_that_they_were_promised() -> None:
    """The names that are promised to scripts lead from lscpu's output and a pod to its CPUs."""
    topology = captured("xeon-d-1541")
    assert isinstance(topology, Topology)
    assert (
        take_cpus(topology, topology.online, 2) == place(topology, topology.online, 2).cpus == CPUSet([0, 8])
    )
    with pytest.raises(NotEnoughCPUs):
        take_cpus(topology, topology.online, 17)

    document = pod(container("main", "2"), annotations={CPU_MANAGER: "exclusive"})
    assert [claim.count for claim in read_pod(document).claims] == [2]
    observed = Observed(topology, topology.online, (SeenPod.of(document),))
    assert [str(held.cpus) for held in plan(observed, Ledger(), DEFAULT).ledger] == ["1,9"]
