"""The checks of scheduling by NUMA node."""

from __future__ import annotations

from agent.doctor.check import Verdict
from agent.doctor.numa import NUMAFacts, ZoneFacts, numa_checks
from tests.tables import table

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
