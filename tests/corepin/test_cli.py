"""The `corepin` command: ways to start it, unknown words and output errors."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corepin.cli import PLUGIN, PLUGIN_VERBS, VERBS, build_parser, kubectl, main
from tests.corepin.documents import POD
from tests.docs.words import WORDS


def test_packages_run_without_an_installed_command() -> None:
    """`python -m corepin` is the command, with its exit code."""
    found = subprocess.run(
        [sys.executable, "-m", "corepin", "validate", "-f", "/nowhere/pod.yaml"],
        capture_output=True,
        text=True,
        check=False,
    )
    error = "corepin validate: /nowhere/pod.yaml: there is no such file: check the path, or write - for standard input\n"
    assert (found.returncode, found.stdout, found.stderr) == (2, "", error)


@pytest.mark.parametrize(
    ("command", "given", "prog", "word"),
    [
        pytest.param(main, ["validate", "-f", "a", "b"], "corepin validate", "b", id="a file without -f"),
        pytest.param(main, ["map", "--color"], "corepin map", "--color", id="a flag of other programs"),
        pytest.param(main, ["cmk", "leftovers", "a b", "c"], "corepin cmk", "a b c", id="behind an action"),
        pytest.param(kubectl, ["why", "a", "b"], "kubectl corepin why", "b", id="the plugin"),
    ],
)
def test_unknown_word_names_the_verb(
    command: Callable[[list[str]], int],
    given: list[str],
    prog: str,
    word: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The error names the verb, the word, and the help that lists the accepted words."""
    assert command(given) == 2
    assert (
        capsys.readouterr().err == f"{prog}: {word!r} is not accepted: `{prog} --help` lists the arguments\n"
    )


@pytest.mark.parametrize(
    "given",
    ["--version", "validate -f pod.yaml", "plan -f pod.yaml --topology /", "cmk leftovers --help"],
)
@pytest.mark.parametrize("output", [">&-", ">/dev/full"])
def test_output_that_cannot_be_written_is_no_traceback(given: str, output: str, tmp_path: Path) -> None:
    """A verb's output that cannot be written is an error in one line with exit code 2; nothing prints a traceback."""
    (tmp_path / "pod.yaml").write_text(POD)
    found = subprocess.run(
        ["/bin/sh", "-c", f'"$@" {output}', "-", sys.executable, "-m", "corepin", *given.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        check=False,
    )
    is_help = given.endswith("--help")
    assert "Traceback" not in found.stderr
    assert is_help or (found.returncode, found.stderr.count("\n")) == (2, 1)
    assert is_help or "standard output" in found.stderr


@pytest.mark.parametrize(
    "given",
    [
        ["validate", "-f", ""],
        ["inject", "-f", ""],
        ["plan", "-f", "", "--claim", "1"],
        ["plan", "--topology", ""],
        ["plan", "--node", ""],
        ["plan", "--config", ""],
        ["plan", "--devices", ""],
    ],
    ids=" ".join,
)
def test_empty_file_name_is_refused(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """An empty path, as from an unset shell variable, does not mean the current directory."""
    with pytest.raises(SystemExit, match="2"):
        main(given)
    assert ": it is empty: write a name, or leave the flag out" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["map", "doctor"])
def test_empty_socket_is_named(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty socket path is an error that names flag and value, which the system's message would not."""
    main([verb, "--socket", ""])
    captured = capsys.readouterr()
    found = " ".join((captured.out + captured.err).split())
    assert "--socket: it is empty: write the path of a socket, or leave the flag out" in found


@pytest.mark.parametrize("verb", ["validate", "inject", "plan", "map", "why", "doctor"])
def test_help_states_the_exit_codes(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The help of each verb states its exit codes, because scripts need them."""
    with pytest.raises(SystemExit, match="0"):
        build_parser(VERBS).parse_args([verb, "--help"])
    assert "exit code: 0" in " ".join(capsys.readouterr().out.lower().split())


def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parser of a command and of everything below it that has a help."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                if below.add_help:
                    yield from commands(below)


COMMANDS = {
    it.prog: it for whole in (build_parser(), build_parser(PLUGIN_VERBS, PLUGIN)) for it in commands(whole)
}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_in_plain_words(command: str) -> None:
    """Every argument of every command is explained, and no text has a word of the list, or `everyone`."""
    parser = COMMANDS[command]
    explained = [it.help for it in parser._actions if not isinstance(it, argparse._SubParsersAction)]
    assert all(explained)
    text = parser.format_help()
    assert not WORDS.search(text)
    assert "everyone" not in text


@pytest.mark.parametrize(
    ("command", "flag", "words"),
    [
        ("corepin webhook", "--client-ca", "default: every client"),
        ("corepin agent", "--runtime", "the agent runs the pods of --pods-dir"),
        ("corepin agent", "--kubelet-state", "pod-resources/kubelet.sock"),
        ("corepin plan", "--reserved", "those of --config or --node"),
        ("corepin certs issue", "--days", "in days"),
        ("corepin cmk uninstall", "--all-hosts", "corepin.io/agent=true, cordoned ones too"),
        ("corepin cmk discover", "--node", "cmk.intel.com/cmk-node=true"),
    ],
)
def test_help_says_what_a_flag_does(command: str, flag: str, words: str) -> None:
    """The help of a flag names the files, nodes and units that it is about."""
    (found,) = (it for it in COMMANDS[command]._actions if flag in it.option_strings)
    assert found.help
    assert words in found.help
