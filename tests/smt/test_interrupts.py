"""Interrupts of devices on a real kernel: they are moved off the CPUs of a pod that requests quiet ones, and back."""

from __future__ import annotations

from typing import Any

import pytest

from pinning.machine.cpuset import CPUSet
from tests.environments.guest.guest import Report
from tests.smt.conftest import HAS_CARD

LEAST_PACKETS = 50  # of 100 for which a network card interrupts


def step(quiet: Report, name: str) -> dict[str, Any]:
    """Return the counts of one step."""
    (found,) = [it for it in quiet.all("interrupts") if it["step"] == name]
    return found


def fired(counted: dict[str, Any], *, on_pod: bool) -> dict[str, int]:
    """Return the count of each interrupt on the pod's CPUs, or on all others."""
    mine = CPUSet.parse(counted["cpus"])
    sums = {
        name: sum(count for cpu, count in row.items() if (int(cpu) in mine) is on_pod)
        for name, row in counted["fired"].items()
    }
    return {name: count for name, count in sums.items() if count}


def assert_quiet(counted: dict[str, Any]) -> None:
    """Fail if an interrupt fired on the pod's CPUs, if none fired elsewhere, or if a later one may fire on them."""
    assert fired(counted, on_pod=True) == {}
    assert sum(fired(counted, on_pod=False).values()) >= 100  # the devices were in use
    assert CPUSet.parse(counted["default"]).isdisjoint(CPUSet.parse(counted["cpus"]))
    assert all(CPUSet.parse(it).isdisjoint(CPUSet.parse(counted["cpus"])) for it in counted["masks"].values())


def test_interrupts_reach_exclusive_cpus(quiet: Report) -> None:
    """Without `quiet` no interrupt is moved, even if the operator allows it."""
    before = step(quiet, "before")

    assert sum(fired(before, on_pod=True).values()) >= 100
    assert CPUSet.parse(before["default"]) == CPUSet(range(6))
    assert before["masks"]["cpumask"] == before["masks"]["writeback/cpumask"] == "0-5"


def test_none_fires_on_quiet_cpus(quiet: Report) -> None:
    """After the running pod is annotated no interrupt fires on its CPUs."""
    now = step(quiet, "quiet")

    assert_quiet(now)
    assert now["quiet"]["cpus"] == now["cpus"]
    assert now["quiet"].get("reason", "") == ""


def test_interrupts_that_the_kernel_places_are_listed(quiet: Report) -> None:
    """Managed interrupts of a disk's queues on the pod's CPUs are listed by name, and are no failure."""
    queues, now = quiet.one("managed")["queues"], step(quiet, "quiet")
    release = quiet.one("boot")["kernel"]
    version = tuple(int(part) for part in release.split(".")[:2])
    mine = CPUSet.parse(now["cpus"])

    refused = {(it["mode"], it["error"]) for it in queues.values()}
    assert refused == {("444", "EPERM") if version >= (6, 12) else ("644", "EIO")}, release
    beside = {
        f"{number} ({it['name']})"
        for number, it in queues.items()
        if not CPUSet.parse(it["cpus"]).isdisjoint(mine)
    }
    assert len(beside) == len(mine)  # one for each CPU
    assert set(now["quiet"]["managed"]) == beside


def test_named_interrupts_stay(quiet: Report) -> None:
    """An interrupt that `irq-policy` names, or of a named device, fires on the pod's CPUs, and no other one does."""
    now, kept = step(quiet, "kept"), quiet.one("kept")
    ((name, count),) = fired(now, on_pod=True).items()

    assert (name.partition(":")[0], count >= 100) == (kept["number"], True)
    assert any(kept["number"] in numbers for numbers in kept["devices"].values())
    [shown] = now["quiet"]["kept"]
    assert (shown["numbers"], shown.get("note", "")) == ([kept["number"]], "")


