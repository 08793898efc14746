"""The file with claims, pools and entries that survives a restart."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.wrappers.protocol import Pool, Want
from agent.wrappers.registry import Claim, Holder, Process
from agent.wrappers.store import (
    MOST_RECLAIMED,
    REST_SECONDS,
    SPARE_LINES,
    Kept,
    Saver,
    Store,
    claim_text,
    end_text,
    pool_text,
    read,
    reclaimed_text,
    write,
)
from pinning.cmk.pools import Reclaimed
from pinning.contract import PoolUse, SharedPool
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import Owner

OWNER = Owner("uid", "main")
HOLDER = Holder("id", OWNER, "ns/pod/main")
OUTER = Claim(Process(9, 99), HOLDER, Want(Pool.EXCLUSIVE), CPUSet([2, 6]))
ENTRY = Reclaimed(6, "ns/pod/main", "exclusive", "3,7")
KEPT = Kept(
    (
        Claim(Process(7, 99), HOLDER, Want(Pool.EXCLUSIVE, 2, 1), CPUSet([1, 5])),
        Claim(Process(8, 99), HOLDER, Want(Pool.INFRA, is_pinned=False)),
        Claim(Process(9, 99), HOLDER, Want(Pool.INFRA), outer=OUTER),
    ),
    {
        "id": (
            OWNER,
            frozenset({PoolUse(SharedPool.SHARED, 1), PoolUse(SharedPool.SHARED), PoolUse(SharedPool.INFRA)}),
        )
    },
    {PoolUse(SharedPool.INFRA): CPUSet([0, 4])},
    (ENTRY,),
    3,
)


def test_saved_state_is_loaded(tmp_path: Path) -> None:
    """Everything that is saved is loaded, and the file is replaced atomically."""
    store = Store(tmp_path / "wrappers.json", "boot")
    store.save(Kept())
    store.save(KEPT)

    assert store.load() == KEPT
    assert [path.name for path in tmp_path.iterdir()] == ["wrappers.json"]
    store.remove()
    assert store.load() == Kept()


def test_file_of_another_boot_is_ignored() -> None:
    """A file of another boot counts as empty, because no process survives a reboot."""
    assert read(write(KEPT, "boot-1"), "boot-1") == KEPT
    assert read(write(KEPT, "boot-1"), "boot-2") == Kept()


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", "[" * 5000, '{"version":1}', '{"version":2,"bootID":"other"}']
)
def test_a_damaged_file_counts_as_empty(text: str) -> None:
    """A damaged file is loaded as an empty one."""
    assert read(text, "boot") == Kept()


@given(st.integers(0, 1000), st.binary(min_size=1, max_size=4))
def test_any_damage_is_tolerated(place: int, put: bytes) -> None:
    """A file with any overwritten bytes can be loaded."""
    text = write(KEPT, "boot").encode()
    cut = place % len(text)
    spoiled = (text[:cut] + put + text[cut + len(put) :]).decode("utf-8", "replace")

    assert isinstance(read(spoiled, "boot"), Kept)


def test_new_claims_are_appended(tmp_path: Path) -> None:
    """A new claim is appended without rewriting the file, and the last line of a process counts."""
    path, store = tmp_path / "wrappers.json", Store(tmp_path / "wrappers.json", "boot")
    first, *others = KEPT.claims
    moved = replace(first, cpus=CPUSet([2, 6]))
    store.add([claim_text(first)], lambda: KEPT)
    begun = path.stat().st_ino
    store.add([claim_text(moved)], lambda: pytest.fail("everything is written again"))

    assert path.stat().st_ino == begun
    assert store.load() == KEPT._replace(claims=(*others, moved))


def test_exits_pools_and_entries_are_appended(tmp_path: Path) -> None:
    """An exit, a pool and an entry are appended and replace the earlier value."""
    store = Store(tmp_path / "wrappers.json", "boot")
    store.save(KEPT)
    again = ENTRY._replace(pid=12)
    pool = PoolUse(SharedPool.INFRA)
    lines = [end_text(Process(7, 99)), pool_text(pool, CPUSet([0])), reclaimed_text(again)]
    store.add(lines, lambda: pytest.fail("everything is written again"))

    assert store.load() == KEPT._replace(
        claims=KEPT.claims[1:], pools={pool: CPUSet([0])}, reclaimed=(ENTRY, again)
    )


def test_entries_of_a_file_are_bounded(tmp_path: Path) -> None:
    """Entries above the limit are dropped and counted, also after a restart."""
    store = Store(tmp_path / "wrappers.json", "boot")
    store.save(KEPT)
    store.add([reclaimed_text(ENTRY)] * (MOST_RECLAIMED + 9), lambda: KEPT)

    kept = store.load()
    assert (len(kept.reclaimed), kept.dropped) == (MOST_RECLAIMED, 3 + 1 + 9)


def test_older_file_is_marked_as_without_exits(tmp_path: Path) -> None:
    """`has_ends` is false for a file of a version that recorded no exits."""
    path = tmp_path / "wrappers.json"
    path.write_text('{"version":2,"bootID":"boot"}\n' + claim_text(KEPT.claims[0]))

    assert Store(path, "boot").load() == Kept(KEPT.claims[:1], has_ends=False)


def test_a_file_with_many_stale_lines_is_rewritten(tmp_path: Path) -> None:
    """The file is compacted when it has more than SPARE_LINES stale lines."""
    path, store = tmp_path / "wrappers.json", Store(tmp_path / "wrappers.json", "boot")
    lines = [claim_text(claim) for claim in KEPT.claims] * 50
    for _ in range(3 * SPARE_LINES // len(lines)):
        store.add(lines, lambda: KEPT)

    assert len(path.read_text().splitlines()) <= SPARE_LINES + len(write(KEPT, "boot").splitlines())
    assert store.load() == KEPT


def test_truncated_last_line_is_ignored(tmp_path: Path) -> None:
    """A truncated last line, as after a kill, is ignored, and the next write repairs the file."""
    path = tmp_path / "wrappers.json"
    path.write_text(write(KEPT, "boot") + claim_text(KEPT.claims[0])[:40])
    store = Store(path, "boot")

    assert store.load() == KEPT
    store.add([claim_text(KEPT.claims[0])], lambda: KEPT)
    assert path.read_text() == write(KEPT, "boot")


class Writes(Store):
    """A store in memory on a disk that may be full."""

    def __init__(self) -> None:
        self.added: list[list[str]] = []
        self.is_full = False
        self.failures = 0

    def add(self, texts: Iterable[str], _: object) -> None:
        """Record the lines, or raise as on a full disk."""
        if self.is_full:
            self.failures += 1
            raise OSError(errno.ENOSPC, "no room")
        self.added.append(list(texts))


def test_claims_of_one_loop_iteration_are_saved_in_one_write() -> None:
    """Claims of one event loop iteration share one write; without new claims nothing is written."""
    writes = Writes()
    saver = Saver(writes, lambda: KEPT)

    async def ask() -> None:
        saver.took(KEPT.claims[0])
        await saver.saved()
        assert writes.added

    async def play() -> None:
        await asyncio.gather(*(ask() for _ in range(50)))
        await saver.saved()

    asyncio.run(play())
    assert [len(texts) for texts in writes.added] == [50]


def test_failed_save_is_retried() -> None:
    """All waiters get the error of a failed save; it is retried a second later."""
    writes, seconds = Writes(), [0.0]
    saver = Saver(writes, lambda: KEPT, lambda: seconds[0])
    writes.is_full = True

    async def play() -> None:
        saver.took(KEPT.claims[0])
        found = await asyncio.gather(saver.saved(), saver.saved(), return_exceptions=True)
        assert [str(each) for each in found] == ["[Errno 28] no room"] * 2
        writes.is_full = False
        with pytest.raises(OSError, match="no room"):
            await saver.saved()
        seconds[0] += REST_SECONDS
        await saver.saved()

    asyncio.run(play())
    assert writes.added == [[claim_text(KEPT.claims[0])]]


def test_saving_on_a_full_disk_is_rate_limited() -> None:
    """On a full disk each request is refused and saving is tried once a second; old claims are not queued."""
    writes, seconds = Writes(), [0.0]
    saver = Saver(writes, lambda: KEPT, lambda: seconds[0])
    writes.is_full = True

    async def ask() -> None:
        saver.took(KEPT.claims[0])
        await saver.saved()

    async def play() -> None:
        for second in range(1, 11):
            seconds[0] += REST_SECONDS
            for _ in range(100):
                with pytest.raises(OSError, match="no room") as refused:
                    await ask()
                assert refused.value.strerror == "no room"
            assert writes.failures == second
        writes.is_full = False
        saver.save()
        await ask()

    asyncio.run(play())
    # All lines of the last second in one write, and the later line.
    assert [len(texts) for texts in writes.added] == [100, 1]


def test_after_a_failure_everything_is_written(tmp_path: Path) -> None:
    """After a failed save the whole file is written, so that no claim is lost."""
    path = tmp_path / "wrappers.json"
    saver = Saver(Store(path, "boot"), lambda: KEPT)
    beside = path.with_suffix(".new")
    beside.mkdir()
    for claim in KEPT.claims:
        saver.took(claim)
        with pytest.raises(IsADirectoryError):
            saver.save()
    beside.rmdir()
    saver.save()

    assert path.read_text() == write(KEPT, "boot")
