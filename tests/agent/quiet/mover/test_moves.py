"""Moves of interrupts off quiet CPUs and back, on interrupts that behave as the kernel's."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.errors import Refused
from agent.quiet.interfaces import MOST_NAMES, RecordFile
from agent.quiet.interrupts import DEFAULT
from agent.quiet.mover import Moved
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.interrupts import Quiet
from tests.agent.quiet.fakes import Killed, cpus
from tests.agent.quiet.mover.scene import Node


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Return a node with four interrupts and no quiet CPUs."""
    return Node(tmp_path, irq25="0-7", irq26="4", irq27="0-1", irq28="5-6")


def test_interrupts_leave_quiet_cpus_and_are_restored(node: Node) -> None:
    """Quiet CPUs are removed from each affinity, first from the default; if none is left, it is all other CPUs."""
    before = node.shown()
    assert node.round("4-5") == Moved()
    assert node.kernel.writes[0] == (DEFAULT, "0-3,6-7")
    assert node.shown() == {DEFAULT: "0-3,6-7", "25": "0-3,6-7", "26": "0-3,6-7", "27": "0-1", "28": "6"}
    assert node.mover.has_taken
    node.round()
    assert node.shown() == before
    assert not node.mover.has_taken
    assert list(node.folder.iterdir()) == []


def test_round_without_changes_writes_nothing(node: Node) -> None:
    """A round without changes writes neither affinities nor the records."""
    node.round("4-5")
    file = node.folder / RecordFile.INTERRUPTS
    writes, written = list(node.kernel.writes), file.stat().st_mtime_ns
    node.round("4-5")
    assert (node.kernel.writes, file.stat().st_mtime_ns) == (writes, written)


def test_changed_quiet_cpus_are_followed(node: Node) -> None:
    """CPUs that are no longer quiet are restored at once, and new quiet ones are removed."""
    node.round("4-5")
    node.round("5-6")
    assert node.shown() == {DEFAULT: "0-4,7", "25": "0-4,7", "26": "4", "27": "0-1", "28": "0-4,7"}
    node.round()
    assert node.shown() == {DEFAULT: "0-7", "25": "0-7", "26": "4", "27": "0-1", "28": "5-6"}


def test_only_the_newest_written_affinity_is_restored_from(node: Node) -> None:
    """An affinity that another program chose is kept, also if it equals one that the agent wrote earlier."""
    node.round("4-5")
    node.round("4")
    assert node.shown()["25"] == "0-3,5-7"
    node.kernel.affinities["25"] = cpus("0-3,6-7")
    node.round("4")
    node.round()
    assert node.shown()["25"] == "0-3,6-7"


def test_narrow_default_affinity_is_restored(node: Node) -> None:
    """A narrow default affinity loses only quiet CPUs, and is restored to its narrow value."""
    node.kernel.affinities[DEFAULT] = cpus("0-4")
    node.round("4-5")
    assert node.shown()[DEFAULT] == "0-3"
    node.round()
    assert node.shown()[DEFAULT] == "0-4"


def test_interrupt_of_a_later_driver_gets_the_original_default(node: Node) -> None:
    """Interrupts of drivers loaded later are restored to the original default, also after a restart of the agent."""
    node.round("4-5")
    node.kernel.request("40", "eth1")
    node.round("4-5")
    node.start()
    node.kernel.request("41", "eth2")
    node.round("4-5")
    assert {node.shown()[number] for number in ("40", "41")} == {"0-3,6-7"}
    node.round()
    assert {node.shown()[number] for number in ("40", "41")} == {"0-7"}


def test_narrow_affinity_is_not_widened(node: Node) -> None:
    """An affinity without quiet CPUs stays as it is, also after a restart of the agent."""
    node.round("4-5")
    node.start()
    node.round("4-5")
    node.round()
    assert node.shown()["27"] == "0-1"


