"""`cmk isolate` with an agent: its requests, and the command that replaces the shim's process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from tests.environments.server.daemon import plain_environment
from tests.environments.waiting import until
from tests.shim.agent import SECONDS, FakeAgent, error, ok

SHARED = ("isolate", "--pool=shared")


def started(agent: FakeAgent, *words: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start the shim and return while it runs."""
    return subprocess.Popen(
        [str(agent.command), *words],
        env={**plain_environment(), **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Wait for the exit, and return exit status and stderr."""
    _, text = process.communicate(timeout=SECONDS)
    return process.returncode, text.decode()


def test_environment_is_what_the_agent_says(agent: FakeAgent) -> None:
    """The command has its own environment, with the four variables of the answer set or replaced."""
    env = {"CMK_CPUS_ASSIGNED": "7", "MINE": "kept"}
    done = agent.run("isolate", "--pool=exclusive", "env", env=env)

    found = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert {name: value for name, value in found.items() if name.startswith("CMK_")} == {
        "CMK_CPUS_ASSIGNED": "1,3",
        "CMK_CPUS_ASSIGNED_MASK": "A",
        "CMK_CPUS_SHARED": "0",
        "CMK_CPUS_INFRA": "0,2",
    }
    assert found["MINE"] == "kept"


def test_number_of_cores_is_passed_on_as_it_is(agent: FakeAgent) -> None:
    """The shim sends CMK_NUM_CORES to the agent unchanged."""
    agent.run("isolate", "--pool=exclusive", "true", env={"CMK_NUM_CORES": "two"})

    assert agent.asked[0].text == "cmk 1 isolate\npool=exclusive\nsocket=-1\ncores=two\n\n"


def test_number_of_cores_on_two_lines_is_refused(agent: FakeAgent) -> None:
    """A value with a line break is refused, since it could add a key to the request."""
    done = agent.run("isolate", "--pool=exclusive", "true", env={"CMK_NUM_CORES": "1\npool=infra"})

    assert (done.returncode, agent.asked) == (1, [])
    assert "Requested numbers of cores must be positive integer" in done.stderr


def test_command_is_the_process_that_asked(agent: FakeAgent) -> None:
    """The command has the shim's pid, which the agent pinned, and no open socket."""
    process = started(agent, *SHARED, "sh", "--", "-c", "echo $$; ls /proc/$$/fd")
    lines, _ = process.communicate(timeout=SECONDS)

    pid, *descriptors = lines.decode().split()
    assert int(pid) == process.pid == agent.asked[0].pid
    assert descriptors == ["0", "1", "2"]


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_exit_code_is_the_commands_own(agent: FakeAgent, code: int) -> None:
    """The exit code is the command's, and not always 1 as with CMK."""
    assert agent.run(*SHARED, "sh", "--", "-c", f"exit {code}").returncode == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signals_reach_the_command(agent: FakeAgent, number: signal.Signals) -> None:
    """A signal to the process reaches the command."""
    script = f"trap 'exit 42' {number.name[3:]}; echo ready; while :; do read -r line; done"
    process = subprocess.Popen(
        [str(agent.command), *SHARED, "sh", "--", "-c", script],
        env=plain_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.wait(SECONDS) == 42


def test_signals_have_their_usual_effect_on_the_command(agent: FakeAgent) -> None:
    """Signal handlers of the shim are reset for the command, and ignored signals stay ignored."""
    process = started(agent, *SHARED, "sleep", "1000")
    until("the command", lambda: b"sleep" in _cmdline(process.pid))
    process.terminate()
    assert ended(process)[0] == -signal.SIGTERM

    done = subprocess.run(
        [
            "sh",
            "-c",
            f"trap '' HUP; exec {agent.command} isolate --pool=shared grep -- SigIgn /proc/self/status",
        ],
        env=plain_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout.split()[1], 16) & 1


def _cmdline(pid: int) -> bytes:
    with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123 - read again and again
        return file.read().split(b"\0")[0]


def test_stdin_is_the_commands_own(agent: FakeAgent) -> None:
    """The shim does not read standard input."""
    assert agent.run(*SHARED, "cat", text="one\ntwo\n").stdout == "one\ntwo\n"


def test_terminal_is_the_commands_own(agent: FakeAgent) -> None:
    """On a terminal the command has it as input, output and controlling terminal."""
    screen, terminal = os.openpty()
    script = "test -t 0 && test -t 1 && echo on >/dev/tty"
    words = ["setsid", "--ctty", "--wait", str(agent.command), *SHARED, "sh", "--", "-c", script]
    process = subprocess.Popen(
        words, env=plain_environment(), stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    with os.fdopen(screen, "rb", buffering=0) as lines:
        assert lines.readline() == b"on\r\n"
        assert process.wait(SECONDS) == 0


def test_refusal_of_the_agent_is_shown(agent: FakeAgent) -> None:
    """A refusal is printed in one line with exit code 1, and no command starts."""
    agent.answers = [error("Not enough free cpu lists in pool exclusive")]
    done = agent.run("isolate", "--pool=exclusive", "echo", "started")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "cmk: Not enough free cpu lists in pool exclusive\n"


def test_warnings_of_the_agent_are_shown(agent: FakeAgent) -> None:
    """A warning is printed before the command starts, and unknown keys of a newer agent are ignored."""
    agent.answers = [ok("warning=helpers share CPU 0\nnewer=1\nCMK_CPUS_ASSIGNED=1\n")]
    done = agent.run(*SHARED, "sh", "--", "-c", "echo $CMK_CPUS_ASSIGNED$newer")

    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "cmk: helpers share CPU 0\n")


def test_variables_of_others_cannot_be_set(agent: FakeAgent) -> None:
    """Only variables with the prefix CMK_ are taken from an answer."""
    agent.answers = [ok("LD_PRELOAD=/evil.so\nPATH=/evil\nCMK_CPUS_ASSIGNED=1\n")]
    done = agent.run(*SHARED, "env")

    assert "evil" not in done.stdout


def test_control_characters_do_not_reach_the_terminal(agent: FakeAgent) -> None:
    """Control characters in an answer do not reach the terminal."""
    agent.answers = [error("\x1b[2Jno\nmore\x7f")]

    assert agent.run(*SHARED, "true").stderr == "cmk: ?[2Jno?more?\n"


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"o", id="a-letter"),
        pytest.param(b"ok 5", id="half-a-line"),
        pytest.param(b"ok 99\nCMK_CPUS_ASSIGNED=1\n", id="half-a-body"),
        pytest.param(b"error 9\nno", id="half-a-refusal"),
    ],
)
def test_answer_that_ends_early_is_asked_for_again(agent: FakeAgent, cut: bytes) -> None:
    """If the answer is cut off the shim repeats its request."""
    agent.answers = [cut, ok()]
    done = agent.run(*SHARED, "echo", "started")

    assert (done.returncode, done.stdout, done.stderr) == (0, "started\n", "")
    assert len(agent.asked) == 2
    assert agent.asked[0] == agent.asked[1]


