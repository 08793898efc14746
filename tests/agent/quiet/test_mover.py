"""Moving interrupts off quiet CPUs and back, on interrupts that behave as the kernel's do."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.errors import Refused
from agent.quiet.interrupts import DEFAULT
from agent.quiet.mover import MOST_NAMES, InterruptMover, Moved
from agent.quiet.taken import FILE, TakenStore
from agent.reconcile.restorable import Restorable
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.interrupts import Quiet
from tests.agent.quiet.fakes import FakeInterrupts, Killed, cpus

NIC = {"25": "eth0-rx-0", "26": "eth0-rx-1"}


class Node:
    """A node whose agent can be killed and started again."""

    def __init__(self, folder: Path, **affinities: str) -> None:
        self.folder = folder
        self.kernel = FakeInterrupts(
            {DEFAULT: cpus("0-7"), **{it.removeprefix("irq"): cpus(affinities[it]) for it in affinities}}
        )
        self.kernel.names = {number: NIC.get(number, f"dev{number}") for number in self.kernel.affinities}
        self.boot = "boot"
        self.now = 0.0
        self.start()

    def start(self) -> None:
        """Start a new agent."""
        self.kernel.kill_after = None
        self.mover = InterruptMover(
            self.kernel, TakenStore(Restorable(self.folder / FILE, self.boot)), lambda: self.now
        )

    def round(self, quiet: str = "", **facts: bool) -> Moved:
        """Do one round, ten seconds after the last one."""
        self.now += 10.0
        return self.mover.round(Quiet(cpus(quiet), self.kernel.up), **facts)

    def shown(self) -> dict[str, str]:
        """Return all affinities as texts."""
        return {number: str(it) for number, it in self.kernel.affinities.items()}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Return a node with four interrupts; no CPU is quiet yet."""
    return Node(tmp_path, irq25="0-7", irq26="4", irq27="0-1", irq28="5-6")


def test_interrupts_leave_quiet_cpus_and_come_back(node: Node) -> None:
    """Each keeps what is not quiet; one that has nothing else gets all others; then everything is as before."""
    before = node.shown()
    assert node.round("4-5") == Moved()
    assert node.shown() == {DEFAULT: "0-3,6-7", "25": "0-3,6-7", "26": "0-3,6-7", "27": "0-1", "28": "6"}
    assert node.mover.has_taken
    node.round()
    assert node.shown() == before
    assert not node.mover.has_taken
    assert list(node.folder.iterdir()) == []


def test_a_round_without_change_writes_nothing(node: Node) -> None:
    """Neither to the kernel nor to the disk."""
    node.round("4-5")
    file = node.folder / FILE
    writes, written = list(node.kernel.writes), file.stat().st_mtime_ns
    node.round("4-5")
    assert (node.kernel.writes, file.stat().st_mtime_ns) == (writes, written)


def test_the_default_is_narrowed_first(node: Node) -> None:
    """A driver that is loaded in between must not get quiet CPUs."""
    node.round("4-5")
    assert node.kernel.writes[0] == (DEFAULT, "0-3,6-7")


def test_quiet_cpus_may_change_step_by_step(node: Node) -> None:
    """What is no longer quiet is given back at once, what becomes so is taken."""
    node.round("4-5")
    node.round("5-6")
    assert node.shown() == {DEFAULT: "0-4,7", "25": "0-4,7", "26": "4", "27": "0-1", "28": "0-4,7"}
    node.round()
    assert node.shown() == {DEFAULT: "0-7", "25": "0-7", "26": "4", "27": "0-1", "28": "5-6"}


def test_a_default_that_was_narrower_gets_its_own_back(node: Node) -> None:
    """Only quiet bits are taken, and put back."""
    node.kernel.affinities[DEFAULT] = cpus("0-4")
    node.round("4-5")
    assert node.shown()[DEFAULT] == "0-3"
    node.round()
    assert node.shown()[DEFAULT] == "0-4"


def test_an_interrupt_of_a_driver_loaded_later_gets_what_it_would_have_had(node: Node) -> None:
    """It is born off quiet CPUs; one agent takes note of it, the next one restores it."""
    node.round("4-5")
    node.kernel.request("40", "eth1")
    node.round("4-5")
    node.start()
    node.kernel.request("41", "eth2")
    node.round("4-5")
    assert {node.shown()[number] for number in ("40", "41")} == {"0-3,6-7"}
    node.round()
    assert {node.shown()[number] for number in ("40", "41")} == {"0-7"}