@pytest.mark.parametrize(
    ("affinity", "restored"),
    [
        pytest.param("0-3,6-7", "0-7", id="by the narrowed default"),
        pytest.param("2", "2", id="by its driver"),
    ],
)
def test_reused_number_gets_only_what_the_default_lost(node: Node, affinity: str, restored: str) -> None:
    """An interrupt with a reused number gets the original default or keeps its driver's choice."""
    node.round("4-5")
    node.kernel.names["26"], node.kernel.affinities["26"] = "eth9", cpus(affinity)
    node.round()
    assert node.shown()["26"] == restored
    assert not node.mover.has_taken


def test_affinity_of_a_later_driver_that_chose_its_cpus_stays(node: Node) -> None:
    """An affinity that a later driver chose within the default stays, because it never had the quiet CPUs."""
    node.round("4-5")
    node.kernel.request("40", "mlx5")
    node.kernel.affinities["40"] = cpus("2")
    node.round("4-5")
    node.round()
    assert node.shown()["40"] == "2"


def test_number_without_a_driver_counts_when_it_is_requested(node: Node) -> None:
    """An interrupt number without a driver is recorded when a driver requests it and the kernel sets its affinity."""
    node.round("4-5")
    node.kernel.request("40", "")
    node.round("4-5")
    node.kernel.nears["40"] = cpus("4-7")
    node.kernel.names["40"], node.kernel.affinities["40"] = "eth1", cpus("6-7")
    node.round("4-5")
    node.round()
    assert node.shown()["40"] == "4-7"


def test_reused_number_is_no_foreign_write(node: Node) -> None:
    """The affinity of a new interrupt with a reused number is its original, and no foreign write."""
    node.round("4-5")
    for at in range(5):
        node.kernel.names["25"], node.kernel.affinities["25"] = f"nvme{at}", cpus("5")
        assert node.round("4-5").conflicts == ()
    node.round()
    assert node.shown()["25"] == "5"


def test_record_of_a_freed_interrupt_is_removed(node: Node) -> None:
    """The record of a freed interrupt is dropped; a later interrupt with its number gets the original default."""
    node.round("4-5")
    del node.kernel.affinities["26"]
    node.round("4-5")
    node.kernel.request("26", "eth0-rx-1")
    node.round()
    assert node.shown()["26"] == "0-7"


@pytest.mark.parametrize("restarts", [True, False])
def test_interrupt_that_was_freed_and_requested_between_rounds_gets_the_default(
    node: Node, restarts: bool
) -> None:
    """A reused number is recognised even with the same driver, moved before or not, and by a new agent too."""
    node.round("4-5")
    for number in ("26", "27"):
        node.kernel.request(number, node.kernel.names[number])
    if restarts:
        node.start()
    node.round("4-5")
    assert (node.shown()["26"], node.shown()["27"]) == ("0-3,6-7", "0-3,6-7")
    node.round()
    assert (node.shown()["26"], node.shown()["27"]) == ("0-7", "0-7")
    assert list(node.folder.iterdir()) == []


def test_interrupt_requested_again_keeps_what_its_driver_chose(node: Node) -> None:
    """An interrupt requested again keeps its driver's choice, also if the agent is killed before its first write."""
    node.round("4-5")
    node.kernel.request("25", "eth0-rx-0")
    node.kernel.request("26", "eth0-rx-1")
    node.kernel.affinities["25"], node.kernel.affinities["26"] = cpus("4"), cpus("2")
    node.kernel.kill_after = 0
    with pytest.raises(Killed):
        node.round("4-5")
    node.start()
    node.round("4-5")
    assert (node.shown()["25"], node.shown()["26"]) == ("0-3,6-7", "2")
    node.round()
    assert (node.shown()["25"], node.shown()["26"]) == ("4", "2")


def test_interrupt_requested_again_is_neither_a_conflict_nor_fixed(node: Node) -> None:
    """Conflicts and refusals of a freed interrupt do not count for a later one with its number."""
    node.kernel.managed.add("26")
    node.round("4-5")
    node.kernel.managed.clear()
    node.kernel.request("26", "eth0-rx-1")
    node.kernel.affinities["26"] = cpus("4")
    for _ in range(4):
        node.kernel.request("25", "eth0-rx-0")
        node.kernel.affinities["25"] = cpus("5")
        assert node.round("4-5") == Moved()
    assert node.shown()["26"] == "0-3,6-7"


