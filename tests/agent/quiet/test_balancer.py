"""irqbalance: its process and socket, its answers, and the ban that is sent to it and lifted again."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from agent.errors import Refused, Unavailable
from agent.quiet.balancer import FILE, LOOK_SECONDS, MOST_SENDS, Balancer, Told
from agent.quiet.irqbalance import MOST_BYTES, Daemon, Irqbalance, Setup
from agent.reconcile.restorable import Restorable
from pinning.machine.cpuset import EMPTY
from tests.agent.quiet.fakes import FakeIrqbalance, cpus

STAT = "{pid} ({name}) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {started} 0 0\n"


def process(
    proc: Path, pid: int, name: str = "irqbalance", cgroup: str = "/system.slice/irqbalance.service"
) -> None:
    """Make a process as /proc shows it."""
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "stat").write_text(STAT.format(pid=pid, name=name, started=100 + pid))
    (folder / "cgroup").write_text(f"0::{cgroup}\n")


@contextmanager
def serving(path: Path, answer: Callable[[str], bytes]) -> Iterator[list[str]]:
    """Answer one text on each connection, as irqbalance does, until the block ends; yield what was asked."""
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


def test_the_running_one_is_found_by_its_socket(client: Irqbalance) -> None:
    """A killed one leaves its socket behind, and other files say nothing."""
    assert client.with_socket() is None
    for name in ("irqbalance6.sock", "irqbalance.sock", "irqbalancex.sock", "irqbalance7.sock"):
        (client.folder / name).touch()
    assert client.with_socket() == Daemon(7, 107, socket_of(client))
    assert Irqbalance(Path("/nowhere"), Path("/nowhere")).with_socket() is None


@pytest.mark.parametrize(
    ("name", "cgroup", "is_one"),
    [
        ("irqbalance", "/system.slice/irqbalance.service", True),
        ("irqbalancer", "/system.slice/x.service", False),
        ("irqbalance", "/kubepods.slice/kubepods-pod1.slice/cri-1.scope", False),
    ],
)
def test_a_process_is_believed_outside_of_pods_alone(
    tmp_path: Path, name: str, cgroup: str, is_one: bool
) -> None:
    """Each container may call a process irqbalance, and must not stop the agent by it."""
    process(tmp_path, 9, name, cgroup)
    (tmp_path / "self").mkdir()
    (tmp_path / "10").mkdir()
    client = Irqbalance(tmp_path / "run", tmp_path)
    assert client.without_socket() == (Daemon(9, 109) if is_one else None)
    assert Irqbalance(tmp_path, Path("/nowhere")).without_socket() is None


@pytest.mark.parametrize(
    ("answer", "setup"),
    [
        (b"SLEEP 10 IRQ 25 LOAD 3 DIFF 0 CLASS 1 BANNED 000000f0", Setup(cpus("4-7"), 10)),
        (b"SLEEP 2 BANNED 00000001,00000000\n", Setup(cpus("32"), 2)),
        (b"SLEEP 10 BANNED 0\x00", Setup(EMPTY, 10)),
    ],
)
def test_an_answer_to_setup(client: Irqbalance, answer: bytes, setup: Setup) -> None:
    """Banned CPUs are a mask in hex."""
    with serving(socket_of(client), lambda _: answer) as asked:
        assert client.setup(Daemon(7, 107, socket_of(client))) == setup
    assert asked == ["setup"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param(b"", "is no answer", id="another uid gets nothing"),
        pytest.param(b"SLEEP 10 IRQ", "is no answer", id="cut"),
        pytest.param(b"BANNED ff", "is no answer", id="without an interval"),
        pytest.param(b"SLEEP 10 BANNED xyz", "is no answer", id="no mask"),
        pytest.param(b"\xff\x00" * 999, "is no answer", id="rubbish"),
        pytest.param(b"SLEEP 1 BANNED 1" + b"0" * 3000, "CPUs above", id="a mask of 12,000 CPUs"),
        pytest.param(b"x" * (MOST_BYTES + 1), "more than 1 MiB", id="without end"),
    ],
)
def test_nonsense_is_no_answer(client: Irqbalance, answer: bytes, reason: str) -> None:
    """It is bounded, and says why."""
    with serving(socket_of(client), lambda _: answer), pytest.raises(Unavailable, match=reason):
        client.setup(Daemon(7, 107, socket_of(client)))


def test_a_late_answer_is_given_up(client: Irqbalance, tmp_path: Path) -> None:
    """Whether nothing comes, or a byte at a time."""
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


def test_a_dead_socket_is_said(client: Irqbalance) -> None:
    """Nothing listens."""
    socket_of(client).touch()
    with pytest.raises(Unavailable, match="refused"):
        client.ban(Daemon(7, 107, socket_of(client)), cpus("4"))


def test_a_ban_is_one_list(client: Irqbalance) -> None:
    """Without blanks, because only the first word is read; NULL for what the environment says."""
    with serving(socket_of(client), lambda _: b"") as asked:
        client.ban(Daemon(7, 107, socket_of(client)), cpus("4-7,9"))
        client.ban(Daemon(7, 107, socket_of(client)), EMPTY)
    assert asked == ["settings cpus 4-7,9", "settings cpus NULL"]


class Beside:
    """An agent beside an irqbalance."""

    def __init__(self, folder: Path, *, is_told: bool = True) -> None:
        self.folder = folder
        self.daemon = FakeIrqbalance()
        self.now = 0.0
        self.is_told = is_told
        self.start()

    def start(self) -> None:
        """Start a new agent."""
        saved = Restorable(self.folder / FILE, "boot")
        self.balancer = Balancer(self.daemon, saved, lambda: self.now, is_told=self.is_told)

    def ask(self, quiet: str, seconds: float = 10.0) -> Told:
        """Ask for a ban, some time after the last question."""
        self.now += seconds
        told = self.balancer.keep_off(cpus(quiet))
        self.daemon.interval()
        return told


@pytest.fixture
def beside(tmp_path: Path) -> Beside:
    """Return an agent that has not asked yet."""
    return Beside(tmp_path)


def test_its_ban_is_read_first_and_united(beside: Beside) -> None:
    """And afterwards what was banned before is banned again."""
    beside.daemon.banned = beside.daemon.pending = cpus("1")
    beside.ask("4-5")
    beside.ask("4-6")
    beside.ask("4-6", LOOK_SECONDS)
    assert beside.balancer.has_banned
    beside.ask("")
    assert beside.daemon.bans == ["1,4-5", "1,4-6", "1"]
    assert not beside.balancer.has_banned
    assert not (beside.folder / FILE).exists()


def test_without_a_ban_of_its_own_it_goes_back_to_its_environment(beside: Beside) -> None:
    """That is what the empty list asks for."""
    beside.ask("4")
    beside.ask("")
    assert beside.daemon.bans == ["4", ""]


def test_a_ban_that_is_there_already_is_not_sent(beside: Beside) -> None:
    """The operator has written it into its file; it stays."""
    beside.daemon.banned = beside.daemon.pending = cpus("4-7")
    assert beside.ask("4-5") == Told()
    beside.ask("")
    assert (beside.daemon.bans, beside.balancer.has_banned) == ([], False)


def test_it_has_settled_two_intervals_after_its_ban_was_read_back(beside: Beside) -> None:
    """Until then what it moves is no foreign write."""
    assert not beside.ask("4").is_settled
    assert [beside.ask("4").is_settled for _ in range(4)] == [False, False, True, True]


def test_the_next_agent_goes_on_with_the_ban(beside: Beside) -> None:
    """It neither takes it for the one before, nor sends it again."""
    beside.ask("4")
    beside.start()
    beside.ask("4")
    beside.ask("")
    assert beside.daemon.bans == ["4", ""]


def test_an_agent_killed_before_it_sent_the_ban_leaves_what_was(beside: Beside) -> None:
    """The record was saved first, and the list is still the one before."""
    beside.daemon.is_deaf = True
    beside.ask("4")
    beside.start()
    assert beside.balancer.restore()
    assert beside.daemon.banned == EMPTY


def test_a_restarted_one_is_banned_again(beside: Beside) -> None:
    """The ban ended with it; what its environment bans now is what it had before."""
    beside.ask("4")
    beside.daemon.daemon = Daemon(8, 200, Path("/run/irqbalance/irqbalance8.sock"))
    beside.daemon.banned = beside.daemon.pending = cpus("2")
    beside.ask("4")
    beside.ask("")
    assert beside.daemon.bans == ["4", "2,4", "2"]


def test_one_that_ended_has_nothing_to_lift(beside: Beside) -> None:
    """And none is needed while none runs; its name is looked for once a minute."""
    beside.ask("4")
    beside.daemon.daemon = None
    for _ in range(7):
        assert beside.ask("4") == Told()
    assert not beside.balancer.has_banned
    assert beside.daemon.searches == 2
    assert beside.balancer.restore()


def test_one_without_a_socket_is_said_with_the_line_for_its_file(beside: Beside) -> None:
    """The interrupts are then left alone."""
    beside.daemon.daemon, beside.daemon.hidden = None, Daemon(9, 1)
    reason = beside.ask("4-5").reason
    assert reason.startswith("irqbalance (9) runs and has no socket below /run/irqbalance")
    assert reason.endswith("IRQBALANCE_BANNED_CPULIST=4-5")


def test_one_that_does_not_answer_is_asked_once_a_minute(beside: Beside) -> None:
    """Each question may take twelve seconds."""
    beside.daemon.silence = "no answer in time"
    assert beside.ask("4").reason == "irqbalance runs and cannot be asked: no answer in time"
    beside.daemon.silence = ""
    assert beside.ask("4").reason
    assert beside.ask("4", LOOK_SECONDS).reason == ""
    assert beside.daemon.bans == ["4"]


def test_one_that_does_not_take_the_ban_is_said(beside: Beside) -> None:
    """It is asked with each of its intervals, and believed when it shows it."""
    beside.daemon.is_deaf = True
    reasons = [beside.ask("4").reason for _ in range(MOST_SENDS + 1)]
    assert reasons == [""] * MOST_SENDS + ["irqbalance (7) does not take over the CPUs that it must not use"]
    beside.daemon.is_deaf = False
    beside.ask("4")
    assert beside.ask("4") == Told("", is_settled=False)


def test_a_program_that_replaces_the_ban_three_times_is_left_alone(beside: Beside) -> None:
    """Its list is what was there before; what quiet CPUs add is sent twice again."""
    for at in range(3):
        beside.ask("4")
        beside.ask("4", 10.0)
        beside.daemon.banned = beside.daemon.pending = cpus(str(at + 1))
        beside.ask("4", LOOK_SECONDS)
    assert beside.ask("4", LOOK_SECONDS).reason == (
        "another program keeps replacing the CPUs that irqbalance must not use"
    )
    assert beside.balancer.restore()


def test_one_that_the_operator_configured_is_not_told(tmp_path: Path) -> None:
    """A ban from before is lifted."""
    beside = Beside(tmp_path)
    beside.ask("4")
    beside.is_told = False
    beside.start()
    assert beside.ask("4").reason == ""
    assert (beside.daemon.bans, beside.daemon.searches) == (["4", ""], 0)
    beside.ask("4")
    assert beside.daemon.bans == ["4", ""]


def test_without_a_saved_ban_none_is_sent(beside: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the next agent would take it for the operator's."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(Refused, match="No space left"):
        beside.ask("4")
    assert beside.daemon.bans == []


@pytest.mark.parametrize("text", ["", "[]", '["x", 1, "", []]', "[7, 107, [4], [1]]", "{"])
def test_a_damaged_record_is_none(beside: Beside, text: str) -> None:
    """Nothing is invented."""
    Restorable(beside.folder / FILE, "boot").remember({"ban": text})
    beside.start()
    assert not beside.balancer.has_banned
