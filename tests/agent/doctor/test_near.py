"""Findings of `corepin doctor` about the CPUs that schedulers count beside devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.doctor.check import Verdict
from agent.doctor.checks import Facts, examine
from agent.doctor.devices import NO_DEVICES, DeviceFacts
from agent.doctor.facts import agent_facts
from agent.doctor.near import NearFacts, near_checks
from agent.doctor.numa import NUMAFacts, ZoneFacts, numa_checks
from agent.node_state import NodeState
from agent.serve.state_json import agent_state
from pinning.machine.cpuset import CPUSet
from pinning.machine.near import DeviceKind
from tests.agent.doctor.nodes import AGENT, BARE, FINE
from tests.agent.states import EXCLUSIVE, bound, state_of
from tests.pods import container
from tests.tables import table

GPU = {"near.corepin.io/nvidia.com.gpu": "6"}
TWO = {**GPU, "near.corepin.io/example.com.nic": "0"}
HELD = DeviceFacts("none", {"a/b/c": ("nvidia.com/gpu",)})


@pytest.mark.parametrize(
    ("facts", "devices", "observes", "verdict", "message"),
    [
        pytest.param(
            NearFacts(is_wanted=True, counts=TWO),
            NO_DEVICES,
            False,
            Verdict.OK,
            "near.corepin.io/example.com.nic 0, near.corepin.io/nvidia.com.gpu 6",
            id="published",
        ),
        pytest.param(
            NearFacts(is_wanted=True, counts={}), NO_DEVICES, False, Verdict.OK, "no device plugin", id="none"
        ),
        pytest.param(
            NearFacts(is_wanted=True, counts={}), HELD, False, Verdict.FINDING, "publishes no CPUs", id="lost"
        ),
        pytest.param(
            NearFacts(is_wanted=True, counts=GPU), HELD, True, Verdict.OK, "only observes", id="observed"
        ),
        pytest.param(
            NearFacts(is_wanted=True, silence="no way"), HELD, False, Verdict.UNKNOWN, "(no way)", id="mute"
        ),
    ],
)
def test_numbers_are_listed_or_missed(
    facts: NearFacts, devices: DeviceFacts, observes: bool, verdict: Verdict, message: str
) -> None:
    """The check shows the published numbers; missing numbers are a finding if containers have devices."""
    [check] = near_checks(facts, devices, observes=observes)
    assert check.verdict is verdict
    assert message in check.message
    assert bool(check.remedy) is (verdict is not Verdict.OK)


@pytest.mark.parametrize(
    ("policy", "counts", "advised"),
    [
        pytest.param("none", TWO, True, id="any device is taken"),
        pytest.param("none", GPU, False, id="one kind"),
        pytest.param("best-effort", TWO, False, id="the lowest node is taken"),
        pytest.param("", TWO, False, id="not known"),
    ],
)
def test_best_effort_is_advised_where_several_kinds_are_given_out(
    policy: str, counts: dict[str, str], advised: bool
) -> None:
    """`best-effort` is advised under `none` only, where each number is the minimum over several NUMA nodes."""
    [check] = near_checks(NearFacts(is_wanted=True, counts=counts), DeviceFacts(policy, {}), observes=False)
    assert ("best-effort" in check.remedy) is advised


def test_nothing_is_said_where_no_numbers_are_published() -> None:
    """There is no check if the feature is off, which is the default, with or without an agent's state."""
    subjects = [check.subject for check in examine(FINE)]
    assert "CPUs near devices" not in subjects
    for agent in (None, replace(AGENT, observes=True)):
        facts = replace(FINE, agent=agent, near=NearFacts(is_wanted=True, counts=GPU))
        assert "CPUs near devices" in [check.subject for check in examine(facts)]


OURS = ZoneFacts(is_ours=True, cpus={"node-0": ("2", "6"), "node-1": ("8", "8")})
FOREIGN = ZoneFacts(is_ours=False, cpus={})


@table(
    "facts, observes, verdict, message",
    {
        "published": (
            NUMAFacts(is_wanted=True, zones=OURS),
            False,
            Verdict.OK,
            "may place 2 of 6 CPUs of node-0, 8 of 8 CPUs of node-1",
        ),
        "absent": (NUMAFacts(is_wanted=True), False, Verdict.FINDING, "has no NodeResource"),
        "observed": (NUMAFacts(is_wanted=True), True, Verdict.OK, "only observes"),
        "foreign": (NUMAFacts(is_wanted=True, zones=FOREIGN), True, Verdict.FINDING, "another program"),
        "mute": (NUMAFacts(is_wanted=True, silence="no way"), False, Verdict.UNKNOWN, "not known (no way)"),
    },
)
def test_numa_check_has_the_published_cpus_or_a_remedy(
    facts: NUMAFacts, observes: bool, verdict: Verdict, message: str
) -> None:
    """The check has the published CPUs, or why none are published and a remedy."""
    [check] = numa_checks(facts, observes=observes)
    assert check.verdict is verdict
    assert message in check.message
    assert bool(check.remedy) is (verdict is not Verdict.OK)


def test_without_the_component_there_is_no_numa_check() -> None:
    """Without the component there is no check."""
    assert not list(numa_checks(NUMAFacts(), observes=False))


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