@pytest.mark.parametrize("name", ["", "eth0-rx-0"])
def test_interrupt_of_a_card_that_is_down_gets_its_original(tmp_path: Path, name: str) -> None:
    """The interrupt of a card that is down keeps its record, and gets its original when it is restored."""
    node = Node(tmp_path, irq25="4", irq26="2")
    node.round("4-5")
    node.kernel.names["25"] = ""
    node.round("4-6")
    node.start()
    node.kernel.names["25"] = name
    node.round()
    assert node.shown() == {DEFAULT: "0-7", "25": "4", "26": "2"}


def test_without_identities_a_number_stands_for_one_interrupt_while_its_driver_stays(node: Node) -> None:
    """If the kernel shows no identities for a round, the known ones are kept as long as the driver is the same."""
    node.round("4-5")
    node.kernel.shows_identities = False
    file = (node.folder / RecordFile.INTERRUPTS).read_bytes()
    node.kernel.request("27", "dev27")
    node.round("4-5")
    assert (node.folder / RecordFile.INTERRUPTS).read_bytes() == file
    node.kernel.shows_identities = True
    node.round("4-5")
    node.round()
    assert node.shown()["27"] == "0-7"


def test_third_foreign_write_is_a_conflict_for_ten_minutes(node: Node) -> None:
    """Two foreign writes are corrected; the third is a conflict, and this interrupt is left alone for ten minutes."""
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


def test_conflict_ends_with_its_interrupt(node: Node) -> None:
    """Foreign writes of a freed interrupt do not count for the interrupt that gets its number."""
    node.round("4-5")
    for _ in range(3):
        node.kernel.affinities["25"] = cpus("5")
        node.round("4-5")
    assert node.round("4-5").conflicts == ("25 (eth0-rx-0)",)
    node.kernel.request("25", "eth0-rx-0")
    node.kernel.affinities["25"] = cpus("5")
    assert node.round("4-5").conflicts == ()
    assert node.shown()["25"] == "0-3,6-7"


def test_moves_among_other_cpus_are_no_conflict(node: Node) -> None:
    """Moves among CPUs that are not quiet are no conflict, and the other program's choice stays."""
    for cpu in ("0", "1", "2", "3"):
        node.round("4-5")
        node.kernel.affinities["25"] = cpus(cpu)
        assert node.round("4-5") == Moved()
        node.round()
        assert node.shown()["25"] == cpu
        node.kernel.affinities["25"] = cpus("0-7")
    assert node.round("4-5") == Moved()
    assert node.shown()["25"] == "0-3,6-7"