@pytest.mark.parametrize(
    "garbled",
    [
        pytest.param(b"yes\n", id="word"),
        pytest.param(b"OK 3\nA=1", id="case"),
        pytest.param(b"ok3\nA=1", id="space"),
        pytest.param(b"ok -3\nA=1", id="negative"),
        pytest.param(b"ok 3 \nA=1", id="space-after"),
        pytest.param(b"ok 2\nA=1", id="too-much"),
        pytest.param(b"ok 3\nA\x001", id="zero"),
        pytest.param(b"ok 99999999999999999999\n", id="endless"),
        pytest.param(b"k" * 100, id="no-line"),
        pytest.param(b"ok 3\nA-1", id="no-value"),
    ],
)
def test_answer_of_another_version_ends_it(agent: FakeAgent, garbled: bytes) -> None:
    """An answer of another protocol version ends the shim without a retry."""
    agent.answers = [garbled]
    done = agent.run(*SHARED, "echo", "started")

    assert (done.returncode, done.stdout, len(agent.asked)) == (1, "", 1)
    assert "cannot be read" in done.stderr


def test_shim_waits_for_an_agent_that_restarts(no_agent: FakeAgent) -> None:
    """While no agent listens the shim waits and prints so after a second; it starts the command afterwards."""
    process = started(no_agent, *SHARED, "echo", "started")
    assert process.stderr is not None
    assert process.stderr.readline().startswith(b"cmk: waiting up to 30 s for the corepin agent at /tmp/cmk-")
    no_agent.listen()

    assert process.communicate(timeout=SECONDS)[0] == b"started\n"
    assert process.returncode == 0


