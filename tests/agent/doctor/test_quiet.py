"""The checks of quiet CPUs: irqbalance, foreign writes, managed interrupts, and nodes without any."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent.doctor.checks import Facts, ForeignThreads, examine
from agent.doctor.facts import agent_facts
from agent.doctor.quiet import quiet_checks
from agent.node_state import KeptInterrupts, QuietResult
from agent.node_state import QuietPart as PartResult
from agent.quiet.counters import Row
from agent.quiet.noise import Noise
from agent.serve.state_json import agent_state
from pinning.contract import QuietWord
from pinning.machine.cpuset import CPUSet
from published import agent_state as published
from published.agent_state import Quiet, QuietPart
from tests.agent.doctor.nodes import AGENT, FINE
from tests.agent.states import EXCLUSIVE, bound, owner, state_of

SILENT = "irqbalance runs and does not answer: /run/irqbalance/irqbalance7.sock: no answer in time"


@pytest.mark.parametrize(
    "quiet",
    [
        pytest.param(None, id="the agent moves none"),
        pytest.param(Quiet(), id="no pod asks"),
        pytest.param(Quiet(reason="not done yet"), id="no round yet"),
    ],
)
def test_without_quiet_cpus_there_is_no_check(quiet: Quiet | None) -> None:
    """Without quiet CPUs, or before the first round, there is no check."""
    assert list(quiet_checks(quiet)) == []


def test_unavailable_irqbalance_is_a_finding_with_its_setting() -> None:
    """The remedy has the line for irqbalance's configuration, and the key that makes the agent ignore irqbalance."""
    (check,) = quiet_checks(Quiet("4-5", SILENT, irqbalance=SILENT))
    assert (check.subject, check.verdict) == ("quiet CPUs", "finding")
    assert check.message == f"no interrupt is moved: {SILENT}"
    assert check.remedy.startswith("write IRQBALANCE_BANNED_CPULIST=4-5 into irqbalance's file")
    assert "quiet.irqbalance: ignore" in check.remedy


def test_each_foreign_write_is_a_finding() -> None:
    """The finding names the interrupt that another program moves back."""
    checks = list(quiet_checks(Quiet("4-5", "another program", (), ("25 (eth0)", "26 (eth1)"))))
    assert [(check.verdict, check.message.partition(" back")[0]) for check in checks] == [
        ("finding", "another program keeps moving interrupt 25 (eth0)"),
        ("finding", "another program keeps moving interrupt 26 (eth1)"),
    ]


def test_other_reasons_are_findings() -> None:
    """Other reasons, such as too few CPUs for interrupts, are findings."""
    (check,) = quiet_checks(Quiet("1-3", "interrupts need 2 online CPUs that are not quiet"))
    assert check.verdict == "finding"
    assert check.message == "interrupts may use CPUs 1-3: interrupts need 2 online CPUs that are not quiet"


def test_interrupts_that_the_operator_leaves_are_no_finding() -> None:
    """The agent's state distinguishes interrupts that the operator leaves from those that could not be moved."""
    result = QuietResult(CPUSet([2]), "quiet.interrupts is off", is_off=True)
    (check,) = quiet_checks(agent_state(replace(state_of(), quiet=result)).quiet)
    assert (check.verdict, check.message) == (
        "ok",
        "interrupts may use CPUs 2, as configured: quiet.interrupts is off",
    )


def test_managed_interrupts_are_no_finding() -> None:
    """The check passes and names them, with the remedy to run their I/O elsewhere."""
    moved, managed = quiet_checks(Quiet("4-5", managed=("30 (nvme0q4)", "31 (nvme0q5)")))
    assert (moved.verdict, moved.message) == ("ok", "interrupts are kept off CPUs 4-5")
    assert (managed.subject, managed.verdict) == ("managed interrupts", "ok")
    assert managed.message.startswith("the kernel alone places 30 (nvme0q4), 31 (nvme0q5)")
    assert managed.remedy


def test_checks_are_made_from_the_agents_state() -> None:
    """The result of a round reaches the checks through the agent's state."""
    result = QuietResult(CPUSet([2]), SILENT, irqbalance=SILENT)
    quiet = agent_facts(agent_state(replace(state_of(), quiet=result))).quiet
    assert quiet == Quiet("2", SILENT, irqbalance=SILENT)
    checks = examine(replace(FINE, agent=replace(AGENT, quiet=quiet)))
    assert [check.verdict for check in checks if check.subject == "quiet CPUs"] == ["finding"]
    assert not [check for check in examine(FINE) if check.subject == "quiet CPUs"]


