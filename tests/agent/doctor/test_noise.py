"""The checks of noise on exclusive CPUs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agent.doctor.check import Verdict
from agent.doctor.checks import ForeignThreads, examine
from agent.quiet.counters import Row
from agent.quiet.noise import Noise, Periodic, Waited
from pinning.machine.cpuset import CPUSet
from tests.agent.doctor.nodes import FINE
from tests.tables import table

if TYPE_CHECKING:
    from agent.doctor.check import Check

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
    noise = Noise((Row("LOC", "Local timer interrupts", 2084),), (Row("RCU", "", 295),))
    said = [it for it in checks(noise, fixed={"ksoftirqd/2": 1}) if it.subject == "not movable"]

    assert [it.verdict for it in said] == [Verdict.OK] * 3
    assert [
        "LOC 2084" in said[0].message,
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