def test_missing_agent_is_reported_with_the_remedy(no_agent: FakeAgent) -> None:
    """Without an agent the shim exits with 1, and prints the path it tried and the remedy."""
    done = no_agent.run(*SHARED, "echo", "started", env={"CMK_LOCK_TIMEOUT": "0"})

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"cmk: no corepin agent answers at {no_agent.folder}/cmk.sock (No such file or directory): install corepin"
        " with its component `cmk` (manifests/cmk) on this node, and see that its agent runs there\n"
    )


def test_killed_agent_is_reported(agent: FakeAgent) -> None:
    """A socket file without a listener is reported as a missing agent."""
    agent.close()
    done = agent.run(*SHARED, "true", env={"CMK_LOCK_TIMEOUT": "0.05"})

    assert done.returncode == 1
    assert "(Connection refused)" in done.stderr


def test_agent_that_hangs_is_reported(no_agent: FakeAgent) -> None:
    """If an agent accepts no connection and its queue is full, the shim gives up after its time too."""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(str(no_agent.folder / "cmk.sock"))
        listener.listen(0)
        waiting.connect(listener.getsockname())
        done = no_agent.run(*SHARED, "true", env={"CMK_LOCK_TIMEOUT": "1.5"})

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("cmk: waiting up to 2 s for the corepin agent at ")
    assert "timed out)" in done.stderr


def test_waiting_ends_with_a_signal(no_agent: FakeAgent) -> None:
    """A signal ends a waiting shim at once, also if it is process 1 of its namespace."""
    command = ["unshare", "--pid", "--fork", "--kill-child", str(no_agent.command), *SHARED, "true"]
    process = subprocess.Popen(command, env=plain_environment(), stderr=subprocess.PIPE)
    assert process.stderr is not None
    if b"unshare failed" in (line := process.stderr.readline()):
        pytest.skip("a namespace needs root")
    assert b"waiting up to" in line
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii")
    os.kill(int(children), signal.SIGTERM)

    assert process.wait(SECONDS) == 128 + signal.SIGTERM
    process.stderr.close()


def test_several_shims_are_answered_at_once(agent: FakeAgent) -> None:
    """Several shims use one connection each and are answered concurrently."""
    results: list[int] = []
    threads = [
        threading.Thread(target=lambda: results.append(agent.run(*SHARED, "true").returncode))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)

    assert results == [0] * 8
    assert len({it.pid for it in agent.asked}) == 8


@pytest.mark.parametrize(("what", "code"), [("/nowhere/at-all", 127), ("/etc/passwd", 126)])
def test_command_that_cannot_be_executed_has_the_code_of_a_shell(
    agent: FakeAgent, what: str, code: int
) -> None:
    """The exit code is 127 for a command that is not found, and 126 for one that cannot be executed."""
    done = agent.run(*SHARED, what)

    assert done.returncode == code
    assert done.stderr.startswith(f"cmk: cannot execute {what}: ")
