"""`cmk isolate` with `CMK_INIT=1`: the shim stays process 1 as an init, and the command is its child."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from agent.doctor.programs import IN_PODS
from tests.environments.server.daemon import plain_environment
from tests.environments.waiting import until, until_equal
from tests.shim.agent import ENVIRONMENT, SECONDS, FakeAgent, error, ok

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FIRST: Final = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
INIT: Final = {"CMK_INIT": "1"}
ASIDE: Final = ok("CMK_CPUS_ASSIGNED=0,2\nCMK_CPUS_SHARED=0\nCMK_CPUS_INFRA=0,2\n")


@pytest.fixture(scope="module", autouse=True)
def _namespaces() -> None:
    """Skip where pid namespaces are not available."""
    if subprocess.run([*FIRST, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a namespace needs root")


@pytest.fixture
def agent(agent: FakeAgent) -> FakeAgent:
    """Return an agent that answers process 1 with the infra pool and its child with a core."""
    agent.answers = [ASIDE, ok(ENVIRONMENT)]
    return agent


_running: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """Kill commands that a failed test has left running."""
    yield
    while _running:
        with _running.pop() as process:
            process.kill()


def start(
    agent: FakeAgent, *words: str, env: Mapping[str, str] = INIT, pool: str = "exclusive"
) -> subprocess.Popen[str]:
    """Start the shim as process 1 of a pid namespace."""
    process = subprocess.Popen(
        [*FIRST, str(agent.command), "isolate", f"--pool={pool}", *words],
        env={**plain_environment(), **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _running.append(process)
    return process


def run(
    agent: FakeAgent, *words: str, env: Mapping[str, str] = INIT, pool: str = "exclusive"
) -> tuple[int, str, str]:
    """Run the shim until it exits; return exit code and output."""
    process = start(agent, *words, env=env, pool=pool)
    out, err = process.communicate(timeout=SECONDS)
    return process.returncode, out, err


def first_of(process: subprocess.Popen[str]) -> int:
    """Return the host's pid of the namespace's process 1 once it exists."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return int(until("process 1", lambda: children.read_text(encoding="ascii").split())[0])


def children_of(pid: int) -> list[str]:
    """Return the names of a process's children, zombies included; some may end while they are read."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    names = []
    for child in children:
        with suppress(FileNotFoundError, ProcessLookupError):
            names.append(Path(f"/proc/{child}/comm").read_text(encoding="utf-8").strip())
    return names


def test_command_is_the_child_and_has_the_claim(agent: FakeAgent) -> None:
    """Process 1 asks for the infra pool; its child asks for the cores, and executes the command."""
    code, out, err = run(agent, "sh", "--", "-c", "echo $$ $PPID $CMK_CPUS_ASSIGNED")

    assert (code, out, err) == (0, "2 1 1,3\n", "")
    assert [asked.text.splitlines()[1:3] for asked in agent.asked] == [
        ["pool=infra", "socket=-1"],
        ["pool=exclusive", "socket=-1"],
    ]
    assert agent.asked[0].pid != agent.asked[1].pid


def test_process_1_is_not_taken_for_intel_cmk(agent: FakeAgent) -> None:
    """The name of process 1 differs from Intel's program, about which `corepin doctor` warns."""
    process = start(agent, "sleep", "--", "10000")
    until("the command", lambda: children_of(first_of(process)) == ["sleep"])
    name = Path(f"/proc/{first_of(process)}/comm").read_text(encoding="ascii").strip()
    process.kill()
    process.communicate()

    assert name == "corepin-cmk"
    assert name not in IN_PODS


def test_process_1_of_a_shared_pool_stays_in_it(agent: FakeAgent) -> None:
    """Process 1 of a command in a shared pool asks for the same pool."""
    run(agent, "true", pool="shared")

    assert agent.asked[0].text == agent.asked[1].text == "cmk 1 isolate\npool=shared\nsocket=-1\n\n"


def test_variable_that_is_not_set_keeps_no_process(agent: FakeAgent) -> None:
    """Without CMK_INIT, or if it is empty or 0, the command is process 1."""
    for env in ({}, {"CMK_INIT": ""}, {"CMK_INIT": "0"}):
        assert run(agent, "sh", "--", "-c", "echo $$", env=env)[:2] == (0, "1\n")
    assert len(agent.asked) == 3


def test_other_value_is_refused_with_the_remedy(agent: FakeAgent) -> None:
    """An unknown value is refused before the command starts."""
    code, out, err = run(agent, "echo", "started", env={"CMK_INIT": "yes"})

    assert (code, out, agent.asked) == (1, "", [])
    assert err == (
        "cmk: CMK_INIT is yes: write 1, so that cmk stays as process 1 and the command runs below it, or 0\n"
    )


def test_elsewhere_the_command_has_no_wrapper(agent: FakeAgent) -> None:
    """A shim that is not process 1 runs the command without a parent, because signals end it anyway."""
    done = agent.run("isolate", "--pool=shared", "sh", "--", "-c", "echo $$", env=INIT)

    assert [int(done.stdout)] == [asked.pid for asked in agent.asked]


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_exit_code_is_the_commands(agent: FakeAgent, code: int) -> None:
    """The exit code of process 1 is the command's."""
    assert run(agent, "sh", "--", "-c", f"exit {code}")[0] == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGSEGV])