def test_drivers_loaded_later_fire_elsewhere(quiet: Report) -> None:
    """Interrupts of drivers that are loaded later use the narrowed default affinity."""
    later = step(quiet, "driver")
    new = quiet.one("loaded")["new"]

    assert_quiet(later)
    assert any("virtio" in name and not name.startswith("0:") for name in later["fired"])
    assert new
    assert all(CPUSet.parse(cpus).isdisjoint(CPUSet.parse(later["cpus"])) for cpus in new.values())


@pytest.mark.skipif(not HAS_CARD, reason="COREPIN_NETWORK_CARD is not set")
@pytest.mark.parametrize("when", ["card", "card put in", "offline", "next agent"])
def test_network_card_that_is_added_later_fires_elsewhere(quiet: Report, when: str) -> None:
    """Interrupts of a card added later fire elsewhere, also after a replug, CPU hotplug and a restart of the agent."""
    now = step(quiet, when)

    assert_quiet(now)
    assert (
        sum(count for name, count in fired(now, on_pod=False).items() if "-input." in name) >= LEAST_PACKETS
    )


@pytest.mark.parametrize("when", ["offline", "online"])
def test_quiet_after_hotplug(quiet: Report, when: str) -> None:
    """After a CPU went offline, interrupts that the kernel spread over quiet CPUs are moved off again."""
    assert quiet.one("spread")["reaches"]
    assert_quiet(step(quiet, when))


def test_quiet_without_an_agent_and_with_the_next(quiet: Report) -> None:
    """A killed agent's settings stay, and the next agent moves interrupts that were moved back in between."""
    assert_quiet(step(quiet, "no agent"))
    assert_quiet(step(quiet, "next agent"))


def test_quiet_cpus_enter_no_deep_idle_state(quiet: Report) -> None:
    """Only quiet CPUs have the operator's bound for idle states, replacing a looser bound or none."""
    before, now = step(quiet, "before"), step(quiet, "quiet")
    mine = {str(cpu) for cpu in CPUSet.parse(now["cpus"])}

    assert {cpu: before["bounds"][cpu] for cpu in mine} == dict(zip(sorted(mine), ("0", "100"), strict=True))
    assert now["bounds"] == {**before["bounds"], **dict.fromkeys(mine, "20")}
    assert [part.get("reason", "") for part in now["quiet"]["parts"]] == ["", ""]


@pytest.mark.parametrize("when", ["kept", "driver", "offline", "online", "no agent", "next agent"])
def test_bounds_stay_while_cpus_are_quiet(quiet: Report, when: str) -> None:
    """The bounds of quiet CPUs stay over CPU hotplug and over the restart of an agent."""
    assert step(quiet, when)["bounds"] == step(quiet, "quiet")["bounds"]


def test_settings_are_back_when_the_pod_ends(quiet: Report) -> None:
    """When the pod ends, all settings are restored, with the default affinity."""
    ended = quiet.one("ended")

    assert {name: ended["settings"][name] for name in ended["originals"]} == ended["originals"]
    assert CPUSet.parse(ended["settings"]["irq default"]) == CPUSet(range(6))


def test_settings_are_back_after_kill_and_reset(quiet: Report) -> None:
    """A reset restores the settings of a killed agent from its records on disk."""
    taken, reset = quiet.one("taken")["settings"], quiet.one("reset")
    freed = quiet.one("reloaded")["freed"]
    changed = {name for name, text in reset["originals"].items() if taken[name] != text}

    assert {"irq default", "cpumask", "writeback/cpumask"} < changed
    assert {name.partition(" ")[0] for name in changed} >= {"irq", "cpu"}
    assert reset["status"] == 0
    assert {name: reset["settings"][name] for name in reset["originals"]} == reset["originals"]
    assert freed  # with their numbers requested again, by interrupts with other inodes
    assert all(later and later != before for before, later in freed.values())
    assert {CPUSet.parse(reset["settings"][f"irq {number}"]) for number in freed} == {CPUSet(range(6))}


def test_agents_did_not_crash(quiet: Report) -> None:
    """No agent logged a trace."""
    assert quiet.one("log")["crashes"] == []
