"""Interrupts that stay on quiet CPUs: found on the node, left alone by irqbalance, moved and restored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agent.errors import Refused
from agent.node_state import KeptInterrupts, QuietResult
from agent.quiet import kept as kept_module
from agent.quiet.balancer import Balancer
from agent.quiet.interfaces import MOST_NAMES, RecordFile
from agent.quiet.interrupt_ban import LOOK_SECONDS, InterruptBan, Unkept
from agent.quiet.interrupts import DEFAULT
from agent.quiet.irqbalance import MOST_LETTERS, Daemon, ban_text
from agent.quiet.keeper import Kept, QuietKeeper
from agent.quiet.kept import MOST_KEPT, Keeps, KeptLookup
from agent.quiet.mover import ROOM_SECONDS, InterruptMover
from agent.quiet.taken import TakenStore
from agent.reconcile.restorable import Restorable
from pinning.machine.cpuset import CPUSet
from pinning.machine.near import Device
from pinning.planning.noise import Keep
from pinning.planning.observed import Owner
from tests.agent.quiet.fakes import FakeInterrupts, FakeIrqbalance, cpus

NIC = Device("vendor/nic", CPUSet([0]), "0000:41:00.0")
OWNER = Owner("web", "main")


def keep(text: str, *globs: str, devices: tuple[Device, ...] = ()) -> Keep:
    """Return the container's request to keep interrupts on its CPUs."""
    return Keep(OWNER, cpus(text), globs, devices)


class Scene:
    """A node with a keeper beside an irqbalance."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        numbers = {DEFAULT: "0-7", "24": "0-7", "25": "0-7", "26": "4", "27": "0-1"}
        self.kernel = FakeInterrupts({number: cpus(text) for number, text in numbers.items()})
        self.kernel.names = {"24": "nvme0", "25": "eth1-rx-0", "26": "eth1-rx-1", "27": "eth1"}
        self.kernel.devices = {NIC.address: ("25", "27")}
        self.daemon = FakeIrqbalance()
        self.kernel.order = self.daemon.order
        self.now = 0.0
        self.start()

    def saved(self, name: str) -> Restorable:
        """Return the records of a file."""
        return Restorable(self.folder / name, "boot")

    def start(self) -> None:
        """Start a new agent."""

        def clock() -> float:
            return self.now

        self.ban = InterruptBan(self.daemon, self.saved(RecordFile.BANNED_INTERRUPTS), clock)
        self.keeper = QuietKeeper(
            self.kernel,
            InterruptMover(self.kernel, TakenStore(self.saved(RecordFile.INTERRUPTS)), clock),
            Balancer(self.daemon, self.saved(RecordFile.BANNED_CPUS), clock),
            Kept(KeptLookup(self.kernel, clock), self.ban),
        )

    def round(self, quiet: str, *keeps: Keep, seconds: float = 10.0) -> QuietResult:
        """Do a round, some time after the last."""
        self.now += seconds
        result = self.keeper.round(cpus(quiet), cpus(""), frozenset(keeps))
        self.daemon.interval()
        assert result
        return result

    def shown(self) -> dict[str, str]:
        """Return all affinities as text."""
        return {number: str(it) for number, it in self.kernel.affinities.items()}


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """Return a node without a round yet."""
    return Scene(tmp_path)


ORIGINALS = {DEFAULT: "0-7", "24": "0-7", "25": "0-7", "26": "4", "27": "0-1"}


def test_a_named_interrupt_stays_and_all_others_leave(scene: Scene) -> None:
    """The named interrupt loses other quiet CPUs and gets no further CPUs."""
    result = scene.round("4-6", keep("4-5", "eth1*"))
    assert scene.shown() == {DEFAULT: "0-3,7", "24": "0-3,7", "25": "0-5,7", "26": "4", "27": "0-1"}
    names = ("25 (eth1-rx-0)", "26 (eth1-rx-1)")
    assert result.kept == {OWNER: KeptInterrupts(cpus("4-5"), frozenset({"25", "26"}), names)}
    assert result.why_not == ""
    scene.round("")
    assert scene.shown() == ORIGINALS


def test_interrupts_of_devices_fire_on_the_cpus_of_their_container(scene: Scene) -> None:
    """Interrupts of the container's devices move to its CPUs, and back when it ends; a new agent continues that."""
    result = scene.round("4-5", keep("4-5", devices=(NIC,)))
    at_home = {DEFAULT: "0-3,6-7", "24": "0-3,6-7", "25": "4-5", "26": "0-3,6-7", "27": "4-5"}
    assert scene.shown() == at_home
    assert result.kept[OWNER].names == ("25 (eth1-rx-0)", "27 (eth1)")
    scene.start()
    scene.round("4-5", keep("4-5", devices=(NIC,)))
    assert scene.shown() == at_home
    scene.round("4-5")
    assert scene.shown() | {"27": ""} == {**at_home, "25": "0-3,6-7", "27": ""}
    scene.round("")
    assert scene.shown() == ORIGINALS
    scene.round("")  # irqbalance has acted
    assert list(scene.folder.iterdir()) == []


