"""Findings of `corepin doctor` about the kubelet's topology manager."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.doctor.check import Verdict
from agent.doctor.checks import Facts, examine
from agent.doctor.devices import DeviceFacts
from agent.doctor.facts import agent_facts
from agent.node_state import NodeState
from agent.serve.state_json import agent_state
from pinning.machine.cpuset import CPUSet
from pinning.machine.near import DeviceKind
from tests.agent.doctor.nodes import AGENT, BARE, FINE
from tests.agent.states import EXCLUSIVE, bound, state_of
from tests.pods import container

SUBJECT = "topology manager"
ONE = {"a/b/c": ("nvidia.com/gpu",)}
SEVERAL = {**ONE, "a/b/d": ("example.com/nic", "nvidia.com/gpu")}


@pytest.mark.parametrize(
    ("policy", "verdict", "message"),
    [
        pytest.param("none", Verdict.OK, "policy none: the devices of a/b/d, which are", id="none"),
        pytest.param("", Verdict.UNKNOWN, "its policy is not known: the devices of a/b/d", id="not asked"),
        pytest.param("later", Verdict.UNKNOWN, "policy 'later' is not known here", id="a later kubelet's"),
        pytest.param("best-effort", Verdict.OK, "policy best-effort: the kubelet puts", id="best effort"),
        pytest.param("restricted", Verdict.OK, "rejects pods of every QoS class", id="restricted"),
        pytest.param("single-numa-node", Verdict.OK, "rejects pods of every QoS class", id="single"),
    ],
)
def test_what_the_policy_means(policy: str, verdict: Verdict, message: str) -> None:
    """For containers with devices of several kinds, each policy has one line; the remedy is `best-effort`."""
    agent = replace(AGENT, devices=DeviceFacts(policy, SEVERAL))
    (check,) = (it for it in examine(replace(FINE, agent=agent)) if it.subject == SUBJECT)
    assert check.verdict is verdict
    assert message in check.message
    assert ("best-effort" in check.remedy) is (policy != "best-effort")


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(BARE, id="no agent"),
        pytest.param(FINE, id="no devices"),
        pytest.param(
            replace(FINE, agent=replace(AGENT, devices=DeviceFacts("none", ONE))), id="one kind each"
        ),
    ],
)
def test_nothing_is_said_without_need(facts: Facts) -> None:
    """Without devices that can be on different NUMA nodes there is no check."""
    assert not [check for check in examine(facts) if check.subject == SUBJECT]


def test_policy_and_devices_come_from_the_agents_state() -> None:
    """The facts have the kubelet's policy and the containers with devices from the agent's state."""
    state = state_of(bound("a", container("main", 1), annotations=EXCLUSIVE))
    kind = DeviceKind("nvidia.com/gpu", 1, CPUSet([0]), near=True)
    pods = tuple(
        replace(pod, containers=tuple(replace(it, devices=(kind,)) for it in pod.containers))
        for pod in state.pods
    )
    assert agent_facts(agent_state(state)).devices == DeviceFacts("", {})
    known: NodeState = replace(state, pods=pods, topology_manager="none")
    assert agent_facts(agent_state(known)).devices == DeviceFacts(
        "none", {"default/a/main": ("nvidia.com/gpu",)}
    )