def test_an_interrupt_that_was_there_keeps_its_few_cpus(node: Node) -> None:
    """It was not narrowed by anything that the agent did, also not in the eyes of the next agent."""
    node.round("4-5")
    node.start()
    node.round("4-5")
    node.round()
    assert node.shown()["27"] == "0-1"


@pytest.mark.parametrize("fixed", ["managed", "read_only"])
def test_managed_interrupts_are_said_and_left(node: Node, fixed: str) -> None:
    """The kernel refuses the write once and is not asked again, or its file shows it before."""
    getattr(node.kernel, fixed).add("26")
    for _ in range(3):
        assert node.round("4-5").managed == ("26 (eth0-rx-1)",)
    assert node.shown()["26"] == "4"
    assert [number for number, _ in node.kernel.writes].count("26") == 0
    node.round()
    assert not node.mover.has_taken


def test_all_interrupts_may_be_managed(node: Node) -> None:
    """Then the default alone is changed."""
    for number in range(100, 100 + MOST_NAMES + 3):
        node.kernel.affinities[str(number)] = cpus("5")
    node.kernel.read_only = set(node.kernel.affinities) - {DEFAULT}
    managed = node.round("4-5").managed
    assert len(managed) == MOST_NAMES + 1
    assert managed[-1] == "and 6 more"
    assert node.shown()[DEFAULT] == "0-3,6-7"


def test_a_number_that_another_driver_got_is_not_restored(node: Node) -> None:
    """It was freed and requested again: its affinity is not one that the agent changed."""
    node.round("4-5")
    node.kernel.names["25"] = "eth9"
    node.round()
    assert node.shown()["25"] == "0-3,6-7"
    assert not node.mover.has_taken


def test_a_number_that_another_driver_got_is_no_foreign_write(node: Node) -> None:
    """Its new affinity is its original."""
    node.round("4-5")
    for at in range(5):
        node.kernel.names["25"], node.kernel.affinities["25"] = f"nvme{at}", cpus("5")
        assert node.round("4-5").conflicts == ()
    node.round()
    assert node.shown()["25"] == "5"


def test_a_freed_interrupt_is_forgotten(node: Node) -> None:
    """Nothing is left to restore of it."""
    node.round("4-5")
    del node.kernel.affinities["25"]
    node.round("4-5")
    node.kernel.request("25", "eth0-rx-0")
    node.round()
    assert node.shown()["25"] == "0-7"


def test_a_driver_that_refuses_is_said_and_tried_again(node: Node) -> None:
    """For example without free vectors on the other CPUs; the others are moved."""
    node.kernel.refused = {"25": "smp_affinity_list: No space left on device"}
    assert node.round("4-5").failed == ("smp_affinity_list: No space left on device",)
    assert (node.shown()["25"], node.shown()["26"]) == ("0-7", "0-3,6-7")
    node.kernel.refused = {}
    assert node.round("4-5") == Moved()
    node.kernel.refused = {"25": "Input/output error"}
    node.round()
    assert node.mover.has_taken
    node.kernel.refused = {}
    assert node.mover.restore()
    assert node.shown()["25"] == "0-7"


def test_the_third_foreign_write_is_a_conflict_and_ten_quiet_minutes_end_it(node: Node) -> None:
    """Two are corrected at once; then this interrupt is left alone, and no other one."""
    node.round("4-5")
    for _ in range(2):
        node.kernel.affinities["25"] = cpus("5")
        assert node.round("4-5").conflicts == ()
        assert node.shown()["25"] == "0-3,6-7"
    node.kernel.affinities["25"] = cpus("5")
    assert node.round("4-5").conflicts == ("25 (eth0-rx-0)",)
    node.kernel.affinities["26"] = cpus("4")
    node.round("4-5")
    assert (node.shown()["25"], node.shown()["26"]) == ("5", "0-3,6-7")
    node.now += 600.0
    assert node.round("4-5").conflicts == ()
    assert node.shown()["25"] == "0-3,6-7"
    node.round()
    assert node.shown()["25"] == "5"


def test_writes_of_an_irqbalance_that_has_not_acted_by_its_ban_are_no_conflict(node: Node) -> None:
    """Interrupts are moved off again as often as it takes."""
    for _ in range(9):
        node.kernel.affinities["25"] = cpus("5")
        assert node.round("4-5", is_settled=False).conflicts == ()
        assert node.shown()["25"] == "0-3,6-7"


