"""Records of interrupts on disk: their size, and the form of earlier builds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.errors import Refused
from agent.quiet.interfaces import RecordFile
from agent.quiet.taken import TakenStore
from agent.reconcile.restorable import Restorable
from pinning.machine.cpuset import CPUSet
from pinning.machine.interrupts import Taken
from tests.agent.quiet.fakes import cpus

ALL = CPUSet(range(512))
EVEN = CPUSet(range(0, 512, 2))


def store_in(folder: Path) -> TakenStore:
    """Return the store of a new agent."""
    return TakenStore(Restorable(folder / RecordFile.INTERRUPTS, "boot"))


def moved(number: int, original: CPUSet) -> tuple[str, Taken]:
    """Return the record of one interrupt."""
    return str(number), Taken(original, (EVEN, ALL - CPUSet([1])), f"mlx5_comp{number}@pci:0000:31:00.0")


@pytest.mark.parametrize(
    ("originals", "most"),
    [
        pytest.param([ALL], 250_000, id="all CPUs"),
        pytest.param([CPUSet([cpu]) for cpu in range(512)], 400_000, id="one CPU each"),
    ],
)
def test_file_of_thousands_of_interrupts_is_small(tmp_path: Path, originals: list[CPUSet], most: int) -> None:
    """The file for 4,000 interrupts on 512 CPUs is small, though every second CPU is quiet."""
    records = dict(moved(number, originals[number % len(originals)]) for number in range(4000))
    known: dict[str, int | None] = {number: 70_000 + int(number) for number in records}
    store_in(tmp_path).change(records, known=known)
    assert (tmp_path / RecordFile.INTERRUPTS).stat().st_size < most
    read = store_in(tmp_path)
    assert (read.taken, read.known) == (records, known)


def test_form_of_earlier_builds_is_read(tmp_path: Path) -> None:
    """Files of earlier versions are read: they had CPU lists for each interrupt, and no identities."""
    originals = {"irq/25": '["0-7", ["0-3", "0-3,6"], "eth0"]', "irq/default": '["0-7", ["0-3"], ""]'}
    saved = {"version": 1, "bootID": "boot", "originals": {**originals, "known": "25,26"}}
    (tmp_path / RecordFile.INTERRUPTS).write_text(json.dumps(saved))
    store = store_in(tmp_path)
    assert store.taken["25"] == Taken(cpus("0-7"), (cpus("0-3"), cpus("0-3,6")), "eth0")
    assert store.known == {"25": None, "26": None}
    store.change({"26": Taken(cpus("4"), (cpus("0-3"),))}, known={"25": 7, "26": None})
    again = store_in(tmp_path)
    assert (again.taken, again.known) == (store.taken, {"25": 7, "26": None})
    assert "irq/25" not in (tmp_path / RecordFile.INTERRUPTS).read_text()


@pytest.mark.parametrize(
    "text",
    [
        '["0-7", ["0-3"]]',
        '["0-7", [], {"25": ""}]',
        '["", ["0-3"], {"25": ""}]',
        '["0xzz", ["0-3"], {"25": ""}]',
        '["0x0", ["0-3"], {"25": ""}]',
        '["0-7", ["0-3"], ["25"]]',
        '["0-7", 3, {"25": ""}]',
    ],
)
def test_damaged_group_is_refused(tmp_path: Path, text: str) -> None:
    """A damaged group is refused, so that no wrong affinity is restored."""
    (tmp_path / RecordFile.INTERRUPTS).write_text(
        json.dumps({"version": 1, "bootID": "boot", "originals": {"alike/0": text}})
    )
    with pytest.raises(Refused, match="is damaged"):
        store_in(tmp_path).read()
