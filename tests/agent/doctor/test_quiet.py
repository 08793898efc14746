"""The doctor's lines about quiet CPUs: irqbalance, other programs, what cannot be moved, and nodes without them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.doctor.checks import examine
from agent.doctor.facts import agent_facts
from agent.doctor.quiet import quiet_checks
from agent.node_state import QuietResult
from agent.serve.state_json import agent_state
from pinning.machine.cpuset import CPUSet
from published.agent_state import Quiet
from tests.agent.doctor.nodes import AGENT, FINE
from tests.agent.states import state_of

SILENT = "irqbalance runs and cannot be asked: /run/irqbalance/irqbalance7.sock: no answer in time"


@pytest.mark.parametrize(
    "quiet",
    [
        pytest.param(None, id="the agent moves none"),
        pytest.param(Quiet(), id="no pod asks"),
        pytest.param(Quiet(reason="not done yet"), id="no round yet"),
    ],
)
def test_nodes_without_quiet_cpus_have_no_line(quiet: Quiet | None) -> None:
    """Neither a finding nor a praise."""
    assert list(quiet_checks(quiet)) == []


def test_an_irqbalance_that_cannot_be_asked_gets_the_line_for_its_file() -> None:
    """With the CPUs, and the key that tells the agent not to wait for it."""
    (check,) = quiet_checks(Quiet("4-5", SILENT, irqbalance=SILENT))
    assert (check.subject, check.verdict) == ("quiet CPUs", "finding")
    assert check.message == f"no interrupt is moved: {SILENT}"
    assert check.remedy.startswith("write IRQBALANCE_BANNED_CPULIST=4-5 into its file")
    assert "quiet.irqbalance: ignore" in check.remedy


def test_each_interrupt_that_another_program_moves_back_is_a_finding() -> None:
    """The interrupt is named."""
    checks = list(quiet_checks(Quiet("4-5", "another program", (), ("25 (eth0)", "26 (eth1)"))))
    assert [(check.verdict, check.message.partition(" back")[0]) for check in checks] == [
        ("finding", "another program keeps moving interrupt 25 (eth0)"),
        ("finding", "another program keeps moving interrupt 26 (eth1)"),
    ]


def test_another_reason_is_a_finding() -> None:
    """For example too few CPUs for interrupts."""
    (check,) = quiet_checks(Quiet("1-3", "interrupts need 2 online CPUs that are not quiet"))
    assert check.verdict == "finding"
    assert check.message == "interrupts may use CPUs 1-3: interrupts need 2 online CPUs that are not quiet"


def test_managed_interrupts_are_named_and_no_finding() -> None:
    """No setting moves them, but the I/O behind them can run elsewhere."""
    moved, managed = quiet_checks(Quiet("4-5", managed=("30 (nvme0q4)", "31 (nvme0q5)")))
    assert (moved.verdict, moved.message) == ("ok", "interrupts are kept off CPUs 4-5")
    assert (managed.subject, managed.verdict) == ("managed interrupts", "ok")
    assert managed.message.startswith("the kernel alone places 30 (nvme0q4), 31 (nvme0q5)")
    assert managed.remedy


def test_the_lines_come_from_the_agents_state() -> None:
    """What a round reports arrives through the socket's state."""
    result = QuietResult(CPUSet([2]), SILENT, irqbalance=SILENT)
    quiet = agent_facts(agent_state(replace(state_of(), quiet=result))).quiet
    assert quiet == Quiet("2", SILENT, irqbalance=SILENT)
    checks = examine(replace(FINE, agent=replace(AGENT, quiet=quiet)))
    assert [check.verdict for check in checks if check.subject == "quiet CPUs"] == ["finding"]
    assert not [check for check in examine(FINE) if check.subject == "quiet CPUs"]
