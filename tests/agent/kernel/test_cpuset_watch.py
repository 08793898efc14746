"""The cpuset watch reports foreign writes and not the agent's own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.errors import Refused
from agent.kernel.inotify import MODIFY, NamedWatches
from pinning.machine.cpuset import CPUSet
from tests.environments.node.cgroup_trees import ONE, POD, OpenCgroups, make_cgroup
from tests.environments.waiting import background

MANY_EVENTS = 2 * int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())


async def foreign_writes(cgroups: OpenCgroups, interfere: Callable[[], None]) -> list[str]:
    """Return the reports of the watch while `interfere` runs."""
    reported: list[str] = []
    any_told = asyncio.Event()

    def written_by_somebody(cgroup: str) -> None:
        reported.append(cgroup)
        any_told.set()

    async with background(cgroups.watch.watch(written_by_somebody)):
        await asyncio.sleep(0)
        interfere()
        await asyncio.wait_for(any_told.wait(), 60)
    return reported


def test_only_foreign_writes_are_reported(cgroups: OpenCgroups, cpuset: Path, version: int) -> None:
    """Own writes, expected runtime updates and cgroups that are not watched are not reported."""
    for name in ("two", "three", "four"):
        make_cgroup(cpuset / POD[1:] / name, version)
    cgroups.watch.follow([ONE, f"{POD}/two", f"{POD}/three", f"{POD}/five"])

    def interfere() -> None:
        cgroups.cpusets.write(ONE, CPUSet.parse("1"))
        cgroups.watch.expect(f"{POD}/two", CPUSet.parse("2"))
        for name, cpus in (("two", "2"), ("four", "4"), ("three", "3")):
            (cpuset / POD[1:] / name / "cpuset.cpus").write_text(cpus)

    assert asyncio.run(foreign_writes(cgroups, interfere)) == [f"{POD}/three"]


def test_reset_to_our_own_value_is_reported_after_a_foreign_write(cgroups: OpenCgroups, cpuset: Path) -> None:
    """After a foreign write our last value is foreign too, because in observe mode others write it."""
    cgroups.cpusets.write(ONE, CPUSet.parse("1"))
    cgroups.watch.follow([ONE])
    for cpus in ("3", "1"):

        def interfere(cpus: str = cpus) -> None:
            (cpuset / ONE[1:] / "cpuset.cpus").write_text(cpus)

        assert asyncio.run(foreign_writes(cgroups, interfere)) == [ONE]


def test_unreadable_cgroup_is_reported_with_the_others(
    cgroups: OpenCgroups, cpuset: Path, version: int
) -> None:
    """An unreadable cgroup is reported for the next pass, and so is another one written at that time."""
    make_cgroup(cpuset / POD[1:] / "two", version)
    cgroups.watch.follow([ONE, f"{POD}/two"])

    def interfere() -> None:
        for cgroup in (ONE, f"{POD}/two"):
            (cpuset / cgroup[1:] / "cpuset.cpus").write_text("3")
        (cpuset / ONE[1:] / "cpuset.cpus").unlink()
        (cpuset / ONE[1:] / "cpuset.cpus").mkdir()

    assert asyncio.run(foreign_writes(cgroups, interfere)) == [ONE, f"{POD}/two"]


def test_recreated_cgroup_is_watched_again(cgroups: OpenCgroups, cpuset: Path, version: int) -> None:
    """A watched cgroup that is removed and created again is watched after the next `follow`."""
    cgroups.watch.follow([ONE, POD])
    for file in (cpuset / ONE[1:]).iterdir():
        file.unlink()
    (cpuset / ONE[1:]).rmdir()
    cgroups.watch.follow([ONE, POD])
    make_cgroup(cpuset / ONE[1:], version)
    cgroups.watch.follow([ONE])

    def interfere() -> None:
        (cpuset / POD[1:] / "cpuset.cpus").write_text("1")
        (cpuset / ONE[1:] / "cpuset.cpus").write_text("1")

    assert asyncio.run(foreign_writes(cgroups, interfere)) == [ONE]


def test_known_watches_are_kept(
    cgroups: OpenCgroups, cpuset: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """With `anew=False` only cgroups without a watch get one, because a node has hundreds of them."""
    make_cgroup(cpuset / POD[1:] / "two", version)
    added: list[str] = []
    add = NamedWatches.add

    def noted(watches: NamedWatches, name: str, path: Path | str) -> bool:
        added.append(name)
        return add(watches, name, path)

    monkeypatch.setattr(NamedWatches, "add", noted)
    cgroups.watch.follow([ONE])
    cgroups.watch.follow([ONE, f"{POD}/two"], anew=False)
    assert added == [ONE, f"{POD}/two"]

    def interfere() -> None:
        (cpuset / ONE[1:] / "cpuset.cpus").write_text("1")

    assert asyncio.run(foreign_writes(cgroups, interfere)) == [ONE]


async def test_writes_are_reported_only_after_a_pause(cgroups: OpenCgroups, cpuset: Path) -> None:
    """No write is reported during a pause; foreign ones are reported after it."""
    two = make_cgroup(cpuset / POD[1:] / "two", cgroups.cpusets.version)
    cgroups.watch.follow([ONE, f"{POD}/two"])
    reported: list[str] = []
    watch = asyncio.create_task(cgroups.watch.watch(reported.append))
    await asyncio.sleep(0)
    with cgroups.watch.paused():
        cgroups.cpusets.write(ONE, CPUSet.parse("1"))
        (two / "cpuset.cpus").write_text("2")
        for _ in range(3):
            await asyncio.sleep(0)
        assert reported == []
    async with asyncio.timeout(60):
        while not reported:
            await asyncio.sleep(0)
    with cgroups.watch.paused():  # paused by a pass that ends after the watch
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
    assert reported == [f"{POD}/two"]


def test_overflow_reports_every_changed_cpuset(cgroups: OpenCgroups, cpuset: Path, version: int) -> None:
    """After a queue overflow every watched cgroup is compared with the agent's last write."""
    two, three = (make_cgroup(cpuset / POD[1:] / name, version) for name in ("two", "three"))
    cgroups.watch.follow([ONE, f"{POD}/two", f"{POD}/three"])
    cgroups.cpusets.write(ONE, CPUSet.parse("1"))

    def interfere() -> None:
        files = [(folder / "cpuset.cpus").open("w") for folder in (two, three)]
        for number in range(MANY_EVENTS):  # alternating, because equal consecutive events are merged
            os.write(files[number % 2].fileno(), b"1")
        for file in files:
            file.truncate(1)
            file.close()
        (cpuset / ONE[1:] / "cpuset.cpus").write_text("5")  # lost

    reported = asyncio.run(foreign_writes(cgroups, interfere))
    assert set(reported) == {ONE, f"{POD}/two", f"{POD}/three"}


def test_inotify_limit_is_in_the_error(cgroups: OpenCgroups) -> None:
    """The error names the limits to raise."""
    cgroups.watch.close()
    with pytest.raises(Refused, match=r"raise fs\.inotify\.max_user_instances and max_user_watches"):
        cgroups.watch.follow([ONE])
    cgroups.watch._watches = NamedWatches(MODIFY)
