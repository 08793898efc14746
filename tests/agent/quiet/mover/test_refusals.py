"""Interrupts that do not move, writes that fail, and interrupts that drivers request during a round."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.errors import Gone, Refused, Unavailable
from agent.quiet.interfaces import MOST_NAMES, RecordFile
from agent.quiet.interrupts import DEFAULT
from agent.quiet.mover import Moved
from pinning.machine.cpuset import CPUSet
from tests.agent.quiet.fakes import Killed, cpus
from tests.agent.quiet.mover.scene import Node


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Return a node with four interrupts and no quiet CPUs."""
    return Node(tmp_path, irq25="0-7", irq26="4", irq27="0-1", irq28="5-6")


@pytest.mark.parametrize("fixed", ["managed", "read_only"])
def test_managed_interrupts_are_reported_and_skipped(node: Node, fixed: str) -> None:
    """An interrupt is managed by the kernel's error or its file mode; it is reported, and no write is retried."""
    getattr(node.kernel, fixed).add("26")
    for _ in range(3):
        assert node.round("4-5").managed == ("26 (eth0-rx-1)",)
        node.kernel.managed.clear()
    assert node.shown()["26"] == "4"
    assert [number for number, _ in node.kernel.writes].count("26") == 0
    node.round()
    assert not node.mover.has_taken


@pytest.mark.parametrize("fixed", ["managed", "read_only"])
def test_managed_interrupt_that_has_no_action_is_not_reported(node: Node, fixed: str) -> None:
    """A managed interrupt without a driver is not reported, because it does not fire."""
    getattr(node.kernel, fixed).add("26")
    node.kernel.names["26"] = ""
    for _ in range(3):
        assert node.round("4-5") == Moved()
    assert node.shown()["26"] == "4"


@pytest.mark.parametrize("fixed", ["managed", "read_only"])
def test_interrupt_without_a_place_is_not_reported(node: Node, fixed: str) -> None:
    """The remedy for managed interrupts would not help: the `arm-pmu` of arm64, and interrupts of GPIO pins."""
    getattr(node.kernel, fixed).add("26")
    node.kernel.unplaced.add("26")
    assert node.round("4-5").managed == ()


def test_number_of_a_managed_interrupt_is_moved_for_another_driver(node: Node) -> None:
    """An interrupt with the number of an earlier managed one is moved, because the refusal concerned that one only."""
    node.kernel.managed.add("26")
    node.round("4-5")
    node.kernel.managed.clear()
    node.kernel.names["26"] = "eth1-rx-0"
    assert node.round("4-5") == Moved()
    assert node.shown()["26"] == "0-3,6-7"


def test_refused_default_affinity_is_never_managed(node: Node) -> None:
    """A refused write of the default affinity is a failure and not a managed interrupt."""
    node.kernel.managed.add(DEFAULT)
    moved = node.round("4-5")
    assert (moved.managed, moved.failed) == ((), ("default: EIO",))


@pytest.mark.parametrize("number", ["25", DEFAULT])
def test_restore_that_is_refused_as_managed_keeps_its_record(node: Node, number: str) -> None:
    """If a restore is refused as managed, the record is kept, so that the original is not lost."""
    node.round("4-5")
    node.start()
    node.kernel.managed.add(number)
    assert not node.mover.restore()
    assert node.shown()[number] == "0-3,6-7"
    node.kernel.managed.clear()
    assert node.mover.restore()
    assert node.shown()[number] == "0-7"


def test_managed_interrupt_of_a_killed_agent_is_still_managed(node: Node) -> None:
    """An interrupt that was recorded but never written, because the agent was killed, can still be managed."""
    node.kernel.managed.add("26")
    node.kernel.kill_after = 1
    with pytest.raises(Killed):
        node.round("4-5")
    node.start()
    assert node.round("4-5") == Moved(managed=("26 (eth0-rx-1)",))
    assert node.mover.restore()


@pytest.mark.parametrize("number", ["25", DEFAULT])
def test_write_that_changes_nothing_is_reported(node: Node, number: str) -> None:
    """An interrupt on which a write changes nothing is reported in each round, without a save or a conflict."""
    node.kernel.deaf.add(number)
    first = node.round("4-5")
    assert first.failed[0].endswith(": its CPUs are 0-7 after 0-3,6-7 was written")
    written = (node.folder / RecordFile.INTERRUPTS).stat().st_mtime_ns
    for _ in range(4):
        assert node.round("4-5") == first
    assert (node.folder / RecordFile.INTERRUPTS).stat().st_mtime_ns == written
    node.kernel.deaf.clear()
    assert node.round("4-5") == Moved()
    node.kernel.deaf.add(number)
    assert not node.mover.restore()
    node.kernel.deaf.clear()
    assert node.mover.restore()
    assert node.shown()[number] == "0-7"


