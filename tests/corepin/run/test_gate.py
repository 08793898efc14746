"""`corepin gate`: the statuses that release a pod, the messages while it waits, and its exit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from corepin.cli import main
from corepin.flags import variable
from corepin.run.gate import WAITING, read_refusals
from pinning.contract import GATE_RESTART_POLICY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMMAND = (sys.executable, "-c", "import sys; from corepin.cli import main; sys.exit(main())", "gate")
HELD = {"policy": "exclusive", "cpus": "2", "pinned": False}
SECONDS = 60


def status(version: Any = 1, **containers: Any) -> str:
    """Return the agent's status annotation of a pod."""
    return json.dumps({"version": version, "containers": containers})


def of_pod(message: str, *, blocks: bool = True) -> str:
    """Return the status of a pod whose pool was refused, or whose annotations are invalid."""
    return json.dumps({"version": 1, "containers": {}, "refusal": refusal(message, blocks=blocks)["refusal"]})


def refusal(message: str, *, blocks: bool = True) -> dict[str, Any]:
    """Return the status of a container that was refused CPUs."""
    told = {"reason": "NotEnoughCPUs", "message": message, "blocksStart": blocks}
    return {"pinned": False, "refusal": told}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(status(main=HELD), (), id="assigned, not applied"),
        pytest.param(status(), (), id="nothing claimed any more"),
        pytest.param(
            status(main=HELD, log=refusal("x", blocks=False)), (), id="what need not fit is refused"
        ),
        pytest.param(status(main=refusal("no room")), ("main: no room",), id="refused"),
        pytest.param(
            status(a=refusal("x"), b=HELD, c=refusal("y")), ("a: x", "c: y"), id="every refusal is told"
        ),
        pytest.param(of_pod("no room"), ("the pod: no room",), id="pool refused"),
        pytest.param(of_pod("x", blocks=False), (), id="invalid annotation"),
        pytest.param("", None, id="the agent said nothing"),
        pytest.param('{"version": 1, "contai', None, id="half of it"),
        pytest.param("[]", None, id="no object"),
        pytest.param('{"version": 1}', None, id="no containers"),
        pytest.param('{"version": 1, "containers": {"a": 1}}', None, id="another shape"),
        pytest.param(status(version=2), None, id="another version"),
    ],
)
def test_status_decides(text: str, expected: tuple[str, ...] | None) -> None:
    """A pod passes when its status has no blocking refusal; a missing or unreadable status holds it back."""
    assert read_refusals(text) == expected


@contextmanager
def waiting(folder: Path, restart_policy: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command on a file that is not there yet."""
    flags = ("--status", str(folder / "cpus"), "--termination-log", str(folder / "log"))
    command = [*COMMAND, *flags, "--restart-policy", restart_policy]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def swap(folder: Path, text: str) -> None:
    """Replace the file as the kubelet does."""
    (folder / "new").write_text(text)
    (folder / "new").rename(folder / "cpus")


def line(process: subprocess.Popen[str]) -> str:
    """Return the next line that is printed."""
    assert process.stdout
    return process.stdout.readline().rstrip("\n")


def test_it_waits_for_the_agent(tmp_path: Path) -> None:
    """The gate waits with a message until the agent publishes a status, and then exits."""
    with waiting(tmp_path, "Always") as process:
        assert line(process) == WAITING
        swap(tmp_path, status(main=HELD))
        assert line(process) == "the CPUs are assigned"
        assert process.wait(SECONDS) == 0
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize(
    ("restart_policy", "message", "printed"),
    [
        ("Always", "wanted 4 wholly free cores", "wanted 4 wholly free cores"),
        ("OnFailure", "wanted 4 wholly free cores", "wanted 4 wholly free cores"),
        ("Always", "no \ud800 room \x1b[2J", r"no \ud800 room \x1b[2J"),
    ],
    ids=["always", "on failure", "control characters and lone surrogates, which JSON can hold"],
)
def test_refusal_ends_it(tmp_path: Path, restart_policy: str, message: str, printed: str) -> None:
    """A refusal ends the gate with its message, escaped, and the kubelet restarts it."""
    swap(tmp_path, status(main=refusal(message)))
    with waiting(tmp_path, restart_policy) as process:
        assert process.wait(SECONDS) == 1
    assert (tmp_path / "log").read_text() == f"main: {printed}"


def test_refusal_of_what_runs_once_is_waited_for(tmp_path: Path) -> None:
    """In a pod with restartPolicy Never the gate prints each new refusal and keeps waiting for CPUs."""
    swap(tmp_path, status(main=refusal("no room")))
    with waiting(tmp_path, "Never") as process:
        assert line(process) == "main: no room"
        swap(tmp_path, status(main=refusal("less room")))
        assert line(process) == "main: less room"
        swap(tmp_path, status(main=HELD))
        assert line(process) == "the CPUs are assigned"
        assert process.wait(SECONDS) == 0


def test_sigterm_ends_the_gate_at_once(tmp_path: Path) -> None:
    """SIGTERM ends the gate at once, although it is PID 1 of its container."""
    with waiting(tmp_path, "Never") as process:
        assert line(process) == WAITING
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 128 + signal.SIGTERM


def test_unwritable_termination_message_does_not_change_the_exit(tmp_path: Path) -> None:
    """If the termination message cannot be written the exit is the same, since the kubelet shows the log."""
    swap(tmp_path, status(main=refusal("no room")))
    (tmp_path / "log").mkdir()
    with waiting(tmp_path, "Always") as process:
        assert line(process) == "main: no room"
        assert process.wait(SECONDS) == 1


def test_policy_comes_by_the_webhooks_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The flag reads the variable that the webhook sets, by the name in the contract; an unknown value is refused."""
    assert variable("--restart-policy") == GATE_RESTART_POLICY
    monkeypatch.setenv(GATE_RESTART_POLICY, "Sometimes")
    assert main(["gate", "--status", str(tmp_path / "cpus")]) == 2
    assert capsys.readouterr().err == (
        "corepin gate: --restart-policy: 'Sometimes' is not a restart policy: write one of Always, OnFailure, Never\n"
    )


def test_it_needs_the_standard_library_only(tmp_path: Path) -> None:
    """The gate imports the standard library only, because it delays the start of every pod with one."""
    swap(tmp_path, status())
    program = (
        "import sys; from corepin.cli import main; main(sys.argv[1:]); "
        "print(*{name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program, "gate", "--status", str(tmp_path / "cpus")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(done.stdout.splitlines()[-1].split()) - {"__main__"} == {"corepin", "logs", "pinning"}