def test_end_by_a_signal_has_the_code_of_a_shell(agent: FakeAgent, number: signal.Signals) -> None:
    """A command ended by a signal gives exit code 128 plus the signal's number."""
    assert run(agent, "sh", "--", "-c", f"kill -{number.value} $$")[0] == 128 + number


def test_sigterm_ends_a_command_that_handles_none(agent: FakeAgent) -> None:
    """With CMK_INIT=1 a `sleep` ends at SIGTERM; as process 1 it would be killed 30 s later."""
    process = start(agent, "sleep", "--", "10000")
    until("the command", lambda: children_of(first_of(process)) == ["sleep"])
    os.kill(first_of(process), signal.SIGTERM)

    assert process.wait(SECONDS) == 128 + signal.SIGTERM
    process.communicate()


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGWINCH,
    ],
)
def test_signals_are_forwarded(agent: FakeAgent, number: signal.Signals) -> None:
    """Process 1 forwards signals to the command."""
    script = f"trap 'exit 42' {number.name[3:]}; echo ready; while :; do read -r line; done"
    process = start(agent, "sh", "--", "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.kill(first_of(process), number)

    assert process.wait(SECONDS) == 42
    process.communicate()


def test_signals_have_their_usual_effect_on_the_command(agent: FakeAgent) -> None:
    """Signals that process 1 blocks are not blocked in the command."""
    _, out, _ = run(agent, "grep", "--", "SigBlk", "/proc/self/status")

    assert int(out.split()[1], 16) == 0


def test_orphans_are_collected(agent: FakeAgent) -> None:
    """Process 1 reaps a thousand orphans, so that no zombie is left."""
    script = "for n in $(seq 1000); do (true & ); done; echo done; read -r line"
    process = start(agent, "sh", "--", "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == "done\n"
    until_equal("process 1's children", lambda: children_of(first_of(process)), ["sh"])

    process.communicate("end\n", timeout=SECONDS)
    assert process.returncode in {0, 1}  # that of `read` at the end of the input


def test_command_may_use_what_its_container_may(agent: FakeAgent) -> None:
    """With --no-affinity the command may use all CPUs of its container, and not only those of process 1."""
    words = ["taskset", "--cpu-list", "0", *FIRST, str(agent.command), "isolate", "--pool=exclusive"]
    done = subprocess.run(
        [
            *words,
            "--no-affinity",
            "sh",
            "--",
            "-c",
            "grep Cpus_allowed_list /proc/1/status /proc/self/status",
        ],
        env={**plain_environment(), **INIT},
        capture_output=True,
        text=True,
        check=True,
    )
    parent, command = (line.split()[-1] for line in done.stdout.splitlines())
    assert parent == "0"
    assert command == Path("/proc/self/status").read_text().partition("Cpus_allowed_list:")[2].split()[0]


def test_terminal_belongs_to_the_command(agent: FakeAgent) -> None:
    """The command leads the terminal's foreground group, so that a key sends it one signal."""
    screen, terminal = os.openpty()
    script = 'trap "echo got; exit 5" INT; test -t 0 && echo ready; while :; do read -r line; done'
    words = ["setsid", "--ctty", "--wait", *FIRST, str(agent.command), "isolate", "--pool=exclusive"]
    process = subprocess.Popen(
        [*words, "sh", "--", "-c", script],
        env={**plain_environment(), **INIT},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    with os.fdopen(screen, "r+b", buffering=0) as keys:
        assert keys.readline() == b"ready\r\n"
        keys.write(b"\x03")
        assert b"got" in keys.readline()
        assert process.wait(SECONDS) == 5


def test_process_1_that_cannot_leave_the_cores_says_so(agent: FakeAgent) -> None:
    """If process 1 cannot leave the command's cores (strictThreads), it prints a message and starts the command."""
    agent.answers = [error("Pool infra is not for a container with cores of its own"), ok()]
    code, out, err = run(agent, "echo", "started")

    assert (code, out) == (0, "started\n")
    assert err == (
        "cmk: CMK_INIT: process 1 stays on all CPUs of its container:"
        " Pool infra is not for a container with cores of its own\n"
    )


def test_refused_command_ends_the_container(agent: FakeAgent) -> None:
    """If the agent refuses the child, the parent exits with the same code."""
    agent.answers = [ASIDE, error("Not enough free cpu lists in pool exclusive")]

    assert run(agent, "echo", "started") == (1, "", "cmk: Not enough free cpu lists in pool exclusive\n")


def test_command_that_is_not_found_has_the_code_of_a_shell(agent: FakeAgent) -> None:
    """A command that is not found gives exit code 127."""
    assert run(agent, "/nowhere")[0] == 127


def test_no_agent_ends_it_before_a_child_is_there(no_agent: FakeAgent) -> None:
    """Without an agent process 1 exits without starting a child."""
    code, out, err = run(no_agent, "echo", "started", env={**INIT, "CMK_LOCK_TIMEOUT": "0"})

    assert (code, out) == (1, "")
    assert err.count("no corepin agent answers") == 1