def test_a_policy_that_is_added_later_brings_interrupts_back(scene: Scene) -> None:
    """A policy that is added later moves interrupts back to their original CPUs."""
    scene.round("4-5")
    assert scene.shown()["25"] == "0-3,6-7"
    scene.round("4-5", keep("4-5", "eth1-rx-0"))
    assert scene.shown()["25"] == "0-7"
    # The request is sent at once, because irqbalance may act before the next round.
    assert scene.daemon.lists == ["25"]


def test_irqbalance_is_asked_first_and_afterwards_forgets(scene: Scene) -> None:
    """Irqbalance is sent kept interrupts before its ban, and without them when they end; the operator's list stays."""
    scene.daemon.alone = frozenset({9})
    scene.round("4-5", keep("4-5", "eth1-rx-*"))
    assert scene.daemon.order[:2] == ["leave", "ban"]
    assert scene.daemon.lists == ["9 25 26"]
    scene.round("4-5", keep("4-5", "eth1-rx-0"))
    assert not scene.keeper.is_idle
    scene.round("")
    scene.round("")
    assert scene.daemon.lists == ["9 25 26", "9 25", "9"]
    assert scene.keeper.is_idle


def test_irqbalance_goes_on_with_interrupts_that_a_glob_matches_elsewhere(scene: Scene) -> None:
    """Irqbalance keeps balancing interrupts that a glob matches but that cannot fire on the container's CPUs."""
    result = scene.round("4-5", keep("4-5", "*"))
    assert scene.daemon.lists == ["24 25 26"]
    assert result.kept[OWNER].numbers == {"24", "25", "26"}


def test_containers_take_turns_in_irqbalances_list_and_devices_come_first(scene: Scene) -> None:
    """Interrupts of devices come first in irqbalance's limited list, then those of globs, by turns of containers."""
    for number in range(1000, 1300):
        scene.kernel.affinities[str(number)], scene.kernel.names[str(number)] = cpus("4-7"), "disk"
    scene.kernel.devices[NIC.address] = tuple(map(str, range(1250, 1260)))
    for number in range(1270, 1280):
        scene.kernel.names[str(number)] = "net"
    every = keep("4", "*")
    device = Keep(Owner("x", "main"), cpus("5"), (), (NIC,))
    named = Keep(Owner("y", "main"), cpus("6"), ("net",))
    kept = scene.round("4-6", every, device, named).kept
    (sent,) = scene.daemon.lists
    assert {*range(1250, 1260), *range(1270, 1280)} <= set(map(int, sent.split()))
    assert len(sent.split()) > 60
    assert (kept[device.owner].note, kept[named.owner].note) == ("", "")
    assert kept[OWNER].note.startswith("irqbalance may move ")
    assert kept[OWNER].note.endswith(" of them: its list has at most 499 characters")


def test_names_and_devices_are_read_once_per_change(scene: Scene) -> None:
    """Names and devices are read again after a change of the interrupts, and once a minute."""
    held = keep("4-5", "eth2", devices=(NIC,))
    for _ in range(3):
        result = scene.round("4-5", held)
    assert scene.kernel.device_reads == 1
    assert result.kept[OWNER].note == "no interrupt has a name like eth2"
    scene.kernel.request("30", "")
    scene.round("4-5", held)
    assert scene.kernel.device_reads == 2
    scene.kernel.names["30"], scene.kernel.affinities["30"] = "eth2", cpus("4-7")
    scene.round("4-5", held)
    assert scene.kernel.device_reads == 2
    result = scene.round("4-5", held, seconds=60.0)
    assert (scene.shown()["30"], result.kept[OWNER].note) == ("4-7", "")


