"""Findings of `corepin doctor` about ResourceClaims."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.doctor.check import Verdict
from agent.doctor.checks import examine
from agent.doctor.claims import ClaimFacts, ClusterFacts, claim_checks
from pinning.machine.cpuset import CPUSet
from tests.agent.doctor.nodes import AGENT, FINE
from tests.pinning.nodes import smt_machine
from tests.tables import table

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
