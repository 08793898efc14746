"""irqbalance's process, socket and answers, and the ban that the agent sends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from agent.errors import Refused, Unavailable
from agent.kernel.procfs import NO_LOGIN
from agent.quiet.balancer import LOOK_SECONDS, MOST_SENDS, Balancer, BanState
from agent.quiet.interfaces import RecordFile
from agent.quiet.irqbalance import MOST_BYTES, Daemon, Irqbalance, Setup
from agent.reconcile.restorable import Restorable
from pinning.machine.cpuset import EMPTY
from tests.agent.quiet.fakes import FakeIrqbalance, cpus, process

UID = "0e5b0b3c-1d2a-4c51-9b7f-6f8d1c2b3a40"


@contextmanager
def serving(path: Path, answer: Callable[[str], bytes]) -> Iterator[list[str]]:
    """Serve the answer once on each connection, as irqbalance does; yield the requests."""
    asked: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, suppress(OSError):
                        asked.append(connection.recv(4096).decode())
                        connection.sendall(answer(asked[-1]))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield asked
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture
def client(tmp_path: Path) -> Irqbalance:
    """Return a client; process 7 is an irqbalance."""
    (tmp_path / "run").mkdir()
    process(tmp_path / "proc", 7)
    return Irqbalance(tmp_path / "run", tmp_path / "proc", timeout_seconds=30.0)


def socket_of(client: Irqbalance, pid: int = 7) -> Path:
    """Return the path of a socket."""
    return client.folder / f"irqbalance{pid}.sock"


def test_running_irqbalance_is_found_by_its_socket(client: Irqbalance) -> None:
    """The socket of a killed process and files with other names are ignored."""
    assert client.with_socket() is None
    for name in ("irqbalance6.sock", "irqbalance.sock", "irqbalancex.sock", "irqbalance7.sock"):
        (client.folder / name).touch()
    assert client.with_socket() == Daemon(7, 107, socket_of(client))
    assert Irqbalance(Path("/nowhere"), Path("/nowhere")).with_socket() is None


@pytest.mark.parametrize(
    ("name", "cgroup", "state", "is_one"),
    [
        ("irqbalance", "/system.slice/irqbalance.service", "S", True),
        ("irqbalance", "/../../../system.slice/irqbalance.service", "S", True),
        ("irqbalance", "/system.slice/irqbalance.service", "Z", False),
        ("irqbalancer", "/system.slice/x.service", "S", False),
        ("irqbalance", "/kubepods.slice/kubepods-pod1.slice/cri-1.scope", "S", False),
        # From an agent in a cgroup namespace of its own, with the cgroupfs driver and with systemd's.
        ("irqbalance", f"/../../pod{UID}/{'a' * 64}", "S", False),
        ("irqbalance", f"/../../burstable/pod{UID}/{'a' * 64}", "S", False),
        ("irqbalance", f"/../../kubepods-pod{UID.replace('-', '_')}.slice/cri-1.scope", "S", False),
    ],
)
def test_a_process_is_believed_outside_of_pods_alone(
    tmp_path: Path, name: str, cgroup: str, state: str, is_one: bool
) -> None:
    """A process named irqbalance counts only outside of pods, because any container can use this name."""
    process(tmp_path, 9, name, cgroup, state=state)
    (tmp_path / "self").mkdir()
    (tmp_path / "10").mkdir()
    client = Irqbalance(tmp_path / "run", tmp_path)
    assert client.without_socket() == (Daemon(9, 109) if is_one else None)
    assert Irqbalance(tmp_path, Path("/nowhere")).without_socket() is None


@pytest.mark.parametrize(
    ("uids", "login", "is_one"),
    [
        pytest.param("0 0", NO_LOGIN, True, id="a service"),
        pytest.param("0 0", 0, True, id="started by root"),
        pytest.param("0 0", None, True, id="a kernel without audit"),
        pytest.param("0 0", "x", True, id="a garbled login uid"),
        pytest.param("1000 1000", 1000, False, id="a user's program"),
        pytest.param("1000 0", NO_LOGIN, False, id="a setuid program"),
        pytest.param("0 0", 1000, False, id="a setuid program that waits with root's real uid, as sudo does"),
    ],
)
def test_users_cannot_pretend_to_be_an_irqbalance_without_a_socket(
    tmp_path: Path, uids: str, login: int | str | None, is_one: bool
) -> None:
    """An irqbalance without a socket does not count if a user may have started it."""
    process(tmp_path, 9, uids=uids, login=login)
    assert Irqbalance(tmp_path / "run", tmp_path).without_socket() == (Daemon(9, 109) if is_one else None)


def test_an_administrators_irqbalance_is_found_by_its_socket(client: Irqbalance) -> None:
    """An irqbalance that root started by sudo in a user's session is found by its socket."""
    process(client.folder.parent / "proc", 8, login=1000)
    socket_of(client, 8).touch()
    daemon = Daemon(8, 108, socket_of(client, 8))
    assert client.with_socket() == daemon
    assert client.runs(daemon)