def test_foreign_writes_of_a_round_are_one_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All foreign writes of a round are one log message, with the first interrupts and the number of the others."""
    node = Node(tmp_path, **{f"irq{number}": "0-7" for number in range(10, 10 + MOST_NAMES + 3)})
    node.round("4-5")
    for number in node.kernel.affinities.keys() - {DEFAULT}:
        node.kernel.affinities[number] = cpus("5")
    node.round("4-5")
    (line,) = caplog.records
    named = line.__dict__["facts"]["interrupts"]
    assert (named[0], named[-1], len(named)) == ("10 (dev10) to 5", "and 3 more", MOST_NAMES + 1)


def test_writes_before_irqbalance_has_settled_are_no_conflict(node: Node) -> None:
    """Writes of an irqbalance that has not applied its ban are corrected without a limit, and are no conflict."""
    for _ in range(9):
        node.kernel.affinities["25"] = cpus("5")
        assert node.round("4-5", is_settled=False).conflicts == ()
        assert node.shown()["25"] == "0-3,6-7"


def test_nothing_is_moved_off_while_irqbalance_would_undo_it(node: Node) -> None:
    """While irqbalance would undo moves, no interrupt is moved off; restores of CPUs that are not quiet continue."""
    assert node.round("4-5", may_take=False) == Moved()
    assert node.kernel.writes == []
    node.round("4-5")
    node.round("5-6", may_take=False)
    assert node.shown()["25"] == "0-3,6-7"
    node.round("4", may_take=False)
    assert node.shown()["25"] == "0-3,5-7"


def test_offline_original_is_restored_once_online(node: Node) -> None:
    """An original without online CPUs is restored when one of its CPUs is online again."""
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


def test_cpu_hotplug_is_no_foreign_write(node: Node) -> None:
    """After CPU hotplug an interrupt that the kernel spread over quiet CPUs is moved again, without a foreign write."""
    node.round("4-5")
    for up in ("0-5,7", "0-7", "2-7", "0-7", "0-5,7", "0-7"):
        node.kernel.set_online(cpus(up))
        assert node.round("4-5").conflicts == ()
        assert node.kernel.quiet(cpus("4-5"))


def test_change_during_a_round_ends_it_without_writes(node: Node) -> None:
    """A CPU hotplug during a round ends it without writes, and the round reports that it must be repeated."""
    quiet = Quiet(cpus("4-5"), cpus("0-3,5-7"))
    assert node.mover.round(quiet) == Moved(is_steady=False)
    assert node.kernel.writes == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"version":1,"bootID":"boot","originals":{"known":"25,x"}}',
        '{"version":1,"bootID":"boot","originals":{"irq/25":"[]","irq/26":"x","irq/27":"[1,2,3]"}}',
        '{"version":1,"bootID":"boot","originals":{"irq/25":"[\\"0-7\\",[],\\"a\\"]","irq/26":"[\\"\\",[\\"1\\"],\\"\\"]"}}',
    ],
)
def test_damaged_file_is_kept_and_nothing_is_moved(node: Node, text: str) -> None:
    """With a damaged file nothing is moved and a restore fails, because narrowed values must not become originals."""
    node.round("4-5")
    file = node.folder / RecordFile.INTERRUPTS
    good, narrow = file.read_text(), node.shown()
    file.write_text(text)
    node.start()
    assert node.mover.has_taken
    for act in (node.mover.restore, lambda: node.round("3-5")):
        with pytest.raises(Refused, match=r"interrupts\.json is damaged: .*: restart the node"):
            act()
    assert (file.read_text(), node.shown()) == (text, narrow)
    file.write_text(good)
    assert node.mover.restore()
    assert node.shown()["26"] == "4"


HISTORY = st.lists(
    st.tuples(
        st.sampled_from(["", "4-5", "4", "2-3,6", "0-5", "1"]),
        st.sampled_from([None, "0-7", "0-6", "1-7", "0-3,6-7"]),
        st.none() | st.integers(0, 5),
        st.sampled_from(["", "before", "during"]),
    ),
    max_size=8,
)


@settings(max_examples=200)
@given(HISTORY)
def test_kill_at_any_write_is_recovered(
    history: list[tuple[str, str | None, int | None, str]],
) -> None:
    """After a kill at any write the next round completes the moves, and originals can be restored."""
    with tempfile.TemporaryDirectory() as folder:
        node = Node(Path(folder), irq25="0-7", irq26="4", irq27="0-1", irq28="5-6")
        hotplugged = False
        for quiet, up, kill, loads in history:
            if up:
                hotplugged = hotplugged or up != "0-7"
                node.kernel.set_online(cpus(up))
            load = partial(node.kernel.request, str(30 + len(node.kernel.affinities)), "new")
            if loads == "before":
                load()
            node.kernel.events = [load] if loads == "during" else []
            node.kernel.kill_after = kill
            try:
                node.round(quiet)
            except Killed:
                node.start()
                node.round(quiet)
            node.kernel.kill_after = None
            node.kernel.events = []
            assert loads == "during" or node.kernel.quiet(cpus(quiet))
        node.kernel.set_online(CPUSet(range(8)))
        node.start()
        assert node.mover.restore()
        shown = node.shown()
        assert shown[DEFAULT] == "0-7"
        if not hotplugged:
            assert shown | {"25": "0-7", "26": "4", "27": "0-1", "28": "5-6"} == shown
            assert {it for number, it in shown.items() if node.kernel.names[number] == "new"} <= {"0-7"}
        assert EMPTY not in node.kernel.affinities.values()
