"""The checks of scheduling: NUMA nodes, CPUs beside devices, the topology manager, and claims."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.doctor.check import Verdict
from agent.doctor.checks import Facts, examine
from agent.doctor.claims import ClaimFacts, ClusterFacts, claim_checks
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
from tests.pinning.nodes import smt_machine
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


CLASSES = frozenset({"cpu.corepin.io", "dra.cpu"})
GOOD = ClusterFacts(drivers={"cpu.corepin.io": 14}, kubelet="v1.37.1", classes=CLASSES)
HERE = ClaimFacts(is_wanted=True, is_listening=True, cluster=GOOD)


def said(
    facts: ClaimFacts, *, has_room: bool | None = True, observes: bool = False
) -> list[tuple[Verdict, str]]:
    """Return verdicts and messages."""
    checks = list(claim_checks(facts, has_room=has_room, observes=observes))
    assert all(check.remedy for check in checks if check.verdict is not Verdict.OK)
    return [(check.verdict, check.message) for check in checks]


def test_good_node_has_one_line() -> None:
    """A node without problems has one line with the number of CPUs for claims that the scheduler sees."""
    message = "the scheduler sees 14 CPUs of this node, including those that claims hold"
    assert said(HERE) == [(Verdict.OK, message)]


def test_nothing_is_said_where_the_agent_is_no_driver() -> None:
    """Without the claims component the doctor prints no line about claims."""
    assert said(ClaimFacts()) == []


def test_observing_agent_serves_none() -> None:
    """If the agent only observes, the doctor reports that it serves no claims, without a finding."""
    assert said(HERE, observes=True) == [
        (Verdict.OK, "no claims are served, because corepin only observes here")
    ]


@table(
    "facts, verdict, message",
    {
        "folder": (
            HERE._replace(absent_folders=("/var/lib/kubelet/plugins",), is_listening=False),
            Verdict.FINDING,
            "no folder /var/lib/kubelet/plugins for the driver's socket",
        ),
        "socket": (HERE._replace(is_listening=False), Verdict.FINDING, "does not listen for the kubelet"),
        "CDI folder": (
            HERE._replace(cdi_folder="/var/run/cdi"),
            Verdict.FINDING,
            "CDI folder /var/run/cdi cannot be written",
        ),
        "mute": (HERE._replace(cluster=None, silence="no way"), Verdict.UNKNOWN, "not known (no way)"),
        "API server of 1.30": (
            HERE._replace(cluster=ClusterFacts(has_group=False)),
            Verdict.FINDING,
            "does not serve resource.k8s.io/v1",
        ),
        "old kubelet": (
            HERE._replace(cluster=GOOD._replace(kubelet="v1.30.14")),
            Verdict.FINDING,
            "kubelet v1.30.14 accepts no driver of this version",
        ),
        "gate off": (
            HERE._replace(cluster=GOOD._replace(drivers={})),
            Verdict.FINDING,
            "no CPUs of this node are published, although claims hold cores or could get free ones",
        ),
        "second driver": (
            HERE._replace(cluster=GOOD._replace(drivers={"dra.cpu": 16, "cpu.corepin.io": 14})),
            Verdict.FINDING,
            "driver dra.cpu offers the CPUs of this node too",
        ),
        "class": (
            HERE._replace(cluster=GOOD._replace(classes=CLASSES - {"cpu.corepin.io"})),
            Verdict.FINDING,
            "there is no DeviceClass cpu.corepin.io",
        ),
        "upstream's class": (
            HERE._replace(cluster=GOOD._replace(classes=CLASSES - {"dra.cpu"})),
            Verdict.OK,
            "there is no DeviceClass dra.cpu, which KubeVirt",
        ),
    },
)
def test_problem_has_its_words_and_a_remedy(facts: ClaimFacts, verdict: Verdict, message: str) -> None:
    """Each problem has one line, with its own verdict and message."""
    assert [found for found, words in said(facts) if message in words] == [verdict]


@pytest.mark.parametrize("version", ["", "v1.36.0", "v1.37.1+k3s1", "built by hand"])
def test_versions_that_suffice_or_cannot_be_read_are_no_finding(version: str) -> None:
    """A sufficient or unparsable kubelet version is no finding, and neither are DeviceClasses that cannot be listed."""
    facts = HERE._replace(cluster=GOOD._replace(kubelet=version, classes=None))
    assert [verdict for verdict, _ in said(facts)] == [Verdict.OK]


@pytest.mark.parametrize(
    ("has_room", "verdict", "message"),
    [
        pytest.param(False, Verdict.OK, "containers without claims hold every core", id="held"),
        pytest.param(None, Verdict.UNKNOWN, "every core is held, or a feature gate is off", id="no agent"),
    ],
)
def test_node_whose_cores_are_held_has_nothing_to_fix(
    has_room: bool | None, verdict: Verdict, message: str
) -> None:
    """A node without slices passes if all its cores are held; without an agent's state the check is unknown."""
    ((found, words),) = said(HERE._replace(cluster=GOOD._replace(drivers={})), has_room=has_room)
    assert found is verdict
    assert message in words


def test_node_whose_cores_are_held_by_claims_has_to_publish_them() -> None:
    """A node whose cores are all held by claims must still publish slices: otherwise the scheduler sees no driver."""
    machine = smt_machine(2)
    held = machine.siblings_of(CPUSet([1]))
    agent = replace(
        AGENT,
        allocatable=held,
        reserved=machine.online - held,
        exclusive=held,
        shared=machine.online - held,
        claimable=held,
        claimed=held,
    )
    claims = HERE._replace(cluster=GOOD._replace(drivers={}))
    facts = replace(FINE, topology=machine, agent=agent, claims=claims)
    assert [it.verdict for it in examine(facts) if it.subject == "claims"] == [Verdict.FINDING]


@pytest.mark.parametrize(
    ("held", "reserved", "verdict"),
    [
        pytest.param(range(1), (), Verdict.FINDING, id="cores are free"),
        pytest.param(range(1, 3), (), Verdict.OK, id="the last core is left to the shared set"),
        pytest.param(range(1, 3), (0,), Verdict.OK, id="all of them are held"),
        pytest.param(range(2, 3), (0,), Verdict.FINDING, id="one is free beside the reserved one"),
    ],
)
def test_cores_that_claims_could_get_are_counted_as_the_agent_counts_them(
    held: range, reserved: tuple[int, ...], verdict: Verdict
) -> None:
    """The last core is no missing device if no reserved core would remain in the shared set."""
    machine = smt_machine(3)
    every = machine.online
    kept = machine.siblings_of(CPUSet(reserved))
    exclusive = machine.siblings_of(CPUSet(held))
    agent = replace(
        AGENT,
        allocatable=every - kept,
        reserved=kept,
        exclusive=exclusive,
        shared=every - exclusive,
        claimable=every - kept,
    )
    claims = HERE._replace(cluster=GOOD._replace(drivers={}))
    facts = replace(FINE, topology=machine, agent=agent, claims=claims)
    assert [it.verdict for it in examine(facts) if it.subject == "claims"] == [verdict]
    unknown = examine(replace(facts, topology=None))
    assert [it.verdict for it in unknown if it.subject == "claims"] == [Verdict.UNKNOWN]
