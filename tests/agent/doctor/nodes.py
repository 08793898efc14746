"""Facts of a node without findings, and of one of which little is known."""

from __future__ import annotations

from collections import Counter

from agent.doctor.checks import AgentFacts, Facts, ForeignThreads
from agent.doctor.nri import AgentNRI, Socket
from pinning.contract import KubeletPolicy
from pinning.machine.cpuset import CPUSet
from tests.agent.states import MACHINE

AGENT = AgentFacts(
    CPUSet([1, 2, 3]), CPUSet([0]), CPUSet([2]), runtime="containerd 2.4.2", nri=AgentNRI(holds=True)
)
FINE = Facts(
    kubelet=KubeletPolicy.NONE,
    kubelet_runs=True,
    topology=MACHINE,
    agent=AGENT,
    kubelet_millicores=3000,
    runtime="containerd 2.4.2",
    nri=Socket.ANSWERS,
    is_guarded=True,
    cgroup_version=2,
    cgroup_writable=True,
    pod_roots=("/kubepods.slice", "/kubepods"),
    pod_root="/kubepods",
    foreign_threads=ForeignThreads({}, Counter({"ksoftirqd/2": 4})),
)
BARE = Facts(KubeletPolicy.UNKNOWN, kubelet_runs=False, missing={"agent": "nobody listens"})
