"""Command lines: CMK's flags in the forms that docopt accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.shim.agent import FakeAgent

ECHO = ("/bin/echo",)
PLAIN = {"pool": "shared", "socket": "-1"}
ARGUMENTS = [  # words, beginning with `isolate` if they do not have it; what is asked; what the command prints
    pytest.param(["--pool=shared", *ECHO], PLAIN, "", id="equals"),
    pytest.param(["--pool", "shared", *ECHO], PLAIN, "", id="a-word-of-its-own"),
    pytest.param(["--po=shared", *ECHO], PLAIN, "", id="beginning"),
    pytest.param([*ECHO, "--pool=shared"], PLAIN, "", id="after-the-command"),
    pytest.param(["--pool=infra", "--pool=shared", *ECHO], PLAIN, "", id="the-last-one-counts"),
    pytest.param(["--pool=shared", *ECHO, "--", "a", "b"], PLAIN, "a b", id="arguments"),
    pytest.param(["--pool=shared", *ECHO, "a", "b"], PLAIN, "a b", id="arguments-without-dashes"),
    pytest.param(["--pool=shared", *ECHO, "a", "--", "b"], PLAIN, "a -- b", id="dashes-between-arguments"),
    pytest.param(["--pool=shared", *ECHO, "--", "--", "b"], PLAIN, "-- b", id="dashes-as-an-argument"),
    pytest.param(["--pool=shared", "--", *ECHO, "b"], PLAIN, "b", id="dashes-before-the-command"),
    pytest.param(["--pool=shared", *ECHO, "--", "--pool=infra"], PLAIN, "--pool=infra", id="not-our-option"),
    pytest.param(["--pool=shared", *ECHO, "--", "-h", "--version"], PLAIN, "-h --version", id="not-our-help"),
    pytest.param(["--pool=shared", *ECHO, "-"], PLAIN, "-", id="a-dash"),
    pytest.param(["--pool=shared", "--socket-id=1", *ECHO], PLAIN | {"socket": "1"}, "", id="socket"),
    pytest.param(["--pool=shared", "--socket-id", "-1", *ECHO], PLAIN, "", id="any-socket"),
    pytest.param(["--pool=shared", *ECHO, "--no-affinity"], PLAIN | {"affinity": "no"}, "", id="no-affinity"),
    pytest.param(["--pool=exclusive", *ECHO], PLAIN | {"pool": "exclusive"}, "", id="exclusive"),
    pytest.param(
        ["--pool=exclusive-non-isolcpus", *ECHO],
        PLAIN | {"pool": "exclusive-non-isolcpus"},
        "",
        id="exclusive-non-isolcpus",
    ),
    # As with docopt, options may stand before the verb too.
    pytest.param(["--pool=shared", "isolate", *ECHO, "--", "a"], PLAIN, "a", id="equals-before"),
    pytest.param(["--pool", "shared", "isolate", *ECHO], PLAIN, "", id="a-word-of-its-own-before"),
    pytest.param(["--po", "shared", "isolate", *ECHO], PLAIN, "", id="beginning-before"),
    pytest.param(["--no-affinity", "isolate", "--pool=shared", *ECHO], PLAIN | {"affinity": "no"}, "", id="flag-before"),
    pytest.param(["--no-a", "--pool=shared", "isolate", *ECHO], PLAIN | {"affinity": "no"}, "", id="short-flag-before"),
    pytest.param(["--socket-id", "-1", "--pool=shared", "isolate", *ECHO, "isolate"], PLAIN, "isolate", id="negative-before"),
]  # fmt: skip
REFUSED = [  # words after `isolate`; the first line of the error
    pytest.param([], "Usage:", id="nothing"),
    pytest.param(["--pool=shared"], "Usage:", id="no-command"),
    pytest.param([*ECHO], "Usage:", id="no-pool"),
    pytest.param(["--pool"], "cmk: --pool requires argument", id="no-value"),
    pytest.param(["--pool", "--", *ECHO], "cmk: --pool requires argument", id="dashes-for-a-value"),
    pytest.param(
        ["--pool=shared", "--no-affinity=1", *ECHO],
        "cmk: --no-affinity must not have an argument",
        id="value",
    ),
    pytest.param(
        ["--pool=shared", "--n=1", *ECHO], "cmk: --n is not a unique beginning of an option", id="ambiguous"
    ),
    pytest.param(
        ["--pool=shared", "sh", "-c", "exit"],
        "cmk: -c is not an option of cmk: arguments of the command follow after --",
        id="unknown",
    ),
    pytest.param(["--pool=other", *ECHO], "cmk: Requested pool other does not exist", id="pool"),
    pytest.param(["--pool=a\nb", *ECHO], "cmk: Requested pool a?b does not exist", id="pool-of-two-lines"),
    pytest.param(["--pool=", *ECHO], "cmk: Requested pool  does not exist", id="empty-pool"),
    pytest.param(
        ["--pool=shared", "--socket-id=1\npool=infra", *ECHO],
        "cmk: --socket-id: 1?pool=infra is not the number of a socket",
        id="socket-of-two-lines",
    ),
    pytest.param(
        ["--pool=shared", f"--socket-id={'1' * 2000}", *ECHO],
        "cmk: --socket-id or CMK_NUM_CORES is too long",
        id="socket-too-long",
    ),
]


@pytest.mark.parametrize(("words", "asked", "printed"), ARGUMENTS)
def test_words_are_understood_as_docopt_did(
    agent: FakeAgent, words: list[str], asked: dict[str, str], printed: str
) -> None:
    """Options are accepted anywhere before `--`, the verb's place too; the command's own arguments are not parsed."""
    done = agent.run(*(() if "isolate" in words else ("isolate",)), *words)

    assert (done.returncode, done.stdout, done.stderr) == (0, f"{printed}\n", "")
    lines = "".join(f"{key}={value}\n" for key, value in asked.items())
    assert [it.text for it in agent.asked] == [f"cmk 1 isolate\n{lines}\n"]


@pytest.mark.parametrize("words", [["--interval=0", "--publish", "reconcile"], ["--publish", "node-report"]])
def test_options_may_stand_before_a_report(agent: FakeAgent, words: list[str]) -> None:
    """Options may also stand before a verb that prints a report."""
    assert agent.run(*words).returncode == 0
    assert [it.text for it in agent.asked] == [f"cmk 1 {words[-1]}\n\n"]


@pytest.mark.parametrize(
    "words", [["--pool=shared"], ["--pool", "isolate"], ["--", "isolate"], ["--pool", "infra", "--"]]
)
def test_a_line_without_a_verb_shows_the_usage(agent: FakeAgent, words: list[str]) -> None:
    """Without a verb the usage is printed; neither an option's value nor a word after `--` is a verb."""
    done = agent.run(*words)

    assert (done.returncode, done.stdout, done.stderr.splitlines()[0]) == (1, "", "Usage:")
    assert agent.asked == []


