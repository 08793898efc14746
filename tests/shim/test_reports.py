"""Verbs that print the agent's reports."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.environments.server.daemon import plain_environment
from tests.shim.agent import SECONDS, FakeAgent, error, ok

TEXT = '{\n  "pools": {"exclusive": "µ"}\n}\n'
VERBS = ("describe", "node-report", "reconcile")


@pytest.mark.parametrize("verb", VERBS)
def test_text_of_the_agent_is_printed_as_it_is(agent: FakeAgent, verb: str) -> None:
    """Each verb requests its report once and prints it."""
    agent.answers = [ok(TEXT)]
    done = agent.run(verb)

    assert (done.returncode, done.stdout, done.stderr) == (0, TEXT, "")
    assert [it.text for it in agent.asked] == [f"cmk 1 {verb}\n\n"]


def test_large_text_is_printed_whole(agent: FakeAgent) -> None:
    """A long report, as of a machine with many CPUs, is printed whole."""
    text = "0123456789abcdef\n" * 100_000
    agent.answers = [ok(text)]

    assert agent.run("node-report").stdout == text


@pytest.mark.parametrize("verb", VERBS)
def test_refusal_of_the_agent_ends_with_one(agent: FakeAgent, verb: str) -> None:
    """A refusal of the agent exits with 1 and prints no report."""
    agent.answers = [error("the agent has not looked at its node yet")]
    done = agent.run(verb)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "cmk: the agent has not looked at its node yet\n"


@pytest.mark.parametrize("verb", VERBS[1:])
@pytest.mark.parametrize("interval", ["1ms", "0.001", "0.001s"])
def test_it_is_printed_again_with_an_interval(agent: FakeAgent, verb: str, interval: str) -> None:
    """With an interval, as CMK's DaemonSet runs it, the verb prints new reports until it is stopped."""
    agent.answers = [ok("one\n"), ok("two\n"), ok("three\n")]
    process = subprocess.Popen(
        [str(agent.command), verb, "--publish", "--interval", interval],
        env=plain_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(3)] == [b"one\n", b"two\n", b"three\n"]
    process.terminate()
    _, said = process.communicate(timeout=SECONDS)

    assert (process.returncode, said) == (
        143,
        b"cmk: --publish does nothing: the agent publishes at any time\n",
    )


@pytest.mark.parametrize("interval", ["", "soon", "-1", "1h", "1e9", "nan", "inf", "1 s"])
def test_other_intervals_are_refused(no_agent: FakeAgent, interval: str) -> None:
    """An interval is a number of seconds, or has the suffix `s` or `ms`; other values are refused."""
    done = no_agent.run("reconcile", f"--interval={interval}")

    assert done.returncode == 1
    assert done.stderr.startswith(f"cmk: --interval: {interval} is not a number of seconds from 0 to 86400: ")


def test_full_disk_is_an_error(agent: FakeAgent) -> None:
    """A write error on standard output exits with an error."""
    agent.answers = [ok(TEXT)]
    with Path("/dev/full").open("wb") as full:
        command = [str(agent.command), "describe"]
        done = subprocess.run(command, env=plain_environment(), stdout=full, check=False, timeout=SECONDS)

    assert done.returncode == 1