@pytest.mark.parametrize(
    ("answer", "setup"),
    [
        (
            b"SLEEP 10 IRQ 25 LOAD 3 DIFF 0 CLASS 1 IRQ 7 LOAD 0 DIFF 0 CLASS 0 BANNED 000000f0",
            Setup(cpus("4-7"), 10, frozenset({7, 25})),
        ),
        (b"SLEEP 2 BANNED 00000001,00000000\n", Setup(cpus("32"), 2)),
        (b"SLEEP 10 BANNED 0\x00", Setup(EMPTY, 10)),
    ],
)
def test_setup_answer_is_parsed(client: Irqbalance, answer: bytes, setup: Setup) -> None:
    """Banned CPUs are a hexadecimal mask."""
    with serving(socket_of(client), lambda _: answer) as asked:
        assert client.setup(Daemon(7, 107, socket_of(client))) == setup
    assert asked == ["setup"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param(b"", "is not an answer", id="another uid gets nothing"),
        pytest.param(b"SLEEP 10 IRQ", "is not an answer", id="cut"),
        pytest.param(b"BANNED ff", "is not an answer", id="without an interval"),
        pytest.param(b"SLEEP 10 BANNED xyz", "is not an answer", id="no mask"),
        pytest.param(b"\xff\x00" * 999, "is not an answer", id="rubbish"),
        pytest.param(b"SLEEP 1 BANNED 1" + b",00000000" * 300, "above 8191", id="a mask of 9,600 CPUs"),
        pytest.param(b"SLEEP 1 BANNED f,f", "not a hex mask", id="a mask in short groups"),
        pytest.param(b"x" * (MOST_BYTES + 1), "more than 1 MiB", id="without end"),
    ],
)
def test_nonsense_is_no_answer(client: Irqbalance, answer: bytes, reason: str) -> None:
    """An invalid or oversized answer is refused with the reason."""
    with serving(socket_of(client), lambda _: answer), pytest.raises(Unavailable, match=reason):
        client.setup(Daemon(7, 107, socket_of(client)))


def test_slow_answer_times_out(client: Irqbalance, tmp_path: Path) -> None:
    """A missing answer, or one in single bytes, times out."""
    times = iter(range(0, 10_000, 40))
    slow = Irqbalance(tmp_path / "run", tmp_path / "proc", 30.0, lambda: float(next(times)))
    with (
        serving(socket_of(client), lambda _: b"SLEEP"),
        pytest.raises(Unavailable, match="no answer in time"),
    ):
        slow.setup(Daemon(7, 107, socket_of(client)))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(socket_of(client, 8)))
        listener.listen()
        hasty = Irqbalance(tmp_path / "run", tmp_path / "proc", 0.01)
        with pytest.raises(Unavailable, match="no answer in time"):
            hasty.setup(Daemon(8, 1, socket_of(client, 8)))


def test_stale_socket_raises_unavailable(client: Irqbalance) -> None:
    """A socket on which no process listens raises Unavailable."""
    socket_of(client).touch()
    with pytest.raises(Unavailable, match="refused"):
        client.ban(Daemon(7, 107, socket_of(client)), cpus("4"))