def test_nothing_is_taken_while_irqbalance_would_undo_it(node: Node) -> None:
    """What is taken already stays, and what is no longer quiet is given back."""
    assert node.round("4-5", may_take=False) == Moved()
    assert node.kernel.writes == []
    node.round("4-5")
    node.round("5-6", may_take=False)
    assert node.shown()["25"] == "0-3,6-7"
    node.round("4", may_take=False)
    assert node.shown()["25"] == "0-3,5-7"


def test_an_original_that_is_offline_is_restored_when_it_is_back(node: Node) -> None:
    """The kernel refuses an affinity without an online CPU; until then the interrupt keeps off quiet CPUs."""
    node.round("4-5")
    node.kernel.set_online(cpus("0-3,6-7"))
    assert node.round() == Moved()
    assert (node.shown()["26"], node.mover.restore()) == ("0-3,6-7", False)
    node.round("6")
    assert node.shown()["26"] == "0-3,7"
    node.kernel.set_online(cpus("0-7"))
    node.round("6")
    assert node.shown()["26"] == "4"
    node.round()
    assert not node.mover.has_taken


def test_cpus_that_go_offline_and_come_back_are_no_foreign_writes(node: Node) -> None:
    """The kernel spreads an interrupt that loses its last CPU over all others, the quiet ones too."""
    node.round("4-5")
    for up in ("0-5,7", "0-7", "2-7", "0-7", "0-5,7", "0-7"):
        node.kernel.set_online(cpus(up))
        assert node.round("4-5").conflicts == ()
        assert node.kernel.quiet(cpus("4-5"))


def test_a_machine_that_changes_while_it_is_read_is_read_again(node: Node) -> None:
    """Nothing is written by facts of which some are old."""
    quiet = Quiet(cpus("4-5"), cpus("0-3,5-7"))
    assert node.mover.round(quiet) == Moved(is_steady=False)
    assert node.kernel.writes == []


def test_records_of_another_boot_are_not_restored(node: Node) -> None:
    """A reboot has reset everything."""
    node.round("4-5")
    node.boot = "another"
    node.start()
    assert not node.mover.has_taken


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"version":1,"bootID":"boot","originals":{"irq/25":"[]","irq/26":"x","irq/27":"[1,2,3]"}}',
        '{"version":1,"bootID":"boot","originals":{"irq/25":"[\\"0-7\\",[],\\"a\\"]","irq/26":"[\\"\\",[\\"1\\"],\\"\\"]"}}',
    ],
)
def test_a_damaged_file_restores_nothing(node: Node, text: str) -> None:
    """No invented value is ever written."""
    (node.folder / FILE).write_text(text)
    node.start()
    assert not node.mover.has_taken
    assert node.mover.restore()


def test_without_a_saved_original_nothing_is_written(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk leaves the interrupts where they are."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(Refused, match="No space left"):
        node.round("4-5")
    assert node.kernel.writes == []


HISTORY = st.lists(
    st.tuples(
        st.sampled_from(["", "4-5", "4", "2-3,6", "0-5", "1"]),
        st.sampled_from([None, "0-7", "0-6", "1-7", "0-3,6-7"]),
        st.none() | st.integers(0, 5),
        st.booleans(),
    ),
    max_size=8,
)


@settings(max_examples=200)
@given(HISTORY)
def test_a_kill_at_any_write_leaves_originals_or_the_right_state(
    history: list[tuple[str, str | None, int | None, bool]],
) -> None:
    """Quiet CPUs change, CPUs go offline, drivers are loaded, agents are killed; the next round is right, and the end too."""
    with tempfile.TemporaryDirectory() as folder:
        node = Node(Path(folder), irq25="0-7", irq26="4", irq27="0-1", irq28="5-6")
        hotplugged = False
        for quiet, up, kill, loads in history:
            if up:
                hotplugged = hotplugged or up != "0-7"
                node.kernel.set_online(cpus(up))
            if loads:
                node.kernel.request(str(30 + len(node.kernel.affinities)), "new")
            node.kernel.kill_after = kill
            try:
                node.round(quiet)
            except Killed:
                node.start()
                node.round(quiet)
            node.kernel.kill_after = None
            assert node.kernel.quiet(cpus(quiet))
        node.kernel.set_online(CPUSet(range(8)))
        node.start()
        assert node.mover.restore()
        shown = node.shown()
        assert shown[DEFAULT] == "0-7"
        if not hotplugged:
            assert shown | {"25": "0-7", "26": "4", "27": "0-1", "28": "5-6"} == shown
            assert {it for number, it in shown.items() if node.kernel.names[number] == "new"} <= {"0-7"}
        assert EMPTY not in node.kernel.affinities.values()