@pytest.mark.parametrize("socket", ["abc", "7", "1\npool=exclusive", "1" * 2000])
def test_infra_takes_any_socket(agent: FakeAgent, socket: str) -> None:
    """The pool `infra` ignores --socket-id, as in CMK, and the agent's request has none."""
    done = agent.run("isolate", "--pool=infra", f"--socket-id={socket}", *ECHO)

    assert (done.returncode, done.stderr) == (0, "")
    assert [it.text for it in agent.asked] == ["cmk 1 isolate\npool=infra\nsocket=-1\n\n"]


@pytest.mark.parametrize(("words", "line"), REFUSED)
def test_wrong_arguments_are_refused_without_a_request(agent: FakeAgent, words: list[str], line: str) -> None:
    """Wrong arguments exit with 1 and the error, and the agent gets no request."""
    done = agent.run("isolate", *words)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[0] == line
    assert agent.asked == []


def test_flags_of_older_versions_are_accepted_with_a_warning(agent: FakeAgent) -> None:
    """--conf-dir, which CMK's examples use, and --namespace have no effect but a warning."""
    done = agent.run(
        "isolate", "--conf-dir=/etc/cmk", "--namespace", "telco", "--pool=exclusive", "echo", "--", "Hello"
    )

    assert (done.returncode, done.stdout) == (0, "Hello\n")
    assert done.stderr.splitlines() == [
        "cmk: --conf-dir does nothing: the agent keeps the state, not a directory",
        "cmk: --namespace does nothing: the agent keeps the state, not a ConfigMap in a namespace",
    ]


@pytest.mark.parametrize(
    "words", [["-h"], ["--help"], ["isolate", "--help"], ["isolate", "--pool=infra", "-h"]]
)
def test_help_is_shown(no_agent: FakeAgent, words: list[str]) -> None:
    """Help names every verb and variable, on stdout."""
    done = no_agent.run(*words)

    assert (done.returncode, done.stderr) == (0, "")
    for word in ("isolate", "describe", "node-report", "reconcile", "CMK_NUM_CORES", "CMK_MAP_SECONDS"):
        assert word in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_version_is_that_of_the_contract_and_our_own(no_agent: FakeAgent) -> None:
    """--version prints CMK's version first, because scripts parse it, and then corepin's."""
    assert no_agent.run("--version").stdout == "CMK v1.5.2 (corepin 0.1.0)\n"


@pytest.mark.parametrize("words", [[], ["isolated"], ["describe", "all"], ["reconcile", "--pool=infra"]])
def test_other_words_show_the_usage(no_agent: FakeAgent, words: list[str]) -> None:
    """An unknown verb, and arguments that a verb does not take, exit with 1 and the usage."""
    done = no_agent.run(*words)

    assert (done.returncode, done.stdout) == (1, "")
    assert "Usage:\n" in done.stderr


@pytest.mark.parametrize(
    "verb",
    [
        *("cluster-init", "init", "discover", "install", "uninstall", "webhook"),
        *("reconfigure", "reconfigure_setup", "reaffinitize"),
    ],
)
def test_verbs_that_are_gone_name_what_does_it_now(no_agent: FakeAgent, verb: str) -> None:
    """Verbs of CMK that do not exist any more exit with 1 and name the replacement."""
    done = no_agent.run(verb, "--num-exclusive-cores=4")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"cmk: {verb} is not needed any more: ")