def test_ban_is_one_list_without_spaces(client: Irqbalance) -> None:
    """The ban is sent as one word without spaces; NULL restores the list of irqbalance's environment."""
    with serving(socket_of(client), lambda _: b"") as asked:
        client.ban(Daemon(7, 107, socket_of(client)), cpus("4-7,9"))
        client.ban(Daemon(7, 107, socket_of(client)), EMPTY)
    assert asked == ["settings cpus 4-7,9", "settings cpus NULL"]


def test_interrupts_to_leave_alone_are_numbers_with_an_end(client: Irqbalance) -> None:
    """The list of ignored interrupts ends with `x`, because irqbalance before 1.9.0 reads on; an empty one is NONE."""
    daemon = Daemon(7, 107, socket_of(client))
    with serving(socket_of(client), lambda _: b"") as asked:
        client.ban_interrupts(daemon, [30, 4])
        client.ban_interrupts(daemon, [])
    assert asked == ["settings ban irqs 4 30 x", "settings ban irqs NONE"]


class Beside:
    """An agent beside an irqbalance."""

    def __init__(self, folder: Path, *, is_managed: bool = True) -> None:
        self.folder = folder
        self.daemon = FakeIrqbalance()
        self.now = 0.0
        self.is_managed = is_managed
        self.start()

    def start(self) -> None:
        """Start a new agent."""
        saved = Restorable(self.folder / RecordFile.BANNED_CPUS, "boot")
        self.balancer = Balancer(self.daemon, saved, lambda: self.now, is_managed=self.is_managed)

    def ask(self, quiet: str, seconds: float = 10.0) -> BanState:
        """Request a ban, some time after the last request."""
        self.now += seconds
        told = self.balancer.keep_off(cpus(quiet))
        self.daemon.interval()
        return told


@pytest.fixture
def beside(tmp_path: Path) -> Beside:
    """Return an agent without a request yet."""
    return Beside(tmp_path)


def test_ban_is_united_with_the_earlier_one(beside: Beside) -> None:
    """The ban includes an earlier one of the operator, which alone is restored afterwards."""
    beside.daemon.banned = beside.daemon.pending = cpus("1")
    beside.ask("4-5")
    beside.ask("4-6")
    beside.ask("4-6", LOOK_SECONDS)
    assert beside.balancer.has_banned
    beside.ask("")
    beside.ask("")
    assert beside.daemon.bans == ["1,4-5", "1,4-6", "1"]
    assert not beside.balancer.has_banned
    assert not (beside.folder / RecordFile.BANNED_CPUS).exists()


def test_existing_ban_is_not_sent(beside: Beside) -> None:
    """If the operator's ban already has all quiet CPUs, none is sent."""
    beside.daemon.banned = beside.daemon.pending = cpus("4-7")
    assert beside.ask("4-5") == BanState()
    beside.ask("")
    assert (beside.daemon.bans, beside.balancer.has_banned) == ([], False)


def test_list_that_irqbalance_would_cut_is_not_sent(beside: Beside) -> None:
    """Irqbalance would ban the CPUs of the truncated list, and show a list that looks like that of another program.

    A shorter list is sent.
    """
    scattered = ",".join(map(str, range(1, 400, 3)))
    beside.ask("4")
    assert beside.ask(scattered).reason == (
        "irqbalance reads 499 characters of a list of CPUs, and this one is longer"
    )
    beside.ask("4-5", LOOK_SECONDS)
    beside.ask("", LOOK_SECONDS)
    beside.ask("", LOOK_SECONDS)
    assert (beside.daemon.bans, beside.balancer.has_banned) == (["4", "4-5", ""], False)


def test_ban_is_settled_two_intervals_after_it_was_read_back(beside: Beside) -> None:
    """A ban counts as settled two intervals after it was read back; until then irqbalance's moves are not foreign."""
    assert not beside.ask("4").is_settled
    assert [beside.ask("4").is_settled for _ in range(4)] == [False, False, True, True]


def test_restarted_agent_continues_the_ban(beside: Beside) -> None:
    """A restarted agent recognizes its own ban, and does not send it again; its end restores irqbalance's environment."""
    beside.ask("4")
    beside.start()
    beside.ask("4")
    beside.ask("")
    assert beside.daemon.bans == ["4", ""]


