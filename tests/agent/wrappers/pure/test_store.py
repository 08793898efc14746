"""What an agent leaves to the next one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.wrappers.registry import Claim, Holder, Process
from agent.wrappers.store import Kept, Store, read, write
from agent.wrappers.wants import Pool, Want
from pinning.contract import PoolUse, SharedPool
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import Owner

OWNER = Owner("uid", "main")
KEPT = Kept(
    (
        Claim(Process(7, 99), Holder("id", OWNER, "ns/pod/main"), Want(Pool.EXCLUSIVE, 2, 1), CPUSet([1, 5])),
        Claim(Process(8, 99), Holder("id", OWNER, "ns/pod/main"), Want(Pool.INFRA, is_pinned=False)),
    ),
    {
        "id": (
            OWNER,
            frozenset({PoolUse(SharedPool.SHARED, 1), PoolUse(SharedPool.SHARED), PoolUse(SharedPool.INFRA)}),
        )
    },
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
    "text", ["", "{}", "[]", "null", "[" * 5000, '{"version":1}', '{"version":2,"bootID":"boot"}']
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