def test_a_managed_interrupt_that_stays_is_not_reported(scene: Scene) -> None:
    """A managed interrupt that stays is not reported, because only the kernel chooses its CPUs."""
    scene.kernel.read_only = {"24", "25"}
    result = scene.round("4-5", keep("4-5", "nvme0", devices=(NIC,)))
    assert result.managed == ()
    assert scene.shown()["25"] == "0-7"
    assert "25 (eth1-rx-0)" in result.kept[OWNER].names
    assert scene.round("4-5").managed == ("24 (nvme0)", "25 (eth1-rx-0)")


def test_an_interrupt_that_is_freed_meanwhile_is_left_out(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt that disappears during the reading is skipped without an error."""
    del scene.kernel.affinities["27"]
    assert scene.round("4-5", keep("4-5", devices=(NIC,))).kept[OWNER].names == ("25 (eth1-rx-0)",)

    def refused(number: str) -> CPUSet:
        raise Refused(number)

    lookup = KeptLookup(scene.kernel, lambda: 0.0)
    lookup.follow(frozenset({keep("4-5", "eth1*")}))
    monkeypatch.setattr(scene.kernel, "affinity", refused)
    assert lookup.shown(frozenset({keep("4-5", "eth1*")}), Unkept()).popitem()[1].numbers == frozenset()


def test_names_are_compared_once_for_many_rounds(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are compared with globs once for many rounds, because 110 pods would take seconds."""
    keeps, asked = frozenset({keep("4-5", "none*")}), list[Keep]()

    def noted(it: Keep, *_: object) -> str:
        asked.append(it)
        return "no interrupt"

    monkeypatch.setattr(kept_module, "note_of", noted)
    lookup = KeptLookup(scene.kernel, lambda: 0.0)
    for _ in range(3):
        lookup.follow(keeps)
        assert lookup.shown(keeps, Unkept())[OWNER].note == "no interrupt"
    assert asked == list(keeps)


def test_a_container_that_names_all_interrupts_reports_some(scene: Scene) -> None:
    """The size of a report is bounded, whatever a glob matches."""
    for number in range(100, 100 + 2 * MOST_KEPT):
        scene.kernel.affinities[str(number)], scene.kernel.names[str(number)] = cpus("4"), "nic"
    kept = scene.round("4-5", keep("4-5", "*")).kept[OWNER]
    assert (len(kept.numbers), kept.names[-1]) == (MOST_KEPT, f"and {MOST_KEPT - MOST_NAMES} more")
    assert "irqbalance may move" in kept.note


def test_interrupts_without_room_at_home_leave_the_quiet_cpus_of_others(scene: Scene) -> None:
    """Interrupts without free vectors on the container's CPUs leave quiet CPUs of others, and are in a note."""
    numbers = [str(number) for number in range(100, 108)]
    for number in numbers:
        scene.kernel.affinities[number], scene.kernel.names[number] = cpus("0-7"), "nic"
    scene.kernel.devices[NIC.address] = tuple(numbers)
    del scene.kernel.affinities["26"]
    scene.kernel.room = 5
    held = keep("4", devices=(NIC,))
    result = scene.round("4-5", held)
    assert "No space left on device" in result.why_not
    assert not scene.keeper.has_settled
    for _ in range(2):
        result = scene.round("4-5", held)
        assert sorted(scene.shown()[number] for number in numbers) == ["0-4,6-7"] * 3 + ["4"] * 5
        assert result.why_not == ""
        note = "3 interrupts of its devices fire on other CPUs too: interrupt 105: No space left on device"
        assert result.kept[OWNER].note == note
    writes = len(scene.kernel.writes)
    scene.round("4-5", held)
    assert len(scene.kernel.writes) == writes
    scene.kernel.room = None
    result = scene.round("4-5", held, seconds=ROOM_SECONDS)
    assert {scene.shown()[number] for number in numbers} == {"4"}
    assert (result.why_not, result.kept[OWNER].note) == ("", "")


def test_a_restarted_agent_tries_a_refused_home_once(scene: Scene) -> None:
    """After a restart the agent tries a refused move once, because refusals are not saved."""
    for number in ("25", "27"):
        scene.kernel.affinities[number] = cpus("0-7")
    del scene.kernel.affinities["26"]
    scene.kernel.room = 1
    held = keep("4", devices=(NIC,))
    for _ in range(2):
        before = scene.round("4-5", held)
    shown = scene.shown()
    assert (shown["25"], shown["27"]) == ("4", "0-4,6-7")
    writes = len(scene.kernel.writes)
    scene.kernel.crowded.clear()
    scene.start()
    for _ in range(3):
        after = scene.round("4-5", held)
        assert (scene.shown(), after.why_not) == (shown, "")
        assert after.kept[OWNER].note == before.kept[OWNER].note != ""
    assert (len(scene.kernel.writes), scene.kernel.crowded) == (writes, ["27"])
    scene.kernel.room = None
    scene.start()
    result = scene.round("4-5", held)
    assert (scene.shown()["27"], result.why_not, result.kept[OWNER].note) == ("4", "", "")


def test_moving_a_device_away_from_home_is_foreign(scene: Scene) -> None:
    """A foreign move of a device's interrupt off its container's CPUs is corrected twice."""
    held = keep("4-5", devices=(NIC,))
    result = scene.round("4-5", held)
    for _ in range(4):  # irqbalance acts by its list
        scene.round("4-5", held)
    for _ in range(4):  # the first one may still be irqbalance's
        scene.kernel.affinities["25"] = cpus("0")
        result = scene.round("4-5", held)
    assert result.conflicts == ("25 (eth1-rx-0)",)
    assert scene.shown()["25"] == "0"


def test_nothing_stays_where_nothing_is_moved(scene: Scene) -> None:
    """If too few other CPUs remain, kept interrupts get their originals, and irqbalance its list."""
    result = scene.round("1-7", keep("4-5", "eth1*"))
    assert (scene.shown(), scene.daemon.lists, result.kept) == (ORIGINALS, [], {})


def test_reset_takes_kept_interrupts_from_irqbalances_list(scene: Scene) -> None:
    """A reset removes a killed agent's kept interrupts from irqbalance's list by the record alone."""
    scene.round("4-5", keep("4-5", devices=(NIC,)))
    scene.start()
    assert scene.keeper.restore()
    assert (scene.shown(), scene.daemon.lists) == (ORIGINALS, ["25 27", ""])
    scene.round("4-5", keep("4-5", devices=(NIC,)))
    scene.daemon.silence = "no answer in time"
    assert not scene.keeper.restore()


class Beside:
    """An agent that has irqbalance leave interrupts alone."""

    def __init__(self, folder: Path, *, is_managed: bool = True) -> None:
        self.folder = folder
        self.is_managed = is_managed
        self.daemon = FakeIrqbalance()
        self.now = 0.0
        self.unkept = Unkept()  # interrupts that irqbalance may move by its last answer
        self.start()

    def start(self) -> None:
        """Start a new agent."""
        saved = Restorable(self.folder / RecordFile.BANNED_INTERRUPTS, "boot")
        self.ban = InterruptBan(self.daemon, saved, lambda: self.now, is_managed=self.is_managed)

    def leave(self, *numbers: str, seconds: float = LOOK_SECONDS) -> str:
        """Send the list, a minute after the last request; return why irqbalance may move interrupts."""
        self.now += seconds
        self.unkept = self.ban.leave(numbers)
        return self.unkept.reason


@pytest.fixture
def beside(tmp_path: Path) -> Beside:
    """Return an agent without a request yet."""
    return Beside(tmp_path)


def test_a_list_that_irqbalance_has_is_asked_for_once_a_minute(beside: Beside) -> None:
    """An unchanged list is verified once a minute; a changed one is sent at once."""
    assert [beside.leave("25"), beside.leave("25", seconds=1.0), beside.leave("25")] == ["", "", ""]
    beside.daemon.alone = frozenset()
    assert beside.leave("25", seconds=1.0) == ""
    assert beside.daemon.lists == ["25"]
    assert beside.leave("25", "26", seconds=1.0) == ""
    assert beside.daemon.lists == ["25", "25 26"]


def test_a_list_of_the_operator_needs_nothing(beside: Beside) -> None:
    """If the operator's list has the interrupts already, nothing is sent."""
    beside.daemon.alone = frozenset({25})
    assert (beside.leave("25"), beside.ban.has_added) == ("", False)
    assert (beside.leave(), beside.daemon.lists) == ("", [])


def test_a_killed_agent_leaves_a_record(beside: Beside) -> None:
    """A killed agent's record lets the next one distinguish its interrupts from the operator's."""
    beside.daemon.alone = frozenset({9})
    beside.daemon.is_deaf = True
    assert "it ignores the list" in beside.leave("25")
    beside.start()
    beside.daemon.is_deaf = False
    assert beside.leave("25") == ""
    beside.start()
    assert beside.ban.restore()
    assert beside.daemon.lists == ["9 25", "9 25", "9"]


def test_another_irqbalance_has_another_list(beside: Beside) -> None:
    """A restarted irqbalance has its own list, so the record of the earlier one is dropped."""
    beside.leave("25")
    beside.daemon.daemon = Daemon(8, 200, Path("/run/irqbalance/irqbalance8.sock"))
    beside.daemon.alone = frozenset()
    assert beside.leave("25") == ""
    beside.daemon.daemon = None
    assert (beside.leave("25"), beside.ban.has_added) == ("", False)


def test_a_running_irqbalance_without_its_socket_keeps_its_record(beside: Beside) -> None:
    """While irqbalance runs without a visible socket the record is kept, because its list is in effect."""
    beside.leave("25")
    beside.daemon.hidden, beside.daemon.daemon = beside.daemon.daemon, None
    assert (
        beside.leave() == "irqbalance may move them: its socket is not visible any more: restart irqbalance"
    )
    assert not beside.ban.restore()


def test_a_program_that_replaces_the_list_is_a_conflict(beside: Beside) -> None:
    """The list is corrected twice before the conflict is reported."""
    reasons = []
    for _ in range(5):
        reasons.append(beside.leave("25"))
        beside.daemon.alone = frozenset()
    assert reasons[:3] == ["", "", ""]
    assert reasons[-1] == "another program keeps replacing the interrupts that irqbalance must not move"


def test_the_list_ends_before_irqbalance_would_cut_it(beside: Beside) -> None:
    """The list is limited to 499 bytes, because irqbalance before 1.9.5 truncates longer ones."""
    numbers = [str(number) for number in range(1000, 1200)]
    reason = beside.leave(*numbers)
    (sent,) = beside.daemon.lists
    assert len(ban_text(frozenset(map(int, sent.split())))) <= MOST_LETTERS
    assert reason == "its list has at most 499 characters"
    assert beside.unkept.numbers == frozenset(numbers[len(sent.split()) :])
    assert beside.leave(*numbers) == reason
    assert len(beside.daemon.lists) == 1


def test_irqbalance_of_the_operator_is_left_alone(tmp_path: Path) -> None:
    """With `irqbalance: ignore` nothing is sent, because the operator's configuration has the list."""
    beside = Beside(tmp_path, is_managed=False)
    assert (beside.leave("25"), beside.daemon.lists) == ("", [])


def test_the_reason_of_an_irqbalance_that_does_not_answer_is_reported(beside: Beside) -> None:
    """An irqbalance that does not answer may move kept interrupts, so the reason is reported."""
    beside.daemon.silence = "no answer in time"
    assert beside.leave("25") == "irqbalance may move them: no answer in time"


@pytest.mark.parametrize("text", ["x", "[7]", '[7, 107, ["x"]]'])
def test_a_damaged_record_is_kept(beside: Beside, text: str) -> None:
    """With a damaged record no list is sent and a restore fails, and the file is kept."""
    beside.leave("25")
    file = beside.folder / RecordFile.BANNED_INTERRUPTS
    file.write_text(file.read_text().replace('"[7, 107, [25]]"', f'"{text}"'.replace('["x"]', '[\\"x\\"]')))
    beside.start()
    assert RecordFile.BANNED_INTERRUPTS in beside.leave("25", "26")
    assert not beside.ban.restore()
    assert beside.daemon.lists == ["25"]


@pytest.mark.parametrize("many", [frozenset[Keep], lambda: frozenset({keep("4-5", "eth1*")})])
def test_an_agent_without_policies_reads_nothing(scene: Scene, many: Callable[[], Keeps]) -> None:
    """Without `irq-policy` no names of interrupts are read."""
    lookup = KeptLookup(scene.kernel, lambda: 0.0)
    keeps = many()
    assert bool(lookup.follow(keeps)) is bool(keeps)