def test_agent_killed_before_the_ban_restores_the_earlier_list(beside: Beside) -> None:
    """If the agent is killed between saving and sending the ban, the earlier list is restored."""
    beside.daemon.is_deaf = True
    beside.ask("4")
    beside.start()
    assert beside.balancer.restore()
    assert beside.daemon.banned == EMPTY


def test_restarted_irqbalance_is_banned_again(beside: Beside) -> None:
    """A restarted irqbalance gets the ban again, and its own list is restored later."""
    beside.ask("4")
    beside.daemon.daemon = Daemon(8, 200, Path("/run/irqbalance/irqbalance8.sock"))
    beside.daemon.banned = beside.daemon.pending = cpus("2")
    beside.ask("4")
    beside.ask("")
    assert beside.daemon.bans == ["4", "2,4", "2"]


def test_ended_irqbalance_needs_no_restore(beside: Beside) -> None:
    """If irqbalance has exited, nothing is restored; its process is searched for once a minute."""
    beside.ask("4")
    beside.daemon.daemon = None
    for _ in range(7):
        assert beside.ask("4") == BanState()
    assert not beside.balancer.has_banned
    assert beside.daemon.searches == 2
    assert beside.balancer.restore()


def test_irqbalance_without_a_socket_is_an_error_with_its_setting(beside: Beside) -> None:
    """The reason has the line for irqbalance's configuration file."""
    beside.daemon.daemon, beside.daemon.hidden = None, Daemon(9, 1)
    reason = beside.ask("4-5").reason
    assert reason.startswith("irqbalance (9) runs and has no socket below /run/irqbalance")
    assert reason.endswith("IRQBALANCE_BANNED_CPULIST=4-5")


def test_unavailable_irqbalance_is_asked_once_a_minute(beside: Beside) -> None:
    """Each request to an irqbalance that does not answer may take twelve seconds, so it is sent once a minute."""
    beside.daemon.silence = "no answer in time"
    assert beside.ask("4").reason == "irqbalance runs and does not answer: no answer in time"
    beside.daemon.silence = ""
    assert beside.ask("4").reason
    assert beside.ask("4", LOOK_SECONDS).reason == ""
    assert beside.daemon.bans == ["4"]


def test_ignored_ban_is_an_error(beside: Beside) -> None:
    """The ban is sent several times; the error ends when irqbalance has the ban."""
    beside.daemon.is_deaf = True
    reasons = [beside.ask("4").reason for _ in range(MOST_SENDS + 1)]
    assert reasons == [""] * MOST_SENDS + [
        "irqbalance (7) does not apply the list of CPUs that it must not use"
    ]
    beside.daemon.is_deaf = False
    beside.ask("4")
    assert beside.ask("4") == BanState("", is_settled=False)


def test_third_replaced_ban_is_a_conflict(beside: Beside) -> None:
    """Two replaced bans are sent again; the third is a conflict, and the other program's list stays."""
    for at in range(3):
        beside.ask("4")
        beside.ask("4", 10.0)
        beside.daemon.banned = beside.daemon.pending = cpus(str(at + 1))
        beside.ask("4", LOOK_SECONDS)
    assert beside.ask("4", LOOK_SECONDS).reason == (
        "another program keeps replacing the CPUs that irqbalance must not use"
    )
    assert beside.balancer.restore()


def test_irqbalance_of_the_operator_is_not_banned(tmp_path: Path) -> None:
    """If the operator configures irqbalance, an earlier agent's ban is removed and no other one is sent."""
    beside = Beside(tmp_path)
    beside.ask("4")
    beside.is_managed = False
    beside.start()
    assert beside.ask("4").reason == ""
    assert (beside.daemon.bans, beside.daemon.searches) == (["4", ""], 0)
    beside.ask("4")
    assert beside.daemon.bans == ["4", ""]