@pytest.mark.parametrize(
    ("part", "verdict", "message"),
    [
        pytest.param({}, "ok", "workqueues are kept off CPUs 2", id="done"),
        pytest.param({"reason": "busy"}, "finding", "workqueues are not kept off CPUs 2: busy", id="refused"),
        pytest.param(
            {"reason": "another program", "conflicts": ("the mask",)},
            "finding",
            "another program keeps changing the mask back to CPUs 2",
            id="conflict",
        ),
    ],
)
def test_parts_beside_interrupts_have_their_checks(part: Any, verdict: str, message: str) -> None:
    """Each part other than interrupts has its own line, made from the agent's state."""
    result = QuietResult(CPUSet([2]), parts=(PartResult(QuietWord.WORKQUEUES, **part),))
    quiet = agent_state(replace(state_of(), quiet=result)).quiet
    assert quiet
    assert quiet.parts == (QuietPart(name="workqueues", **part),)
    _, check = quiet_checks(quiet)
    assert (check.subject, check.verdict, check.message) == ("quiet parts", verdict, message)


@pytest.mark.parametrize(
    ("fully", "messages"),
    [
        pytest.param("3", ["workqueues are kept off CPUs 3"], id="some"),
        pytest.param("", [], id="none"),
    ],
)
def test_parts_are_checked_on_the_cpus_that_they_concern(fully: str, messages: list[str]) -> None:
    """CRI-O's annotation concerns interrupts only, so other parts are not checked on its CPUs."""
    parts = (PartResult(QuietWord.WORKQUEUES),)
    result = QuietResult(CPUSet([2, 3]), parts=parts, fully=CPUSet.parse(fully))
    checks = quiet_checks(agent_state(replace(state_of(), quiet=result)).quiet)
    assert [check.message for check in checks if check.subject == "quiet parts"] == messages


WEB = bound("web", annotations=EXCLUSIVE)


def quiet_with(note: str) -> Quiet:
    """Return the agent's report of a container that keeps an interrupt."""
    kept = KeptInterrupts(CPUSet([2]), frozenset({"25", "4"}), ("4 (ttyS0)", "25 (eth1)"), note)
    state = replace(state_of(WEB), quiet=QuietResult(CPUSet([2]), kept={owner(WEB): kept}))
    quiet = agent_facts(agent_state(state)).quiet
    assert quiet
    return quiet


def test_interrupts_that_stay_are_named_and_what_does_not_is_a_finding() -> None:
    """Kept interrupts are listed with the container's name; those that cannot be kept are a finding."""
    assert quiet_with("").kept[0].numbers == ("4", "25")
    _, named = quiet_checks(quiet_with(""))
    assert (named.subject, named.verdict) == ("irq-policy", "ok")
    assert named.message == "default/web/main has interrupts 4 (ttyS0), 25 (eth1) on its CPUs 2"
    *_, missing = quiet_checks(quiet_with("no interrupt has a name like eth7"))
    assert (missing.subject, missing.verdict) == ("irq-policy", "finding")
    assert missing.message == "default/web/main: no interrupt has a name like eth7"
    nothing = Quiet("2", kept=(published.KeptInterrupts("default/web/main", "2", note="x"),))
    assert [it.verdict for it in quiet_checks(nothing) if it.subject == "irq-policy"] == ["finding"]


def test_noise_leaves_out_interrupts_that_stay() -> None:
    """The noise check skips kept interrupts; other interrupts and an unreadable table remain findings."""
    counted: Any = (Row("25", "PCI-MSI eth1", 9), Row("26", "PCI-MSI eth2", 3))
    facts = replace(FINE, noise=Noise(counted, ()), foreign_threads=ForeignThreads({}))
    kept = replace(facts, agent=replace(AGENT, quiet=quiet_with("")))

    def found(of: Facts) -> list[str]:
        return [it.message for it in examine(of) if it.subject == "interrupts"]

    assert found(kept) == ["interrupt 26 (PCI-MSI eth2) came 3 times"]
    assert len(found(facts)) == 2
    assert found(replace(kept, noise=Noise("masked", "masked"))) == ["not counted (masked)"]
