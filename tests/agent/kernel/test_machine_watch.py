"""Events of the kernel about CPUs and about the files that the machine is read from."""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from agent.kernel import machine_watch
from agent.kernel.machine_watch import KernelMachineWatch, _cpu_events, _drain
from tests.environments.waiting import background

UEVENT: Final = Path("/sys/devices/system/cpu/cpu0/uevent")
# Prints whether the kernel reports CPUs here, and waits for an event if it does.
LISTENER: Final = """
import select
from agent.kernel.machine_watch import _cpu_events
events = _cpu_events()
print(events is not None, flush=True)
if events is not None:
    print(select.select([events], [], [], 60)[0] == [events], flush=True)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file with content."""
    path = tmp_path / "cpuset.cpus"
    path.write_text("0-3")
    return path


def is_pending(events: int) -> bool:
    """Return whether an event has arrived; the kernel sends it before the write of a uevent returns."""
    return bool(select.select([events], [], [], 0)[0])


async def is_reported(
    watch: KernelMachineWatch, change: Callable[[], object], end: Callable[[], object]
) -> bool:
    """Return whether a change is reported before a later change that certainly is."""
    noticed: list[str] = []
    reports, name = asyncio.Event(), "first"

    def report() -> None:
        noticed.append(name)
        reports.set()

    async with background(watch.watch(report)):
        await asyncio.sleep(0)
        change()
        for _ in range(10):  # the loop looks at its descriptors in each turn
            await asyncio.sleep(0)
        reports.clear()
        name = "last"
        end()
        await asyncio.wait_for(reports.wait(), 60)
    return "first" in noticed


def replaced(file: Path) -> None:
    """Replace a file, or make it, as the kubelet writes its state."""
    new = file.with_name("new")
    new.write_text("0-1")
    new.replace(file)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(lambda file, absent: file.write_text("0-1"), True, id="written"),
        pytest.param(lambda file, absent: replaced(file), True, id="replaced"),
        pytest.param(lambda file, absent: replaced(absent), True, id="made"),
        pytest.param(lambda file, absent: replaced(file.with_name("other")), False, id="another file"),
    ],
)
def test_changed_files_are_reported(
    file: Path, change: Callable[[Path, Path], object], expected: bool
) -> None:
    """Cgroup files are written in place; the kubelet makes its state files, and replaces them."""
    absent = file.with_name("cpu_manager_state")
    watch = KernelMachineWatch(lambda: [str(file), str(absent)])
    watch.follow()
    found = asyncio.run(is_reported(watch, lambda: change(file, absent), lambda: replaced(absent)))
    watch.close()
    assert found is expected


@pytest.mark.parametrize("hears", [True, False])
def test_the_machine_is_polled_unless_everything_is_reported(
    file: Path, hears: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`follow` returns false, so that the machine is polled, without CPU events or if a folder is missing."""
    monkeypatch.setattr(machine_watch, "_hears", lambda: hears)
    files = [str(file), str(file.with_name("absent"))]
    watch = KernelMachineWatch(lambda: files)
    assert watch.follow() is hears
    files.append(str(file.parent / "none" / "absent"))
    assert watch.follow() is False
    files.pop()
    assert watch.follow() is hears
    watch.close()


@pytest.mark.runtime
@pytest.mark.skipif(os.geteuid() != 0 or not os.access(UEVENT, os.W_OK), reason="root writes uevents")
def test_only_cpus_that_go_offline_or_come_back_are_events() -> None:
    """Only uevents of CPUs that go offline or online wake the agent, not those of pods' network devices."""
    events = _cpu_events()
    assert events is not None
    for action, is_event in (("change", False), ("add", False), ("online", True), ("offline", True)):
        UEVENT.write_text(action)
        assert is_pending(events) is is_event, action
        _drain(events)
        assert not is_pending(events)
    os.close(events)


@pytest.mark.runtime
@pytest.mark.skipif(os.geteuid() != 0 or not os.access(UEVENT, os.W_OK), reason="root writes uevents")
@pytest.mark.parametrize(
    ("namespaces", "hears"),
    [(["--net"], True), (["--net", "--user", "--map-root-user"], False)],
    ids=["a pod's network", "a pod's users too"],
)
def test_a_pod_hears_of_cpus_unless_it_has_users_of_its_own(namespaces: list[str], hears: bool) -> None:
    """A pod receives CPU uevents unless its network namespace belongs to another user namespace."""
    command = ["unshare", *namespaces, sys.executable, "-c", LISTENER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout
        assert listener.stdout.readline().strip() == str(hears)
        UEVENT.write_text("online")
        assert listener.stdout.read().split() == ["True"] * hears
