"""What an agent leaves to the next one."""

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


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    """Processes with their starts, containers, cores and pools; a file is replaced at once."""
    store = Store(tmp_path / "wrappers.json", "boot")
    store.save(Kept())
    store.save(KEPT)

    assert store.load() == KEPT
    assert [path.name for path in tmp_path.iterdir()] == ["wrappers.json"]
    store.remove()
    assert store.load() == Kept()


def test_nothing_of_another_boot_counts() -> None:
    """No process outlives a boot, and numbers begin anew."""
    assert read(write(KEPT, "boot-1"), "boot-1") == KEPT
    assert read(write(KEPT, "boot-1"), "boot-2") == Kept()


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", "[" * 5000, '{"version":1}', '{"version":2,"bootID":"other"}']
)
def test_a_damaged_file_is_none(text: str) -> None:
    """It is as if there were none."""
    assert read(text, "boot") == Kept()


@given(st.integers(0, 1000), st.binary(min_size=1, max_size=4))
def test_no_damage_hurts(place: int, put: bytes) -> None:
    """Any bytes anywhere in the file leave claims that can be read, or none."""
    text = write(KEPT, "boot").encode()
    cut = place % len(text)
    spoiled = (text[:cut] + put + text[cut + len(put) :]).decode("utf-8", "replace")

    assert isinstance(read(spoiled, "boot"), Kept)


def test_what_is_new_is_added_to_the_file(tmp_path: Path) -> None:
    """An answer costs the same however many were given before; the later line of a process counts."""
    path, store = tmp_path / "wrappers.json", Store(tmp_path / "wrappers.json", "boot")
    first, *others = KEPT.claims
    moved = replace(first, cpus=CPUSet([2, 6]))
    store.add([claim_text(first)], lambda: KEPT)
    begun = path.stat().st_ino
    store.add([claim_text(moved)], lambda: pytest.fail("everything is written again"))

    assert path.stat().st_ino == begun
    assert store.load() == KEPT._replace(claims=(*others, moved))


def test_an_end_a_pool_and_an_entry_are_lines(tmp_path: Path) -> None:
    """Each is added to the file, and replaces what it is about."""
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
    """Entries that were added beyond the bound are counted as dropped, by the next agent too."""
    store = Store(tmp_path / "wrappers.json", "boot")
    store.save(KEPT)
    store.add([reclaimed_text(ENTRY)] * (MOST_RECLAIMED + 9), lambda: KEPT)

    kept = store.load()
    assert (len(kept.reclaimed), kept.dropped) == (MOST_RECLAIMED, 3 + 1 + 9)


def test_a_file_of_an_agent_that_wrote_no_ends_says_so(tmp_path: Path) -> None:
    """Its claims may have ended long ago, each in the ordinary way."""
    path = tmp_path / "wrappers.json"
    path.write_text('{"version":2,"bootID":"boot"}\n' + claim_text(KEPT.claims[0]))

    assert Store(path, "boot").load() == Kept(KEPT.claims[:1], has_ends=False)


def test_a_file_that_grew_is_written_anew(tmp_path: Path) -> None:
    """It holds no more than what counts and so many lines beside."""
    path, store = tmp_path / "wrappers.json", Store(tmp_path / "wrappers.json", "boot")
    lines = [claim_text(claim) for claim in KEPT.claims] * 50
    for _ in range(3 * SPARE_LINES // len(lines)):
        store.add(lines, lambda: KEPT)

    assert len(path.read_text().splitlines()) <= SPARE_LINES + len(write(KEPT, "boot").splitlines())
    assert store.load() == KEPT


def test_a_line_that_was_cut_off_costs_no_other(tmp_path: Path) -> None:
    """An agent that was killed while it added leaves what it had answered for, and the next one goes on."""
    path = tmp_path / "wrappers.json"
    path.write_text(write(KEPT, "boot") + claim_text(KEPT.claims[0])[:40])
    store = Store(path, "boot")

    assert store.load() == KEPT
    store.add([claim_text(KEPT.claims[0])], lambda: KEPT)
    assert path.read_text() == write(KEPT, "boot")


class Writes(Store):
    """A file in memory on a disk that may be full."""

    def __init__(self) -> None:
        self.added: list[list[str]] = []
        self.is_full = False
        self.failures = 0

    def add(self, texts: Iterable[str], _: object) -> None:
        """Note the texts."""
        if self.is_full:
            self.failures += 1
            raise OSError(errno.ENOSPC, "no room")
        self.added.append(list(texts))


def test_many_that_come_in_one_turn_are_saved_at_once() -> None:
    """All of them wait for the one write; whoever brings nothing new waits for none."""
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


def test_what_was_not_saved_is_saved_the_next_time() -> None:
    """Nobody takes a failure for done: all who waited for it raise it, and a second later who asks tries again."""
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


def test_a_full_disk_fills_no_memory_and_is_tried_once_a_second() -> None:
    """However many ask meanwhile, each is refused; with the next pass all are answered again."""
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
    assert [len(texts) for texts in writes.added] == [100, 1]  # of the last second, and the one after that


def test_after_a_failure_everything_is_written(tmp_path: Path) -> None:
    """Of what could not be saved meanwhile nothing is lost, though it is not kept line by line."""
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