def test_ban_is_not_sent_without_a_saved_record(beside: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the record cannot be saved, no ban is sent, because the next agent would take it for the operator's."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(Refused, match="No space left"):
        beside.ask("4")
    assert beside.daemon.bans == []


@pytest.mark.parametrize("text", ["", "[]", '["x", 1, "", []]', "[7, 107, [4], [1]]", "{"])
def test_damaged_record_is_kept_and_no_ban_is_sent(beside: Beside, text: str) -> None:
    """With a damaged record no ban is sent, and the file is kept."""
    saved = Restorable(beside.folder / RecordFile.BANNED_CPUS, "boot")
    saved.remember({"ban": text})
    content = (beside.folder / RecordFile.BANNED_CPUS).read_text()
    beside.start()
    assert beside.balancer.has_banned
    assert "irqbalance.json is damaged" in beside.ask("4").reason
    assert not beside.balancer.restore()
    assert ((beside.folder / RecordFile.BANNED_CPUS).read_text(), beside.daemon.bans) == (content, [])


def hide(beside: Beside) -> Daemon | None:
    """Make the socket of the running irqbalance disappear."""
    daemon = beside.daemon.daemon
    assert daemon
    beside.daemon.daemon, beside.daemon.hidden = None, daemon._replace(socket=None)
    return daemon


def test_ban_stays_on_record_while_its_irqbalance_runs(beside: Beside) -> None:
    """The record is kept while irqbalance runs without a visible socket; the ban is lifted once the socket is back."""
    beside.ask("4-5")
    beside.ask("4-5")
    daemon = hide(beside)
    assert beside.ask("").reason == (
        "irqbalance (7) runs and has no socket below /run/irqbalance, so that corepin cannot lift its ban of CPUs:"
        " restart irqbalance"
    )
    assert not beside.balancer.restore()
    beside.daemon.daemon = daemon
    beside.ask("")
    assert beside.daemon.banned == EMPTY


def test_ban_in_a_list_that_another_program_extended_is_lifted(beside: Beside) -> None:
    """A ban that another program extended by a CPU is lifted without that CPU, and is no conflict."""
    for _ in range(4):
        beside.ask("4-5", LOOK_SECONDS)
        beside.ask("4-5", LOOK_SECONDS)
        beside.daemon.banned = beside.daemon.pending = beside.daemon.banned | cpus("7")
    assert beside.ask("4-5", LOOK_SECONDS) == BanState()
    beside.ask("", LOOK_SECONDS)
    beside.ask("", LOOK_SECONDS)
    assert (str(beside.daemon.banned), beside.balancer.has_banned) == ("7", False)


def test_lifted_ban_stays_on_record_until_read_back(beside: Beside) -> None:
    """A lifted ban stays on record until it is read back; an ignored request is repeated and then an error."""
    beside.ask("4-5")
    beside.ask("4-5")
    beside.daemon.is_deaf = True
    reasons = [beside.ask("").reason for _ in range(MOST_SENDS + 1)]
    assert reasons[-2:] == ["", "irqbalance (7) does not apply the list of CPUs that it must not use"]
    assert beside.balancer.has_banned
    beside.ask("4-6")
    beside.daemon.is_deaf = False
    for _ in range(3):
        beside.ask("", LOOK_SECONDS)
    assert (beside.daemon.banned, beside.balancer.has_banned) == (EMPTY, False)


def test_shown_ban_is_recognised_after_several_sends(beside: Beside) -> None:
    """The agent's own ban that irqbalance still shows after several sends does not become the original."""
    beside.ask("4-5")
    beside.daemon.is_deaf = True
    for _ in range(4):
        beside.ask("4-6")
    beside.daemon.is_deaf = False
    for _ in range(2):
        beside.ask("")
    assert beside.daemon.banned == EMPTY


def test_restore_that_irqbalance_does_not_answer_fails(beside: Beside) -> None:
    """A restore that irqbalance does not answer fails and keeps the record."""
    beside.ask("4")
    beside.daemon.silence = "no answer in time"
    assert not beside.balancer.restore()
    assert beside.balancer.has_banned


def test_found_process_runs_until_its_number_is_reused(client: Irqbalance) -> None:
    """A process is identified by its pid and start time."""
    assert client.runs(Daemon(7, 107))
    assert not client.runs(Daemon(7, 106))
    assert not client.runs(Daemon(8, 107))
