"""Watched files: a change is taken into service if it is valid."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

import pytest

from webhook.config.reload import Contents, File, Unusable, Watched, watch
from webhook.metrics import Metrics, ReloadMeter

if TYPE_CHECKING:
    from pathlib import Path


def joined(contents: Contents) -> bytes:
    """Build a value: the contents in one text. `bad` is unusable, `bug` is a bug."""
    text = b"+".join(content if content is not None else b"none" for content in contents)
    if b"bad" in text:
        raise Unusable("it is bad")
    if b"bug" in text:
        raise ZeroDivisionError
    return text


class Disk:
    """Two watched files; the second is optional."""

    def __init__(self, root: Path) -> None:
        self.first = root / "first"
        self.second = root / "second"
        self.metrics = Metrics()
        self.first.write_bytes(b"1")
        meter = ReloadMeter(self.metrics, "both")
        self.watched = Watched("both", (File(self.first), File(self.second, optional=True)), joined, meter)

    def serving(self) -> tuple[int, bytes]:
        """Return the generation in service."""
        generation = self.watched.current()
        return generation.number, generation.value

    def metric(self, name: str) -> float | None:
        """Return the value of a metric of these files."""
        return self.metrics.registry.get_sample_value(f"corepin_webhook_{name}", {"files": "both"})


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    """Return files that are loaded."""
    found = Disk(tmp_path)
    found.watched.load()
    return found


def test_nothing_serves_before_the_first_load(tmp_path: Path) -> None:
    """Reading the value before the first load is a programming error."""
    with pytest.raises(RuntimeError):
        Disk(tmp_path).watched.current()


def test_unchanged_files_stay_the_same_generation(disk: Disk) -> None:
    """Files are compared by their bytes: writing the same ones again is no new generation."""
    disk.first.write_bytes(b"1")
    disk.watched.refresh()

    assert disk.serving() == (1, b"1+none")


def test_changed_files_are_a_new_generation(disk: Disk) -> None:
    """New bytes, and an optional file that appears, are taken into service."""
    disk.first.write_bytes(b"2")
    disk.watched.refresh()
    disk.second.write_bytes(b"3")
    disk.watched.refresh()

    assert disk.serving() == (3, b"2+3")
    assert disk.metric("generation") == 3


@pytest.mark.parametrize(("content", "reason"), [(b"bad", "it is bad"), (b"bug", "")])
def test_bad_files_are_refused_once_and_the_old_ones_kept(
    disk: Disk, caplog: pytest.LogCaptureFixture, content: bytes, reason: str
) -> None:
    """A refused change is logged and counted once, keeps the old value, and sets the gauge until it is undone."""
    disk.first.write_bytes(content)
    disk.watched.refresh()
    disk.watched.refresh()

    assert disk.serving() == (1, b"1+none")
    assert (disk.metric("reload_failures_total"), disk.metric("reload_refused")) == (1, 1)
    (record,) = caplog.records
    assert vars(record)["facts"] == {"files": "both", "reason": reason}
    assert bool(record.exc_info) is (content == b"bug")  # a traceback is for bugs


def test_an_undone_change_clears_the_gauge(disk: Disk) -> None:
    """An undone change clears the gauge and is no new generation."""
    disk.first.write_bytes(b"bad")
    disk.watched.refresh()
    disk.first.write_bytes(b"1")
    disk.watched.refresh()

    assert disk.serving() == (1, b"1+none")
    assert disk.metric("reload_refused") == 0


def test_a_deleted_file_is_a_failure_and_its_value_is_kept(disk: Disk) -> None:
    """A deleted file, also an optional one, is a failed reload, and the old value is kept."""
    disk.second.write_bytes(b"3")
    disk.watched.refresh()
    disk.second.unlink()
    disk.watched.refresh()
    disk.first.unlink()
    disk.watched.refresh()

    assert disk.serving() == (2, b"1+3")
    assert disk.metric("reload_failures_total") == 2


def test_unreadable_file_is_an_error_at_start(tmp_path: Path) -> None:
    """At start a missing or unreadable file is an error that names it."""
    with pytest.raises(Unusable, match="absent does not exist"):
        File(tmp_path / "absent").read()
    with pytest.raises(Unusable, match=r"cannot be read \(Is a directory\)"):
        File(tmp_path).read()


@pytest.mark.parametrize("then", [b"3", b"bad", None])
def test_files_that_change_during_a_reload_wait(tmp_path: Path, then: bytes | None) -> None:
    """Files that change during a reload are neither taken nor refused until the next refresh."""
    path = tmp_path / "moving"
    path.write_bytes(b"1")
    metrics = Metrics()
    calls = itertools.count()

    def moving(contents: Contents) -> bytes:
        if next(calls) == 1:
            path.write_bytes(then) if then else path.unlink()
        return joined(contents)

    watched = Watched("both", (File(path),), moving, ReloadMeter(metrics, "both"))
    watched.load()
    path.write_bytes(b"2")
    watched.refresh()

    assert watched.current().value == b"1"
    assert metrics.registry.get_sample_value("corepin_webhook_reload_failures_total", {"files": "both"}) == 0


def test_half_written_file_that_is_completed_is_no_failure(tmp_path: Path) -> None:
    """A half-written file that changes during its reload counts as no failure."""
    path = tmp_path / "torn"
    path.write_bytes(b"1")

    def torn(contents: Contents) -> bytes:
        if contents == (b"bad",):
            path.write_bytes(b"2")
        return joined(contents)

    metrics = Metrics()
    watched = Watched("both", (File(path),), torn, ReloadMeter(metrics, "both"))
    watched.load()
    path.write_bytes(b"bad")
    watched.refresh()
    watched.refresh()

    assert watched.current().value == b"2"
    assert metrics.registry.get_sample_value("corepin_webhook_reload_failures_total", {"files": "both"}) == 0


async def test_watch_refreshes_until_it_is_cancelled() -> None:
    """The watch refreshes each target until its task is cancelled."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    class Target:
        seen = 0

        def refresh(self) -> None:
            self.seen += 1
            if self.seen == 3:
                loop.call_soon_threadsafe(done.set)

    task = asyncio.create_task(watch([Target()], 0.001))
    await asyncio.wait_for(done.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