def test_value_of_a_second_writer_is_not_restored_over(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that another program wrote between the agent's write and its read is not overwritten by a restore."""
    move = node.kernel.move

    def second(number: str, wanted: CPUSet, _: int | None) -> None:
        move(number, wanted)
        if number == "25":
            node.kernel.affinities["25"] = cpus("2")

    monkeypatch.setattr(node.kernel, "move", second)
    assert node.round("4-5").failed == ("25 (eth0-rx-0): its CPUs are 2 after 0-3,6-7 was written",)
    monkeypatch.undo()
    assert node.round("4-5") == Moved()
    assert node.mover.restore()
    assert node.shown()["25"] == "2"


@pytest.mark.parametrize("left", [[], [DEFAULT], ["25", "26"]])
def test_unreadable_folder_keeps_all_records(node: Node, left: list[str]) -> None:
    """Without the default affinity or any interrupt all records are kept, because the folder is not the node's."""
    node.round("4-5")
    whole = node.kernel.affinities
    node.kernel.affinities = {number: it for number, it in whole.items() if number in left}
    for act in (lambda: node.round("4-5"), node.mover.restore):
        with pytest.raises(Unavailable):
            act()
    node.kernel.affinities = whole
    assert node.mover.restore()
    assert node.shown() == {DEFAULT: "0-7", "25": "0-7", "26": "4", "27": "0-1", "28": "5-6"}


def test_listed_interrupts_without_affinities_are_unavailable(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If interrupts are listed without their affinities, the folder is unavailable."""
    monkeypatch.setattr(node.kernel, "numbers", lambda: ["101", "102"])
    with pytest.raises(Unavailable, match="no interrupt has an affinity"):
        node.round("4-5")


def test_labels_can_be_printed_and_encoded(node: Node) -> None:
    """Names of interrupts are escaped in reports, because drivers copy names that pods choose; records keep them."""
    node.kernel.names["26"] = "\udcff\x1b[31m-rx\n"
    node.kernel.read_only.add("26")
    assert node.round("4-5").managed == ("26 (\\udcff\\x1b[31m-rx\\n)",)
    node.kernel.read_only.clear()
    node.round("4-5")
    node.start()
    assert node.mover.restore()
    assert node.shown()["26"] == "4"


def test_number_of_reported_managed_interrupts_is_limited(node: Node) -> None:
    """The number of reported managed interrupts is limited."""
    for number in range(100, 100 + MOST_NAMES + 3):
        node.kernel.affinities[str(number)] = cpus("5")
        node.kernel.names[str(number)] = "nvme0q1"
    node.kernel.read_only = set(node.kernel.affinities) - {DEFAULT}
    managed = node.round("4-5").managed
    assert len(managed) == MOST_NAMES + 1
    assert managed[-1] == "and 6 more"
    assert node.shown()[DEFAULT] == "0-3,6-7"


@pytest.mark.parametrize("fixed", ["managed", "read_only"])
def test_later_interrupt_that_cannot_be_moved_is_not_recorded(node: Node, fixed: str) -> None:
    """An interrupt of a later driver that cannot be moved is neither recorded nor reported: it has no quiet CPU."""
    node.round("4-5")
    node.kernel.request("40", "gpio")
    getattr(node.kernel, fixed).add("40")
    for _ in range(2):
        assert node.round("4-5") == Moved()
    assert node.mover.restore()
    node.round("4-5")
    node.kernel.request("41", "gpio")
    getattr(node.kernel, fixed).add("41")
    assert node.mover.restore()


def test_refused_write_is_reported_and_retried(node: Node) -> None:
    """A refused write or restore is reported and retried, and the other interrupts are moved."""
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


def test_nothing_is_written_without_a_saved_original(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """If originals cannot be saved, as on a full disk, no interrupt is moved."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(Refused, match="No space left"):
        node.round("4-5")
    assert node.kernel.writes == []


def test_interrupt_freed_while_it_is_moved_is_forgotten(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt that is freed during its move is dropped from the records, and the round continues."""

    def gone(number: str, wanted: CPUSet, _: int | None) -> None:
        if number == "25":
            raise Gone(number)
        node.kernel.affinities[number] = wanted

    monkeypatch.setattr(node.kernel, "move", gone)
    assert node.round("4-5") == Moved()
    assert node.shown()["26"] == "0-3,6-7"
    monkeypatch.undo()
    assert node.mover.restore()


def test_garbled_affinity_is_reported(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt with a garbled affinity is reported, and the others are moved."""
    affinity = node.kernel.affinity

    def garbled(number: str) -> CPUSet:
        if number == "25":
            raise Refused("'x' is not a list of CPUs")
        return affinity(number)

    monkeypatch.setattr(node.kernel, "affinity", garbled)
    assert node.round("4-5").failed == ("'x' is not a list of CPUs",)
    assert node.shown()["26"] == "0-3,6-7"


def test_freed_interrupt_is_named_by_its_number(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt that is freed before its report is named by its number, because it has no actions."""
    node.kernel.read_only.add("26")
    asked: list[str] = []

    def freed(number: str) -> str:
        if number in asked:
            raise Gone(number)
        asked.append(number)
        return "eth0-rx-1"

    monkeypatch.setattr(node.kernel, "name", freed)
    assert node.round("4-5").managed == ("26",)


def test_number_that_is_used_again_within_a_round_gets_the_default(node: Node) -> None:
    """An interrupt that is requested during the round does not get the original of an earlier one with its number."""
    node.round("4-5")
    node.kernel.events.append(lambda: node.kernel.request("26", "another"))
    node.round()
    assert node.shown()["26"] == "0-3,6-7"
    node.round()
    assert node.shown()["26"] == "0-7"
    assert not node.mover.has_taken


@pytest.mark.parametrize("restarts", [True, False])
def test_interrupt_that_is_requested_while_the_default_is_widened_gets_it_too(
    node: Node, restarts: bool
) -> None:
    """An interrupt requested while the default is widened gets the wider one in the next round, of any agent."""
    node.round("4-6")
    node.kernel.events.append(lambda: node.kernel.request("40", "eth1"))
    node.round("5")
    assert node.shown()["40"] == "0-3,7"
    if restarts:
        node.start()
    node.round("5")
    assert node.shown()["40"] == "0-4,6-7"
    node.kernel.events.append(lambda: node.kernel.request("41", "eth2"))
    node.round()
    assert (node.shown()["40"], node.shown()["41"]) == ("0-7", "0-4,6-7")
    if restarts:
        node.start()
    node.round()
    assert node.shown()["41"] == "0-7"
    assert list(node.folder.iterdir()) == []


def test_default_of_before_it_was_widened_is_remembered_for_one_round(node: Node) -> None:
    """The default before the last widening is remembered for one round only, because others may choose its CPUs."""
    node.round("4-6")
    node.kernel.events.append(lambda: node.kernel.request("40", "eth1"))
    for _ in range(2):
        node.round("5")
    node.kernel.affinities[DEFAULT] = cpus("0-3,7")
    node.round()
    assert node.shown()[DEFAULT] == "0-3,7"


def test_number_whose_driver_requests_it_while_the_default_is_widened_gets_it_too(node: Node) -> None:
    """An existing number that a driver requests while the default is widened gets the wider default."""
    node.round("4-5")
    node.kernel.request("40", "")
    node.kernel.events.append(lambda: node.kernel.names.update({"40": "eth1"}))
    node.round()
    node.round()
    assert node.shown()["40"] == "0-7"
    assert not node.mover.has_taken


def test_number_that_is_freed_while_the_default_is_widened_is_no_error(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number that is freed while the default is widened is no error; the next round finds its interrupt."""
    node.round("4-5")
    node.kernel.request("40", "")
    known = node.kernel.name

    def name(number: str) -> str:
        if number == "40" and node.kernel.affinities[DEFAULT] == cpus("0-7"):
            raise Gone(number)
        return known(number)

    monkeypatch.setattr(node.kernel, "name", name)
    assert node.round() == Moved()
    assert node.mover.has_taken
    monkeypatch.undo()
    node.round()
    assert not node.mover.has_taken


def test_interrupt_that_is_requested_during_a_restore_gets_the_default(node: Node) -> None:
    """A restore reads the interrupts once more, because no later round would find a new one."""
    node.round("4-5")
    node.kernel.events += [lambda: None, lambda: node.kernel.request("40", "eth1")]
    assert node.mover.restore()
    assert node.shown()["40"] == "0-7"
