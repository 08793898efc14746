"""The checks of quiet CPUs: irqbalance, foreign writes, managed interrupts, and nodes without any."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from agent.doctor.check import Verdict
from agent.doctor.checks import Facts, ForeignThreads, examine
from agent.doctor.facts import agent_facts
from agent.doctor.quiet import quiet_checks
from agent.node_state import KeptInterrupts, QuietResult
from agent.node_state import QuietPart as PartResult
from agent.quiet.counters import Row
from agent.quiet.noise import Noise, Periodic, Waited
from agent.serve.state_json import agent_state
from pinning.contract import QuietWord
from pinning.machine.cpuset import CPUSet
from published import agent_state as published
from published.agent_state import Quiet, QuietPart
from tests.agent.doctor.nodes import AGENT, FINE
from tests.agent.states import EXCLUSIVE, bound, owner, state_of
from tests.tables import table

if TYPE_CHECKING:
    from agent.doctor.check import Check


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


SUBJECTS = {"interrupts", "kernel threads", "exec", "waiting", "not movable", "periodic work"}
QUIET = Noise(interrupts=(), softirqs=())


def checks(
    noise: Noise, *, movable: dict[str, int] | None = None, fixed: dict[str, int] | None = None
) -> list[Check]:
    """Return the checks of noise on the exclusive CPU 2 of a machine with CPUs 0-7."""
    threads = ForeignThreads({}, Counter(fixed or {}), Counter(movable or {}))
    facts = replace(FINE, noise=noise, foreign_threads=threads)
    return [check for check in examine(facts) if check.subject in SUBJECTS]


def test_without_measurement_there_is_no_noise_check() -> None:
    """Without --noise these checks are left out."""
    assert not SUBJECTS & {check.subject for check in examine(FINE)}


def test_quiet_cpus_have_no_finding() -> None:
    """Without interrupts, threads and processes all checks pass."""
    assert {check.verdict for check in checks(QUIET)} == {Verdict.OK}


@table(
    "noise, threads, message, remedy",
    {
        "a device": (
            {"interrupts": (Row("25", "PCI-MSI 1-edge eth1-rx-0", 181),)},
            {},
            "interrupt 25 (PCI-MSI 1-edge eth1-rx-0) came 181 times",
            "echo 0-1,3-7 > /proc/irq/25/smp_affinity_list",
        ),
        "unbound workers": ({}, {"kworker/u8:3": 2}, "1 workers of unbound workqueues", "workqueue/cpumask"),
        "a thread of the kernel": ({}, {"kswapd0": 1}, "kswapd0 ran", "taskset -pc 0-1,3-7"),
        "a probe": (
            {"waited": {"ns/a/c": Waited(1, 1, 0.0, 0, Counter(curl=2))}},
            {},
            "curl (2) ran in ns/a/c, started from outside",
            "httpGet",
        ),
    },
)
def test_movable_source_is_a_finding(
    noise: dict[str, Any], threads: dict[str, int], message: str, remedy: str
) -> None:
    """The finding has the count and the command that moves the source to other CPUs."""
    found = [it for it in checks(replace(QUIET, **noise), movable=threads) if it.verdict is Verdict.FINDING]

    assert [message in it.message and remedy in it.remedy for it in found] == [True]


@table(
    "periodic, messages",
    {
        "not known": (Periodic(), []),
        "no watchdog": (Periodic(1, CPUSet()), ["every 1 s (vm.stat_interval)"]),
        "watchdog": (Periodic(None, CPUSet([2])), ["the watchdog checks CPUs 2"]),
    },
)
def test_periodic_work_is_told_and_no_finding(periodic: Periodic, messages: list[str]) -> None:
    """The settings for periodic kernel work are listed with their cost, and are no finding."""
    found = [it for it in checks(replace(QUIET, periodic=periodic)) if it.subject == "periodic work"]
    assert [text in it.message for it, text in zip(found, messages, strict=True)] == [True] * len(messages)
    assert {it.verdict for it in found} <= {Verdict.OK}


def test_immovable_sources_are_counted() -> None:
    """Timer ticks, softirqs and threads of one CPU are shown with the boot parameter against them."""
    timers = Row("LOC", "Local timer interrupts", 2084), Row("11", "GICv3 27 Level arch_timer", 12)
    noise = Noise(timers, (Row("RCU", "", 295),))
    said = [it for it in checks(noise, fixed={"ksoftirqd/2": 1}) if it.subject == "not movable"]

    assert [it.verdict for it in said] == [Verdict.OK] * 3
    assert [
        "LOC 2084, 11 (GICv3 27 Level arch_timer) 12" in said[0].message,
        "RCU 295" in said[1].message,
        "ksoftirqd/2" in said[2].message,
    ] == [True] * 3
    assert all("nohz_full=2 rcu_nocbs=2" in it.remedy for it in said)


def test_managed_interrupt_is_no_finding() -> None:
    """A managed interrupt is no finding, because writes cannot move it; the remedy says how to avoid it."""
    rows = (Row("40", "nvme0q3", 9), Row("25", "eth0", 5))
    said = checks(Noise(rows, (), managed=frozenset({"40"})))
    found = [it.message for it in said if it.verdict is Verdict.FINDING]
    (queue,) = (it for it in said if it.subject == "not movable")

    assert found == ["interrupt 25 (eth0) came 5 times"]
    assert "40 (nvme0q3) 9" in queue.message
    assert "keep that I/O to other CPUs" in queue.remedy


@table(
    "count, named",
    {
        "one": (1, "0 (eth0): not counted completely, because freed by the driver in between"),
        "more than are named": (9, "7 (eth7) and 1 more: not counted completely, because freed by"),
    },
)
def test_freed_interrupts_are_unknown(count: int, named: str) -> None:
    """An interrupt that its driver freed during the measurement is never reported as none."""
    rows = tuple(Row(str(number), f"eth{number}", 5) for number in range(count))
    [check] = (it for it in checks(Noise((), (), freed=rows)) if it.subject == "interrupts")

    assert (check.verdict, named in check.message) == (Verdict.UNKNOWN, True)


def test_cpus_that_were_offline_for_a_part_of_the_time_are_unknown() -> None:
    """A CPU that went offline during the measurement does not count as quiet."""
    [check] = (it for it in checks(Noise((), (), offline=CPUSet([1]))) if it.subject == "interrupts")

    assert check.verdict is Verdict.UNKNOWN
    assert check.message == "CPUs 1 were offline for a part of the time: not counted"


@table("devices, rest", {"as many as are named": (8, []), "one more": (9, ["more interrupts of devices: 1"])})
def test_first_devices_are_named_and_the_rest_counted(devices: int, rest: list[str]) -> None:
    """Eight devices have a finding each, and a last finding counts those beyond."""
    rows = tuple(Row(str(number), f"eth{number}", 5) for number in range(devices))
    found = [it.message for it in checks(Noise(rows, ())) if it.verdict is Verdict.FINDING]

    assert found[:8] == [f"interrupt {number} (eth{number}) came 5 times" for number in range(8)]
    assert found[8:] == rest


def test_counters_that_cannot_be_read_are_unknown() -> None:
    """An unreadable table makes the check unknown with the reason, instead of passing."""
    said = checks(Noise("/proc/interrupts is empty", "/proc/softirqs: Permission denied"))
    unknown = [it.message for it in said if it.verdict is Verdict.UNKNOWN]

    assert unknown == [
        "not counted (/proc/interrupts is empty)",
        "softirqs are not counted (/proc/softirqs: Permission denied)",
    ]


def test_waits_are_sorted_longest_first() -> None:
    """Each container is shown with its number of threads, their wait and their switches."""
    waited = {
        "ns/a/short": Waited(2, 2, 0.001, 3, Counter()),
        "ns/b/long": Waited(256, 9000, 2.5, 700, Counter()),
        "ns/c/new": Waited(0, 5, 0.0, 0, Counter()),
    }
    said = [it.message for it in checks(replace(QUIET, waited=waited)) if it.subject == "waiting"]

    assert said == [
        "256 threads of 9000 of ns/b/long waited 2500.000 ms for their CPUs and were interrupted 700 times",
        "2 threads of ns/a/short waited 1.000 ms for their CPUs and were interrupted 3 times",
        "how long threads of ns/c/new waited is not known: no thread existed during the whole measurement",
    ]


def test_number_of_noise_checks_is_limited() -> None:
    """4,000 interrupts, 1,000 thread names and 500 containers give less than 60 checks."""
    noise = Noise(
        tuple(Row(str(number), f"q{number}", 1) for number in range(4000)),
        tuple(Row(f"S{number}", "", 1) for number in range(4000)),
        {f"ns/p{number}/c": Waited(1, 1, 0.1, 1, Counter({"x" * 15: 1})) for number in range(500)},
    )
    names = {f"name{number}": 1 for number in range(1000)}

    assert len(checks(noise, movable=names, fixed=names)) < 60
